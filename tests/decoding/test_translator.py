"""Texts in, translations out, in order, whatever the batching."""

import inspect
import math
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import heed
from heed.backends.cpu.build import has_int8, has_tiles, library
from heed.data.batches.batch import make_batch
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from heed.decoding.translation import Translation
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.numbers import english
from heed.training.validation import cross_entropy
from tests.conftest import sharp_model
from tests.decoding.searches import search

PRECISIONS = [
    "fp32",
    pytest.param("bf16", marks=pytest.mark.skipif(not has_tiles(), reason="no AMX")),
    pytest.param("int8", marks=pytest.mark.skipif(not has_int8(), reason="no 8-bit products here")),
]


def random_model(vocab_size: int, *, seed: int = 5, **changes) -> Transformer:
    arch = Architecture(**({"n_layers": 1, "d_model": 32, "d_ff": 32, "n_heads": 4} | changes))
    return sharp_model(arch, vocab_size, seed=seed, factor=2)


@pytest.fixture(scope="module")
def translator(number_tokenizer) -> Translator:
    return Translator(random_model(len(number_tokenizer)), number_tokenizer, DecodingSettings(max_extra_tokens=5))


def test_order_is_kept_and_batching_changes_nothing(translator):
    texts = [english(number) for number in (7, 987_654, 12, 55_555, 3, 700_001, 7)]
    together = translator.translate(texts)
    assert [t.source for t in together] == texts
    assert [t.text for t in together] == [translator.translate([text])[0].text for text in texts]
    assert together[0].text == together[-1].text


def test_one_text_gives_one_translation_and_never_one_a_character(translator):
    for text in ("two three", "", "7"):
        (in_a_list,) = translator.translate([text], n_best=2)
        assert translator.translate(text, n_best=2) == in_a_list
    log_probs, alignments = map(inspect.unwrap, (Translator.log_probs, Translator.alignments))  # types are checked here
    for refused in (
        lambda: list(translator.stream("two")),
        lambda: log_probs(translator, "two", ["zwei"]),
        lambda: log_probs(translator, ["two"], "zwei"),
        lambda: alignments(translator, "two", "zwei"),
    ):
        with pytest.raises(HeedError, match=r"is one text; expected a list of texts: write \[text\] for a single one"):
            refused()


@pytest.mark.parametrize("options", [{"sampling": 3}, {"n_best": "2"}, {"n_best": 2.5}, {"prefix": 3}])
def test_an_option_of_another_type_is_named(translator, options):
    (name,) = options
    with pytest.raises(HeedError, match=f"^{name} is of type {type(options[name]).__name__}; expected "):
        list(inspect.unwrap(Translator.stream)(translator, ["two"], **options))


def test_blank_lines_stay_empty(translator):
    translations = translator.translate(["", "seven", "   "])
    assert [t.text for t in translations[::2]] == ["", ""]
    assert translations[0].score == 0.0


@pytest.mark.slow
def test_what_is_drawn_for_a_line_depends_on_its_number_alone(number_tokenizer):
    drawer = Translator(random_model(len(number_tokenizer)), number_tokenizer, DecodingSettings(max_extra_tokens=5))
    lines = [drawer.translate([first, "seven"], sampling=SamplingSettings())[1] for first in ("one", "", "two " * 600)]
    assert len({line.text for line in lines}) == 1
    assert drawer.translate(["seven"], sampling=SamplingSettings())[0].text != lines[0].text


def test_a_stream_is_read_as_it_is_needed(translator):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "seven"

    stream = translator.stream(endless())
    next(stream)
    assert taken <= 256


def test_a_very_long_line_is_translated_in_pieces_and_reported(number_tokenizer):
    lines: list[str] = []
    settings = DecodingSettings(beam_size=1, max_extra_tokens=0)
    patient = Translator(random_model(len(number_tokenizer)), number_tokenizer, settings)
    patient.report = lines.append
    *_, translation = patient.translate(["one", " ", "seven " * 1200])
    cut_off = "Cut off, as they reached the longest length that is allowed: {}. Raise max_extra_tokens (0)."
    assert lines == ["line 3: 1,201 tokens, translated in 3 pieces.", cut_off.format("line 1, line 3")]
    assert translation.text
    patient.translate_aligned(["one", "seven " * 1200])  # a document has other lines than these
    long = "the sentence 'seven seven seven seven seven seven seve …'"
    assert lines[2:] == [
        f"{long}: 1,201 tokens, translated in 3 pieces.",
        cut_off.format(f"the sentence 'one …', {long}"),
    ]


def test_a_line_unlike_the_training_text_is_told_once(number_tokenizer):
    lines: list[str] = []
    translator = Translator(
        random_model(len(number_tokenizer)), number_tokenizer, DecodingSettings(beam_size=1), report=lines.append
    )
    translator.examples = ["forty-two", "seven thousand"]
    translator.translate(["seven", "two hundred fifty-four", "42107", "x y z", "ab"])
    assert not [line for line in lines if "is unlike" in line]
    translator.translate(["seven", "Hello", "my name is John"])
    told = "line 2 ('Hello') is unlike the text that the model was trained on: to its vocabulary it is mostly single "
    (line,) = [line for line in lines if "is unlike" in line]
    assert line == told + "letters; it knows text such as 'forty-two', 'seven thousand'."


def test_a_model_that_repeats_itself_is_not_told_to_go_on_longer(number_tokenizer):
    lines: list[str] = []
    model = random_model(len(number_tokenizer))
    Translator(model, number_tokenizer, DecodingSettings(beam_size=1), report=lines.append).translate("one")
    assert lines[-1].endswith("They repeat themselves: the model has learned too little, or knows no such text.")


def test_the_tokens_of_a_translation_score_as_the_search_scored_them(number_tokenizer):
    models = [random_model(len(number_tokenizer), seed=seed) for seed in (5, 6)]
    settings = DecodingSettings(max_extra_tokens=5, early_stopping=True)
    for some in (models[:1], models):
        translator = Translator(some, number_tokenizer, settings, precision="fp32")
        texts = ["seven", "three hundred and eleven", "eighty-one"]
        found = [one for t in translator.translate(texts, n_best=4) for one in t.alternatives]
        scored = translator.log_probs([one.source for one in found], [one.tokens for one in found])
        for one, log_probs in zip(found, scored, strict=True):
            assert number_tokenizer.decode(number_tokenizer.token_ids(one.tokens)) == one.text
            assert len(log_probs) == len(one.tokens) + 1
            assert sum(log_probs[:-1] if not one.ended else log_probs) == pytest.approx(one.log_prob, abs=1e-4)
    with pytest.raises(HeedError, match="line 2: 'zzz' is not a token of the model's vocabulary"):
        translator.log_probs(["one", "one"], ["eins", ["zzz"]])


def test_log_probs_of_texts_and_of_their_tokens_add_up_to_the_loss_of_validation(number_tokenizer):
    model = random_model(len(number_tokenizer))
    sources, targets = ["eighty-seven", "one", "two hundred"], ["siebenundachtzig", "", "zweihundert"]
    pairs = list(zip(number_tokenizer.encode_lines(sources), number_tokenizer.encode_targets(targets), strict=True))
    batch = make_batch(pairs, number_tokenizer.special)
    translator = Translator(model, number_tokenizer, precision="fp32")
    tokens = [number_tokenizer.tokens(ids) for _, ids in pairs]
    n_tokens = sum(len(ids) + 1 for _, ids in pairs)
    for given in (targets, tokens):
        total = sum(map(sum, translator.log_probs(sources, given)))
        assert -total / n_tokens == pytest.approx(cross_entropy(model, [batch]), rel=1e-6)


def test_a_text_with_fewer_different_translations_than_asked_for_has_a_shorter_list_and_is_counted(
    number_tokenizer, monkeypatch
):
    lines: list[str] = []
    settings = DecodingSettings(beam_size=3, max_tokens=4)
    translator = Translator(random_model(len(number_tokenizer)), number_tokenizer, settings, report=lines.append)
    texts = ["seven", "", "eighty-one", "two " * 600]
    plain = translator.translate(texts)
    del lines[:]
    monkeypatch.setattr(number_tokenizer, "decode", lambda ids: "eins")
    found = translator.translate(texts, n_best=3)
    assert "2 lines have fewer than 3 different translations." in lines
    assert [(len(t.alternatives), t.score) for t in found] == [(1, t.score) for t in plain]
    drawn = translator.translate(texts[:1], n_best=3, sampling=SamplingSettings())
    assert len(drawn[0].alternatives) == 3  # as they were drawn


def results_of(translator: Translator, texts: list[str]) -> tuple[list[Translation], object, object, object]:
    """What each of a translator's methods gives for these texts."""
    found = list(translator.stream(texts, n_best=3))
    drawn = translator.translate(texts[:5], prefix="drei", sampling=SamplingSettings())
    log_probs = translator.log_probs(texts, [translation.text for translation in found])
    attention = translator.attention(texts[0], texts[1])
    return found, drawn, log_probs, [attention.encoder.tolist(), attention.decoder.tolist(), attention.cross.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", PRECISIONS[2]])
def test_threads_that_share_a_translator_find_what_they_find_one_after_the_other(number_tokenizer, precision):
    models = [random_model(len(number_tokenizer), seed=seed, n_layers=2) for seed in (5, 6)]
    draw = random.Random(1)
    texts = [[english(draw.randrange(10**6)) for _ in range(6)] for _ in range(4)]
    texts[0].append("seven " * 260)  # more positions than any table of sinusoids has at first
    options = DecodingSettings(max_extra_tokens=5)

    def shared() -> Translator:
        return Translator(models, number_tokenizer, options, precision=precision)

    expected = [results_of(shared(), some) for some in texts]
    for _ in range(3):
        translator = shared()
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda some, t=translator: results_of(t, some), texts)) == expected


METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}


@pytest.mark.parametrize(("utility", "sampling"), [("chrf", SamplingSettings(seed=3)), ("bleu", None), ("chrf", None)])
def test_minimum_bayes_risk_gives_what_scores_highest_on_average(number_tokenizer, utility, sampling):
    models = [random_model(len(number_tokenizer), seed=seed) for seed in (5, 6)]
    options = DecodingSettings(beam_size=12, max_extra_tokens=3)
    ensemble = Translator(models, number_tokenizer, options, precision="fp32")
    texts = ["seven", "", "three hundred and eleven", "eighty-one"]
    # Numbered as lines are, which decides what is drawn; of several hypotheses that spell a text, each counts.
    sources = [Source(n << 21, ids[0]) for n, ids in enumerate(ensemble.pieces(texts), start=1) if ids]
    searched = search(ensemble.models, sources, number_tokenizer.special, options, n_best=12, sampling=sampling)
    hypotheses = dict(filter(None, searched))
    candidates = [
        ensemble.joined(text, [hypotheses[n << 21]] if n << 21 in hypotheses else [])
        for n, text in enumerate(texts, start=1)
    ]
    found = ensemble.translate(texts, n_best=12, sampling=sampling, utility=utility)
    changed = 0
    for translation, others in zip(found, candidates, strict=True):
        if not others.source:
            assert translation == others
            continue
        weights = {}
        for other in others.alternatives:
            weights[other.text] = weights.get(other.text, 0.0) + (1.0 if sampling else math.exp(other.log_prob))
        expected = {
            hyp: sum(w * METRICS[utility].sentence_score(hyp, [ref]).score for ref, w in weights.items())
            / sum(weights.values())
            for hyp in weights
        }
        utilities = [other.utility for other in translation.alternatives]
        assert utilities == sorted(utilities, reverse=True)
        assert {other.text: other.utility for other in translation.alternatives} == pytest.approx(expected)
        best = translation.alternatives[0]
        assert (translation.text, translation.utility, translation.log_prob) == (best.text, best.utility, best.log_prob)
        assert {replace(other, utility=None) for other in translation.alternatives} <= set(others.alternatives)
        changed += translation.text != others.text
    assert changed
    stream = ensemble.stream(iter(texts), n_best=2, sampling=sampling, utility=utility)
    assert [(t.text, [a.utility for a in t.alternatives]) for t in stream] == [
        (t.text, [a.utility for a in t.alternatives][:2]) for t in found
    ]


def test_minimum_bayes_risk_of_a_text_in_pieces_and_what_it_refuses(number_tokenizer):
    translator = Translator(
        random_model(len(number_tokenizer)), number_tokenizer, DecodingSettings(beam_size=3, max_tokens=4)
    )
    long = " ".join(["seven"] * 600)
    (translation,) = translator.translate([long], n_best=3, utility="chrf")
    ids = number_tokenizer.encode(long)
    pieces = [
        translator.translate([number_tokenizer.decode(part)], utility="chrf")[0] for part in (ids[:512], ids[512:])
    ]
    assert (translation.n_pieces, translation.utility, len(translation.alternatives)) == (2, None, 1)
    assert translation.text == " ".join(piece.text for piece in pieces)
    wide = Translator(random_model(len(number_tokenizer)), number_tokenizer, DecodingSettings(beam_size=101))
    with pytest.raises(HeedError, match="takes a beam_size of at most 100, found 101"):
        wide.translate(["one"], utility="chrf")


def test_streams_of_one_translator_may_be_read_in_turns(translator):
    texts = [["seven", "eighty-one"], ["three hundred", "one"]]
    in_turns = list(zip(*(translator.stream(some) for some in texts), strict=True))
    assert [list(column) for column in zip(*in_turns, strict=True)] == [translator.translate(some) for some in texts]


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_a_pickled_translator_is_the_same_translator(number_tokenizer, precision, positions):
    texts = [english(number) for number in (7, 987_654, 12)] + ["[padding symbol]"]
    model = random_model(len(number_tokenizer), positions=positions)
    translator = Translator(model, number_tokenizer, precision=precision)
    expected = results_of(translator, texts)
    again = pickle.loads(pickle.dumps(translator))  # noqa: S301
    assert again.tokenizer == number_tokenizer and again.settings == translator.settings
    assert results_of(again, texts) == expected == results_of(translator, texts)


@pytest.mark.slow
def test_a_new_process_translates_with_the_translator_that_it_is_sent(number_tokenizer):
    translator = Translator(random_model(len(number_tokenizer)), number_tokenizer, precision="fp32")
    texts = [english(number) for number in (7, 987_654)]
    expected = translator.translate(texts, n_best=2)
    stream = translator.stream(texts, n_best=2)
    first = next(stream)  # a search that goes on while its models are sent
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(translator.translate, (texts,), {"n_best": 2}) == expected
    assert [first, *stream] == expected


@pytest.mark.parametrize("changes", [{"max_extra_tokens": 200, "max_tokens": 20}, {"min_tokens": 90}, {}])
def test_learned_positions_have_room_for_what_the_settings_allow(number_tokenizer, changes):
    model = random_model(len(number_tokenizer), positions="learned", max_positions=100)
    settings = DecodingSettings(**({"max_extra_tokens": 5} | changes))
    translator = Translator(model, number_tokenizer, settings)
    (found,) = translator.translate([" ".join([english(987_654)] * 60)])
    assert found.n_pieces > 1 and found.text


def test_a_pair_that_is_too_long_to_be_scored_is_named(number_tokenizer):
    model = random_model(len(number_tokenizer), positions="learned", max_positions=60)
    translator = Translator(model, number_tokenizer, DecodingSettings(max_extra_tokens=10))
    with pytest.raises(HeedError, match="line 2: [0-9]+ positions to score, but the model has max_positions=60"):
        translator.log_probs(["one", "one"], ["eins", "zwei " * 80])
    assert translator.translate(["one " * 80])  # in pieces


def test_a_prefix_of_more_tokens_than_learned_positions_is_refused(number_tokenizer):
    model = random_model(len(number_tokenizer), positions="learned", max_positions=100)
    translator = Translator(model, number_tokenizer, DecodingSettings(max_extra_tokens=5))
    with pytest.raises(HeedError, match="the prefix has at least .* tokens, max_positions=100: shorten it"):
        translator.translate(["one"], prefix="zwei " * 500)
    assert translator.translate(["one"], prefix="zwei " * 8)[0].text.startswith("zwei zwei")


def test_learned_positions_without_room_are_refused(number_tokenizer):
    model = random_model(len(number_tokenizer), positions="learned", max_positions=100)
    for changes in ({"min_tokens": 150}, {"max_extra_tokens": 200}):
        with pytest.raises(HeedError, match="max_positions=100 leaves no room for a target: .* lower them"):
            Translator(model, number_tokenizer, DecodingSettings(**changes))


def test_no_alternative_is_none_to_choose_from(translator):
    for options in ({}, {"utility": "chrf"}):
        with pytest.raises(HeedError, match="n_best is 0"):
            translator.translate(["one"], n_best=0, **options)


def test_what_a_caller_can_mend_is_said(translator):
    beam = translator.settings.beam_size
    with pytest.raises(HeedError, match=f"n_best is {beam + 1}, more than beam_size, {beam}"):
        translator.translate(["one"], n_best=beam + 1)
    with pytest.raises(HeedError, match="1 sources, 2 targets: both must have the same number"):
        translator.log_probs(["one"], ["eins", "zwei"])
    with pytest.raises(HeedError, match="no model folder is given"):
        Translator.load()


def test_load_takes_every_setting_in_place_of_the_recipes(number_tokenizer, tmp_path):
    card = ModelCard("en", "de", decoding={"beam_size": 2, "max_tokens": 7})
    save_model(tmp_path / "model", random_model(len(number_tokenizer)), number_tokenizer, card)
    wanted = DecodingSettings(
        beam_size=3,
        length_penalty=0.5,
        length_penalty_form="average",
        max_extra_tokens=4,
        max_length_factor=2.0,
        max_tokens=9,
        early_stopping=True,
        min_tokens=1,
        no_repeat_ngram_size=3,
        repetition_penalty=1.5,
    )
    assert wanted.model_dump().keys() == wanted.model_fields_set
    assert heed.load(tmp_path / "model", **wanted.model_dump()).settings == wanted
    kept = Translator.load(tmp_path / "model", beam_size=None, min_tokens=1).settings
    assert kept == DecodingSettings(beam_size=2, max_tokens=7, min_tokens=1)
    for keywords, message in (
        ({"beam": 3}, "unknown setting beam; did you mean beam_size?"),
        ({"beam_size": 0}, "setting beam_size: "),
        ({"beam_size": 1, "early_stopping": False}, "early_stopping=False has no effect with beam_size=1"),
        ({"length_penalty": 1.0, "length_penalty_form": "none"}, "length_penalty has no effect with"),
    ):
        with pytest.raises(HeedError, match=re.escape(message)):
            heed.load(tmp_path / "model", **keywords)


@pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_programs_default_dtype_changes_nothing(number_tokenizer, precision, default, tmp_path):
    model = random_model(len(number_tokenizer), norm="pre")
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))

    def found() -> tuple[object, ...]:
        translator = Translator.load(tmp_path / "model", precision=precision, beam_size=3, max_extra_tokens=5)
        texts = [english(n) for n in (3, 500, 98765)]
        translations = translator.translate(texts)
        drawn = translator.translate(texts, sampling=SamplingSettings())
        return translations, drawn, translator.log_probs(texts, [translation.text for translation in translations])

    expected = found()
    torch.set_default_dtype(default)
    try:
        assert found() == expected
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork") or library() is None, reason="no fork, or no kernels")
def test_a_forked_process_translates(number_tokenizer, tmp_path):
    save_model(tmp_path / "model", random_model(len(number_tokenizer)), number_tokenizer, ModelCard("en", "de"))
    program = f"""
        import multiprocessing, torch, heed
        torch.set_num_threads(3)
        translator = heed.load({str(tmp_path / "model")!r})
        lines = ["one", "two", "three hundred"] * 30
        expected = [t.text for t in translator.translate(lines)]
        torch.ones(2000, 2000) @ torch.ones(2000, 2000)
        def work(lines):
            torch.ones(2000, 2000) @ torch.ones(2000, 2000)
            return [t.text for t in translator.translate(lines)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(work, [lines, lines]).get(timeout=60) == [expected] * 2
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=180)


def test_repr_tells_languages_shape_precision_and_device(small_model, number_tokenizer, tmp_path):
    model = Transformer(small_model.arch, len(number_tokenizer))
    translator = Translator(model, number_tokenizer, precision="fp32", languages=("en", "de"))
    n_millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    about = f"en → de, 2 layers, d_model 32, {n_millions:.1f}M parameters, fp32 on cpu, beam 4>"
    assert repr(translator) == f"<Translator a model in memory: {about}"
    save_model(tmp_path / "m", model, number_tokenizer, ModelCard("en", "de"))
    assert repr(Translator.load(tmp_path / "m", precision="fp32")) == f"<Translator {tmp_path / 'm'}: {about}"
