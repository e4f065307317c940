"""A translation begins with its prefix, and no prefix of a model's own best translation makes it worse."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.cpu.build import has_int8, library
from heed.data.batches.batch import make_batch
from heed.decoding.scoring import length_penalty
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.text.numbers import english, german
from heed.text.prefix import Prefix, Spellings
from tests.conftest import SPECIAL, n_examples
from tests.decoding.searches import MODEL, SHORT, SPELLED, SPELLINGS, VOCAB_SIZE, search, sharp_model, token_log_probs
from tests.decoding.test_translator import random_model

TEXTS = [english(number) for number in (7, 987_654, 12, 55_555)]


@pytest.fixture(params=["kernels", "reference"])
def road(request, monkeypatch) -> str:
    if request.param == "reference":
        monkeypatch.setattr("heed.backends.cpu.search.usable", lambda: False)
    elif library() is None:
        pytest.skip("no C++ compiler: Heed's kernels are not at hand")
    return request.param


def translator_of(tokenizer, precision="fp32", **options) -> Translator:
    settings = DecodingSettings(**{"max_extra_tokens": 5, **options})
    return Translator(random_model(len(tokenizer)), tokenizer, settings, precision=precision)


def spelled(ids) -> str:
    return "".join(SPELLED[i] for i in ids)


def test_a_beam_of_everything_finds_the_best_of_all_ids_that_spell_the_prefix(road):
    ids_of = {3: "a", 4: "b", 5: "ab", 6: "ba"}
    spellings = Spellings([(i, text.encode()) for i, text in ids_of.items()], n_dropped_spaces=0)
    model, source, options = sharp_model(vocab_size=7), [3, 5, 6], DecodingSettings(beam_size=300, max_tokens=5)
    targets = [ids for n in range(5) for ids in product(ids_of, repeat=n)]
    batch = make_batch([(source, list(ids)) for ids in targets], SPECIAL)
    rows = token_log_probs([model], batch).split(batch.tgt_lengths.tolist())
    scores = {
        ids: float(row.sum()) / length_penalty(len(ids) + 1, 0.6, "paper")
        for ids, row in zip(targets, rows, strict=True)
    }
    for prefix in ("a", "ab", "abb", "baab"):
        expected = {ids: score for ids, score in scores.items() if "".join(map(ids_of.get, ids)).startswith(prefix)}
        best = sorted(expected, key=lambda ids: -expected[ids])[:20]
        found = dict(search([model], [Source(0, source, spellings.prefix(prefix))], SPECIAL, options, n_best=20))[0]
        assert [hypothesis.ids for hypothesis in found] == best
        assert [hypothesis.score for hypothesis in found] == pytest.approx([expected[ids] for ids in best], abs=1e-4)


# A prefix, of text or of ids, and what says whether ids begin with it.
PREFIXES = st.text("abc", max_size=8).map(
    lambda text: (SPELLINGS.prefix(text), lambda ids: spelled(ids).startswith(text))
) | st.lists(st.integers(3, VOCAB_SIZE - 1), max_size=5).map(
    lambda given: (Prefix.of_ids(given), lambda ids: list(ids[: len(given)]) == given)
)


@pytest.mark.slow
@given(
    source=SHORT,
    prefix=PREFIXES,
    beam_size=st.integers(1, 4),
    least=st.integers(0, 9),
    extra=st.integers(0, 3),
    sampling=st.sampled_from([None, SamplingSettings(), SamplingSettings(top_k=2)]),
    n_models=st.integers(1, 2),
)
@settings(max_examples=n_examples(60))
def test_what_is_found_begins_with_the_prefix_is_as_long_as_asked_and_has_the_models_own_probability(
    source, prefix, beam_size, least, extra, sampling, n_models
):
    begins_with, begins = prefix
    most = max(begins_with.n_tokens, least) + 1 + extra
    options = DecodingSettings(beam_size=beam_size, min_tokens=least, max_tokens=most)
    ((_, found),) = search(
        [MODEL] * n_models, [Source(0, source, begins_with)], SPECIAL, options, n_best=beam_size, sampling=sampling
    )
    assert found
    for hypothesis in found:
        assert begins(hypothesis.ids)
        assert least <= len(hypothesis.ids) and len(hypothesis.ids) + hypothesis.ended <= most
        batch = make_batch([(source, hypothesis.ids)], SPECIAL)
        log_probs = token_log_probs([MODEL], batch)[: len(hypothesis.ids) + hypothesis.ended]
        assert hypothesis.log_prob == pytest.approx(float(log_probs.double().sum()), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision",
    ["fp32", pytest.param("int8", marks=pytest.mark.skipif(not has_int8(), reason="no 8-bit products here"))],
)
def test_no_prefix_of_its_own_translation_changes_a_greedy_one(number_tokenizer, precision):
    translator = translator_of(number_tokenizer, precision, beam_size=1)
    n_prefixes = 0
    for best in translator.translate(TEXTS):
        whole = best.text.partition("\ufffd")[0]  # bytes that are no character
        limit = len(number_tokenizer.encode(best.source)) + 5
        prefixes = [whole[:end] for end in range(1, len(whole) + 1)]
        # With others the limit grows, so that an end of sentence fits.
        prefixes = [prefix for prefix in prefixes if translator.prefix(prefix).n_tokens < limit]
        n_prefixes += len(prefixes)
        assert translator.translate([best.source] * len(prefixes), prefix=prefixes) == [best] * len(prefixes)
    assert n_prefixes > 50


@pytest.mark.parametrize(
    "how",
    [{}, {"sampling": SamplingSettings()}, {"utility": "chrf"}, {"n_best": 3}],
    ids=["search", "sampling", "minimum Bayes risk", "n best"],
)
def test_every_line_begins_with_its_own_prefix(number_tokenizer, road, how):
    translator = translator_of(number_tokenizer)
    prefixes = ["siebe", "", "zw", "fünfundfünfzigtausend "]
    found = translator.translate(TEXTS, prefix=prefixes, **how)
    for translation, prefix in zip(found, prefixes, strict=True):
        assert all(one.text.startswith(prefix) for one in translation.alternatives)
    assert found[1] == translator.translate(TEXTS, **how)[1]
    assert [t.text for t in translator.stream(iter(TEXTS), prefix=iter(prefixes), **how)] == [t.text for t in found]


def test_there_are_as_many_prefixes_as_texts(number_tokenizer):
    translator = translator_of(number_tokenizer)
    with pytest.raises(HeedError, match="prefix has 3 lines, but 4 are to be translated"):
        translator.translate(TEXTS, prefix=["ein"] * 3)
    with pytest.raises(HeedError, match="prefix has 3 lines, but 4 or more are to be translated"):
        list(translator.stream(iter(TEXTS), prefix=iter(["ein"] * 3)))
    with pytest.raises(HeedError, match="p.txt has 5 lines, but 4 are to be translated"):
        list(translator.stream(iter(TEXTS), prefix=iter(["ein"] * 5), prefixes_name="p.txt"))
    with pytest.raises(HeedError, match="p.txt, line 2: .* is not valid Unicode"):
        list(translator.stream(iter(TEXTS), prefix=["ein", "\ud800", "", ""], prefixes_name="p.txt"))


def test_a_prefix_has_room_unless_max_tokens_leaves_none(number_tokenizer):
    long = " ".join(german(number) for number in range(987_000, 987_030))
    translator = translator_of(number_tokenizer, max_extra_tokens=0)
    (found,) = translator.translate(["one"], prefix=long)
    assert found.text.startswith(long)
    n_tokens = translator.prefix(long).n_tokens
    assert translator_of(number_tokenizer, max_tokens=n_tokens + 1).translate("one", prefix=long).text.startswith(long)
    with pytest.raises(HeedError, match=f"the prefix has at least {n_tokens} tokens, max_tokens={n_tokens}: shorten"):
        translator_of(number_tokenizer, max_tokens=n_tokens).translate("one", prefix=long)


def test_of_a_text_in_pieces_the_first_begins_with_the_prefix(number_tokenizer):
    translator = translator_of(number_tokenizer)
    translator._piece_tokens = 3
    (found,) = translator.translate([TEXTS[1]], prefix="neunh")
    assert found.n_pieces > 1 and found.text.startswith("neunh")


def test_the_ids_of_a_prefix_are_ascending_and_lead_on():
    prefix = SPELLINGS.prefix("abcab")
    for state in range(prefix.end):
        ids = prefix.allowed_ids(state, 100)
        assert len(ids) and (np.diff(ids) > 0).all()
        assert all(prefix.after(state, int(i)) == min(prefix.end, state + len(SPELLED[int(i)])) for i in ids)
