"""Exported folders are, to transformers, the same model, tokenizer and search; a model that returns is the same."""

import json
import shutil
import sys
import warnings
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.apps.exchange.folders import ENGLISH, exported, imported, model_bytes, random_folder, trained_folder
from tests.apps.exchange.test_hostile import peak_of
from tests.conftest import n_examples, random_pairs

from heed.apps.exchange.huggingface import write_model
from heed.apps.exchange.tokenizers import write_hugging_face_tokenizer
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.model.attention_weights import attention_weights
from heed.model_folder import load_model
from heed.text.segmentation import BOS, EOS, PAD
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

EVERYTHING = {
    "n_encoder_layers": 3,
    "n_decoder_layers": 1,
    "activation": "swish",
    "attention_bias": True,
    "output_bias": True,
    "positions": "sinusoid-halves",
    "dropout": 0.3,
    "attention_dropout": 0.2,
    "word_dropout": 0.1,
}
NETWORKS = [
    {},
    {"activation": "gelu", "positions": "sinusoid-halves"},
    *({"share": share, **EVERYTHING} for share in ("all", "tgt", "none")),
    {"d_k": 8, "d_v": 8},
]


def theirs(folder):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder), trust_remote_code=False).eval()


def tokenizer_of(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses is recommended, and not used
        return transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)


@torch.inference_mode()
def assert_same_logits(model, reference):
    """Where a row's sentence or target has ended, no logit counts."""
    src, src_mask = random_pairs(6, vocab_size=min(model.vocab_size, model.src_vocab_size), seed=3)
    tgt, tgt_mask = random_pairs(6, vocab_size=model.vocab_size, seed=4)
    ours = model(src, src_mask, tgt)[tgt_mask]
    found = reference(input_ids=src, attention_mask=src_mask.long(), decoder_input_ids=tgt).logits[tgt_mask]
    # fp32: sums of 32 to 64 products in another order, some 1e-6 of the largest.
    torch.testing.assert_close(found, ours, rtol=0, atol=1e-5 * max(1.0, float(ours.abs().max())))


@pytest.mark.parametrize("changes", NETWORKS, ids=lambda changes: "-".join(map(str, changes.values())) or "paper")
def test_logits_are_the_same_and_the_model_returns_byte_for_byte(number_tokenizer, tmp_path, changes):
    folder = random_folder(tmp_path / "model", number_tokenizer, **changes)
    messages = exported(folder, tmp_path / "hf", "huggingface")
    assert "gives the same logits" in messages[-1]
    model, reference = load_model(folder).model, theirs(tmp_path / "hf")
    assert_same_logits(model, reference)
    assert model_bytes(imported(tmp_path / "hf", tmp_path / "back", "huggingface")) == model_bytes(folder)


def test_traced_attention_is_what_transformers_attends_to(number_tokenizer, tmp_path):
    folder = random_folder(tmp_path / "model", number_tokenizer)
    exported(folder, tmp_path / "hf", "huggingface")
    reference = theirs(tmp_path / "hf")
    reference.set_attn_implementation("eager")
    src, tgt_in = torch.tensor([5, 9, 30, 2]), torch.tensor([1, 8, 8, 41, 7])
    traced = attention_weights(load_model(folder).model, src.tolist(), tgt_in.tolist())
    with torch.no_grad():
        expected = reference(input_ids=src[None], decoder_input_ids=tgt_in[None], output_attentions=True)
    for name in ("encoder", "decoder", "cross"):
        ours, found = getattr(traced, name), torch.cat(getattr(expected, f"{name}_attentions"))
        torch.testing.assert_close(ours, found, atol=1e-5, rtol=1e-4)


def test_what_transformers_saved_again_is_the_same_model(number_tokenizer, tmp_path):
    folder = random_folder(tmp_path / "model", number_tokenizer, **EVERYTHING)
    exported(folder, tmp_path / "hf", "huggingface")
    for part in (theirs(tmp_path / "hf"), tokenizer_of(tmp_path / "hf")):
        part.save_pretrained(str(tmp_path / "again"))
    back = imported(tmp_path / "again", tmp_path / "back", "huggingface")
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert load_model(back).tokenizer == number_tokenizer


def test_weights_that_another_program_has_changed_lose_their_scores(number_tokenizer, tmp_path):
    exported(random_folder(tmp_path / "model", number_tokenizer), tmp_path / "hf", "huggingface")
    tuned = theirs(tmp_path / "hf")
    with torch.no_grad():
        tuned.model.encoder.layers[0].fc1.weight.mul_(2)
    tuned.generation_config.num_beams = 9
    tuned.save_pretrained(str(tmp_path / "tuned"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tmp_path / "hf" / name, tmp_path / "tuned" / name)
    cards = [
        load_model(imported(tmp_path / name, tmp_path / f"{name}-back", "huggingface")).card for name in ("hf", "tuned")
    ]
    assert cards[0].scores and not cards[1].scores and cards[1].decoding["beam_size"] == 9
    assert (cards[1].src, cards[1].tgt) == ("en", "de") and cards[1].trained_on["corpus"] == "none"
    readmes = [(tmp_path / f"{name}-back" / "README.md").read_text(encoding="utf-8") for name in ("hf", "tuned")]
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    del config["heed"]["sha256 of weights"]  # an older Heed did not write it
    (tmp_path / "tuned" / "config.json").write_text(json.dumps(config))
    assert load_model(imported(tmp_path / "tuned", tmp_path / "older", "huggingface")).card == cards[0]
    assert ["trained with Heed" in readme for readme in readmes] == [True, False]


# Ids and texts

TEXTS = st.text(max_size=40) | st.lists(
    st.sampled_from([*ENGLISH[:9], PAD, BOS, EOS, "[symbol] x", "</s>", "<unk>", " ", "  ", "\n", "\t", "é", "日本"]),
    max_size=5,
).map("".join)


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tokenizers(request, tmp_path_factory) -> tuple[Tokenizer, object]:
    """Heed's, and the one that AutoTokenizer loads."""
    lines = ENGLISH + [text[::-1] for text in ENGLISH]
    tokenizer = train_tokenizer(lines, TokenizerSettings(kind=request.param, vocab_size=700))
    parent = tmp_path_factory.mktemp("tokenizers")
    exported(random_folder(parent / "model", tokenizer, n_layers=1), parent / "hf", "huggingface")
    return tokenizer, tokenizer_of(parent / "hf")


@pytest.mark.slow
@given(text=TEXTS)
@example(text=f"{PAD}{BOS} {EOS}")
@example(text=" ")
@settings(max_examples=n_examples(1000))
def test_texts_have_the_same_ids_whatever_they_spell(tokenizers, text):
    ours, reference = tokenizers
    ids = ours.encode(text) if text else []  # no space before nothing; Heed does not translate it
    assert reference(text).input_ids == [*ids, ours.special.eos]
    assert reference.decode([ours.special.bos, *ids, ours.special.eos], skip_special_tokens=True) == text


@given(ids=st.lists(st.integers(3, 600), max_size=12))
@settings(max_examples=n_examples(300))
def test_any_ids_have_the_same_text(tokenizers, ids):
    ours, reference = tokenizers
    assert reference.decode(ids, skip_special_tokens=True) == ours.decode(ids)


# Search


def with_search(folder, out, **settings: Any):
    """The folder with these settings of `generate`; None takes one away."""
    shutil.copytree(folder, out)
    path = out / "generation_config.json"
    changed = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))
    return out


def test_an_exports_settings_do_not_search_on_to_the_longest_output(number_tokenizer, tmp_path):
    decoding = {"beam_size": 4, "length_penalty": 1.0, "length_penalty_form": "average"}
    folder = trained_folder(tmp_path / "model", number_tokenizer, decoding=decoding, n_steps=150)
    exported(folder, tmp_path / "hf", "huggingface")
    tokenizer, model = tokenizer_of(tmp_path / "hf"), theirs(tmp_path / "hf")
    n_steps: list[int] = []
    model.model.decoder.register_forward_pre_hook(lambda *_: n_steps.append(1))
    for changes in ({}, {"early_stopping": "never"}):
        before = len(n_steps)
        for line in ENGLISH[:12]:  # a batch would take as many as its slowest line
            ids = tokenizer(line, return_tensors="pt").input_ids
            model.generate(input_ids=ids, max_length=40, **changes)
        n_steps[before:] = [len(n_steps) - before]
    assert n_steps[0] < 0.9 * n_steps[1], n_steps


def test_a_search_that_was_changed_in_an_exported_folder_is_taken(number_tokenizer, tmp_path):
    decoding = {"beam_size": 4, "length_penalty": 0.6, "max_tokens": 30}
    folder = random_folder(tmp_path / "model", number_tokenizer, decoding=decoding)
    exported(folder, tmp_path / "hf", "huggingface")
    # Untouched, or as earlier versions wrote it: Heed's own settings, with the paper's length penalty.
    own = load_model(folder).card
    for n, same in enumerate(({}, {"early_stopping": "never", "max_length": 512})):
        again = with_search(tmp_path / "hf", tmp_path / f"same{n}", **same)
        assert load_model(imported(again, tmp_path / f"same{n}-back", "huggingface")).card == own
    changed = with_search(tmp_path / "hf", tmp_path / "changed", num_beams=7, min_length=4)
    card = load_model(imported(changed, tmp_path / "changed-back", "huggingface")).card
    assert card.decoding["beam_size"] == 7 and card.decoding["min_tokens"] == 3
    assert card.decoding["max_tokens"] == 30 and card.trained_on == own.trained_on and not card.scores


def searched(folder, tmp_path, lines, **changes):
    """Heed's best hypotheses, and the ids and scores of `generate` with the folder's own settings."""
    exported(folder, tmp_path / "hf", "huggingface")
    loaded = load_model(folder)
    sources = loaded.tokenizer.encode_lines(lines)
    options = DecodingSettings(**({"max_tokens": 30, "max_extra_tokens": 30} | loaded.card.decoding | changes))
    ours = [found[0] for found in beam_search(loaded.model, sources, loaded.tokenizer.special, options)]
    batch = tokenizer_of(tmp_path / "hf")(lines, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    result = theirs(tmp_path / "hf").generate(**batch, max_length=31, return_dict_in_generate=True, output_scores=True)
    special = loaded.tokenizer.special
    found = [[i for i in row if i not in (special.pad, special.bos, special.eos)] for row in result.sequences.tolist()]
    return ours, found, result


@pytest.mark.parametrize("changes", [{}, {"share": "none", "positions": "sinusoid-halves", "output_bias": True}])
def test_greedy_generation_with_the_folders_own_settings_gives_heeds_ids(number_tokenizer, tmp_path, changes):
    folder = trained_folder(tmp_path / "model", number_tokenizer, decoding={"beam_size": 1}, **changes)
    ours, found, _ = searched(folder, tmp_path, ENGLISH[:40])
    assert [list(hypothesis.ids) for hypothesis in ours] == found


@pytest.mark.parametrize(("alpha", "early_stopping"), [(0.0, True), (0.6, False), (1.0, True)])
def test_a_beam_finds_heeds_best_hypothesis_with_heeds_score(number_tokenizer, tmp_path, alpha, early_stopping):
    decoding = {"beam_size": 4, "length_penalty": alpha, "length_penalty_form": "average"}
    decoding |= {"early_stopping": early_stopping}
    folder = trained_folder(tmp_path / "model", number_tokenizer, decoding=decoding)
    ours, found, result = searched(folder, tmp_path, ENGLISH[:24])
    assert [list(hypothesis.ids) for hypothesis in ours] == found
    assert sum(hypothesis.ended for hypothesis in ours) > 5
    # Both count the ids of an output with eos.
    scores = torch.tensor([hypothesis.score for hypothesis in ours])
    torch.testing.assert_close(result.sequences_scores, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone says what memory a process had")
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_an_import_holds_a_part_of_the_weights(number_tokenizer, tmp_path, file):
    folder = random_folder(tmp_path / "model", number_tokenizer, n_layers=6, d_model=512, d_ff=2048, n_heads=8)
    (tmp_path / "hf").mkdir()
    write_model(load_model(folder), tmp_path / "hf")
    write_hugging_face_tokenizer(number_tokenizer, tmp_path / "hf", max_positions=512)
    size = (folder / "model.safetensors").stat().st_size
    if file != "model.safetensors":  # which names one matrix three times, as torch.save does
        weights = load_file(tmp_path / "hf" / "model.safetensors")
        (tmp_path / "hf" / "model.safetensors").unlink()
        weights |= {
            "model.encoder.embed_tokens.weight": (table := weights["model.shared.weight"]),
            "lm_head.weight": table,
        }
        torch.save(weights, tmp_path / "hf" / file)
        del weights, table
    peak = peak_of(lambda: imported(tmp_path / "hf", tmp_path / "again", "huggingface"))
    assert size > 150_000_000 and peak < size / 3
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
