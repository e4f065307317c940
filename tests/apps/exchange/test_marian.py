"""A model that Marian trained gives Marian's own translations; what Heed writes is the same model to Marian."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.apps.exchange.folders import ENGLISH, exported, imported, model_bytes, random_folder, trained_folder
from tests.text.test_sentencepiece import GERMAN

from heed.apps.exchange.marian import SETTINGS
from heed.decoding.beam import Hypothesis, beam_search
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source, maximum_length
from heed.errors import HeedError
from heed.model_folder import ModelFolder, load_model
from heed.text.sentencepiece import marian_tokenizer

LIKE_MARIAN = {"positions": "sinusoid-t2t", "decoder_start": "zero"}
# Marian ends an output at three times its source, eos counted on both sides.
LENGTHS = {"max_length_factor": 3.0, "max_extra_tokens": 10_000}


# A model that Marian trained


@pytest.fixture(scope="module")
def theirs(data_folder) -> Path:
    folder = data_folder / "marian"
    if not folder.is_dir():
        pytest.skip("no model of Marian's in the data folder")
    return folder


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory) -> Path:
    return imported(theirs, tmp_path_factory.mktemp("marian") / "model", "marian")


def searched(loaded: ModelFolder, lines: list[str], **options) -> list[Hypothesis]:
    sources = loaded.tokenizer.encode_lines(lines)
    settings = DecodingSettings(**LENGTHS, **options)
    return [found[0] for found in beam_search(loaded.model, sources, loaded.tokenizer.special, settings)]


def best_of(path: Path) -> tuple[list[str], list[float]]:
    """The best text of each line in a list of n-best translations, and its score."""
    best: dict[str, tuple[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        number, text, _, score = (part.strip() for part in line.split("|||"))
        best.setdefault(number, (text, float(score)))
    texts, scores = zip(*best.values(), strict=True)
    return list(texts), list(scores)


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("greedy", {"beam_size": 1, "length_penalty_form": "none"}, 1.0),
        ("beam4", {"beam_size": 4, "length_penalty_form": "none"}, 0.99),
        ("beam4-normalize1", {"beam_size": 4, "length_penalty_form": "average", "length_penalty": 1.0}, 0.99),
    ],
)
def test_translations_and_scores_are_marians(theirs, ours, name, options, share):
    texts, scores = best_of(theirs / f"{name}.nbest")
    lines = (theirs / "src.en").read_text(encoding="utf-8").splitlines()[: len(texts)]
    loaded = load_model(ours)
    found = searched(loaded, lines, **options)
    same = [loaded.tokenizer.decode(one.ids) == text for one, text in zip(found, texts, strict=True)]
    assert sum(same) >= share * len(texts)
    for is_same, one, score in zip(same, found, scores, strict=True):
        # Marian prints six digits of a sum of fp32 log-probabilities, some of which are 1e-7.
        assert not is_same or abs(one.score - score) <= 1e-3 * max(1.0, abs(score))


def test_its_settings_are_the_models(ours):
    loaded = load_model(ours)
    assert loaded.card.decoding["beam_size"] == 12 and loaded.card.decoding["length_penalty_form"] == "none"
    assert loaded.card.decoding["max_length_factor"] == 3
    assert loaded.model.arch.decoder_start == "zero" and loaded.model.arch.share == "all"


def test_a_model_that_returns_to_marian_has_the_same_arrays(theirs, ours, tmp_path):
    messages = exported(ours, tmp_path / "marian", "marian")
    assert len(messages) == 1  # nothing is lost, but the check is reported
    with np.load(theirs / "model.npz") as first, np.load(tmp_path / "marian" / "model.npz") as second:
        assert set(first.files) == set(second.files)
        for name in set(first.files) - {SETTINGS}:
            assert first[name].dtype == second[name].dtype and np.array_equal(first[name], second[name]), name
    again = imported(tmp_path / "marian", tmp_path / "again", "marian")
    assert model_bytes(again) == model_bytes(ours)


def test_a_folder_its_settings_and_its_arrays_are_one_model(theirs, ours, tmp_path):
    for number, path in enumerate([theirs / "model.npz.decoder.yml", theirs / "model.npz"]):
        assert model_bytes(imported(path, tmp_path / str(number), "marian")) == model_bytes(ours)


# Models that Marian did not train


def translator(folder: Path):
    pymarian = pytest.importorskip("pymarian")
    options = {"beam_size": 1, "normalize": 0, "max_length_factor": 3, "n_best": True, "cpu_threads": 1, "quiet": True}
    return pymarian.Translator(config=str(folder / "model.npz.decoder.yml"), **options)


def greedy(marian, lines: list[str]) -> tuple[list[str], list[float]]:
    """One line a batch, as Heed's fp32 does not depend on the batch and Marian's does."""
    found = [[part.strip() for part in marian.translate([line])[0].split("|||")] for line in lines]
    return [text for _, text, _, _ in found], [float(score) for _, _, _, score in found]


def assert_same_scores(found: list[Hypothesis], scores: list[float]) -> None:
    for one, score in zip(found, scores, strict=True):
        assert abs(one.log_prob - score) <= 1e-3 * max(1.0, abs(score))


@pytest.mark.parametrize(
    "changes",
    [
        {"share": "tgt", "n_layers": 2, "n_decoder_layers": 1, "activation": "swish", "attention_bias": True},
        {"share": "none", "output_bias": True, "d_ff": 30},
    ],
    ids=["tgt-swish", "none-relu"],
)
def test_marian_translates_an_exported_model_as_heed_does(separate, tmp_path, changes):
    folder = trained_folder(tmp_path / "model", separate, **LIKE_MARIAN, **changes)
    exported(folder, tmp_path / "marian", "marian")
    loaded = load_model(folder)
    found = searched(loaded, ENGLISH[:50], beam_size=1)
    texts, scores = greedy(translator(tmp_path / "marian"), ENGLISH[:50])
    assert [separate.decode(one.ids) for one in found] == texts
    assert any(one.ended for one in found)
    assert_same_scores(found, scores)
    back = load_model(imported(tmp_path / "marian", tmp_path / "back", "marian"))
    assert back.tokenizer == separate
    if changes["share"] == "none":  # as older versions have it
        arrays = dict(np.load(tmp_path / "marian" / "model.npz"))
        arrays["decoder_ff_logit_out_W"] = arrays.pop("decoder_ff_logit_out_Wt").T
        np.savez(tmp_path / "marian" / "model.npz", **arrays)
        old = imported(tmp_path / "marian", tmp_path / "old", "marian")
        assert model_bytes(old) == model_bytes(tmp_path / "back")
    with torch.inference_mode():
        src, tgt = torch.tensor([[5, 9, 7, 0]]), torch.tensor([[0, 8, 12]])
        mask = torch.ones_like(src, dtype=torch.bool)
        assert torch.equal(back.model(src, mask, tgt), loaded.model(src, mask, tgt))


@pytest.mark.parametrize("output_bias", [False, True])
def test_marian_translates_pieces_of_heeds_own_tokenizer(number_tokenizer, tmp_path, output_bias):
    folder = trained_folder(tmp_path / "model", number_tokenizer, **LIKE_MARIAN, output_bias=output_bias)
    messages = exported(folder, tmp_path / "marian", "marian")
    assert "give it lines of pieces" in messages[0]
    names = number_tokenizer.id_names()
    lines = [" ".join(names[i] for i in number_tokenizer.encode(line)) for line in ENGLISH[:50]]
    found = searched(load_model(folder), ENGLISH[:50], beam_size=1)
    texts, scores = greedy(translator(tmp_path / "marian"), lines)
    assert [" ".join(names[i] for i in one.ids) for one in found] == texts
    assert_same_scores(found, scores)


def test_the_limit_of_lengths_is_never_lower_than_heeds_and_what_is_lost_is_said(separate, tmp_path):
    decoding = {"max_extra_tokens": 50, "min_tokens": 3, "early_stopping": True}
    folder = random_folder(tmp_path / "model", separate, decoding=decoding, n_layers=1, share="tgt", **LIKE_MARIAN)
    messages = exported(folder, tmp_path / "marian", "marian")
    assert [message for message in messages if message.startswith("Marian has no")] == [
        "Marian has no min_tokens, which is 3 in the model's search settings.",
        "Marian has no early_stopping, which is True in the model's search settings.",
    ]
    back = load_model(imported(tmp_path / "marian", tmp_path / "back", "marian")).card.decoding
    ours, theirs = DecodingSettings(**decoding), DecodingSettings(**back)
    for n in (1, 2, 10, 500):
        assert maximum_length(Source(0, [5] * n), theirs) >= maximum_length(Source(0, [5] * n), ours)


def test_a_decoders_settings_that_change_no_translation_are_taken_and_others_named(separate, tmp_path):
    decoding = {"length_penalty": 1.0, "length_penalty_form": "average"}
    folder = random_folder(tmp_path / "model", separate, decoding=decoding, n_layers=1, share="tgt", **LIKE_MARIAN)
    exported(folder, tmp_path / "marian", "marian")
    yml = tmp_path / "marian" / "model.npz.decoder.yml"
    plain = yml.read_text()
    neutral = "max-length: 1000\nmax-length-crop: false\nshortlist: []\noutput-sampling: []\nmini-batch: 16\n"
    expected = load_model(imported(yml, tmp_path / "plain", "marian")).card
    for n, (text, message) in enumerate(
        (
            (plain + neutral, None),
            (
                plain.replace("word-penalty: 0", "word-penalty: -0.5"),
                "word-penalty -0.5 only shifts Marian's scores, since normalize is 1",
            ),
            (
                plain + "shortlist: [lex.gz, 50, 50]\nmax-length: 20\nmax-length-crop: true\nallow-unk: true\n",
                "no max-length-crop (True), allow-unk (True), max-length (20), shortlist (['lex.gz', 50, 50]); its",
            ),
        )
    ):
        yml.write_text(text)
        messages: list[str] = []
        found = imported(yml, tmp_path / f"found{n}", "marian", messages=messages)
        assert load_model(found).card == expected
        assert len(messages) == bool(message) and (message or "") in "".join(messages)
    yml.write_text(plain.replace("normalize: 1.0\nword-penalty: 0", "normalize: 0.6\nword-penalty: 0.5"))
    with pytest.raises(HeedError, match="word-penalty is 0.5, which Heed does not have"):
        imported(yml, tmp_path / "refused", "marian")


@pytest.mark.parametrize("piece", ["🙂", '"', "\\", "a: b", "\x85", "\u2028", "#", "'", "\x7f", "𝄞 x"])
def test_a_table_of_any_pieces_is_read_as_it_was_written(separate, tmp_path, piece):
    table = ["</s>", "<unk>", *(f"word{i}" for i in range(10)), piece, "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    tokenizer = marian_tokenizer(tmp_path / "vocab.json", tmp_path / "vocab.json")
    exported(random_folder(tmp_path / "model", tokenizer, n_layers=1, **LIKE_MARIAN), tmp_path / "marian", "marian")
    assert load_model(imported(tmp_path / "marian", tmp_path / "back", "marian")).tokenizer.src.pieces == table


@pytest.mark.slow
def test_marian_ignores_its_option_for_learned_positions_and_names_norms_as_we_say(tmp_path):
    """Why Heed refuses learned positions and imports post-norm alone; a Marian that changes shows here."""
    pymarian = pytest.importorskip("pymarian")
    for name, lines in (("en", ENGLISH), ("de", GERMAN[: len(ENGLISH)])):
        (tmp_path / f"train.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    pymarian.Trainer(
        f"--type transformer --train-sets {tmp_path}/train.en {tmp_path}/train.de --model {tmp_path}/model.npz "
        f"--vocabs {tmp_path}/v.en.yml {tmp_path}/v.de.yml --dim-emb 32 --enc-depth 1 --dec-depth 1 --after 1u "
        "--transformer-heads 4 --transformer-dim-ffn 48 --transformer-train-position-embeddings --max-length 64 "
        "--cpu-threads 1 --workspace 200 --tied-embeddings --mini-batch 8 --quiet"
    ).train()
    with np.load(tmp_path / "model.npz") as arrays:
        assert not any("pos" in name.lower() for name in arrays.files)
    loaded = load_model(imported(tmp_path / "model.npz.decoder.yml", tmp_path / "model", "marian"))
    found = searched(loaded, ENGLISH[:5], beam_size=1)
    texts, scores = greedy(translator(tmp_path), ENGLISH[:5])
    assert [loaded.tokenizer.decode(one.ids) for one in found] == texts
    assert_same_scores(found, scores)
