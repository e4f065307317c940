"""A model folder whose tokenizer is SentencePiece's works as any other, from Python and in every command."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.decoding.test_translator import random_model
from tests.end_to_end.test_command_line import assert_one_clear_line
from tests.text.test_sentencepiece import ENGLISH, GERMAN, trained

from heed.apps.visualization.trace import trace
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import ModelCard, load_model, save_model
from heed.parsing.parser import Parser
from heed.runtime.manifest import seal
from heed.text.sentencepiece import SentencePieceTokenizer, marian_tokenizer, opus_mt_tokenizer


@pytest.fixture(scope="module")
def joint(tmp_path_factory) -> SentencePieceTokenizer:
    """As of a model that Marian trained: pad and bos are eos."""
    path = tmp_path_factory.mktemp("spm") / "joint.spm"
    path.write_bytes(trained([*ENGLISH, *GERMAN], vocab_size=200))
    return marian_tokenizer(path, path)


@pytest.fixture(scope="module")
def separate(tmp_path_factory) -> SentencePieceTokenizer:
    """As OPUS-MT: a model a side, one table; pad is bos."""
    folder = tmp_path_factory.mktemp("opus")
    (folder / "source.spm").write_bytes(trained(ENGLISH, vocab_size=120))
    (folder / "target.spm").write_bytes(trained(GERMAN, vocab_size=150))
    tokenizers = [marian_tokenizer(folder / name, folder / name) for name in ("source.spm", "target.spm")]
    pieces = {piece for tokenizer in tokenizers for piece in tokenizer.tgt.table[2:]}
    table = ["</s>", "<unk>", *sorted(pieces), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    return opus_mt_tokenizer(folder)


@pytest.fixture(scope="module", params=["joint", "separate"])
def folder(request, tmp_path_factory) -> Path:
    tokenizer = request.getfixturevalue(request.param)
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(path, random_model(len(tokenizer)), tokenizer, ModelCard(src="en", tgt="de"))
    return path


def test_a_saved_model_translates_scores_and_shows_as_it_did_before(folder):
    loaded = load_model(folder)
    tokenizer = loaded.tokenizer
    settings = DecodingSettings(max_extra_tokens=5)
    translator = Translator(loaded.model, tokenizer, settings)
    lines = [*ENGLISH[:20], "", "日本 two", "\0"]
    first = translator.translate(lines, n_best=3)
    assert [t.source for t in first] == lines and first[20].text == "" and all(t.text for t in first[:20])
    again = pickle.loads(pickle.dumps(translator)).translate(lines, n_best=3)  # noqa: S301  # a test's own
    assert again == first
    rows = translator.log_probs(ENGLISH[:5], GERMAN[:5])
    assert [len(row) for row in rows] == [len(ids) + 1 for ids in tokenizer.encode_targets(GERMAN[:5])]
    shown = trace(translator, ENGLISH[0], target=GERMAN[0])
    assert "".join(shown.cross.keys).removesuffix("</s>").replace("␣", "") == ENGLISH[0].replace(" ", "")
    assert "".join(shown.cross.queries).removesuffix("</s>").replace("␣", "") == GERMAN[0].replace(" ", "")
    sampled = translator.translate(ENGLISH[:3], sampling=SamplingSettings())
    assert all(t.text for t in sampled)


def test_a_prefix_begins_every_translation_and_must_be_known(folder):
    translator = Translator.load(folder, max_extra_tokens=5)
    assert all(t.text.startswith("zwei") for t in translator.translate(ENGLISH[:3], prefix="zwei"))
    with pytest.raises(HeedError, match="the prefix '日本' holds text that the model's vocabulary lacks"):
        translator.translate(ENGLISH[:1], prefix="日本")


def test_the_ids_of_a_search_are_of_the_vocabulary_and_not_special(joint):
    from heed.decoding.beam import beam_search

    model = random_model(len(joint))
    with torch.no_grad():
        model.output.weight[joint.special.unk] *= 100  # as often as not the most probable by far
    for hypotheses in beam_search(model, joint.encode_lines(ENGLISH[:20]), joint.special, DecodingSettings(), n_best=4):
        for hypothesis in hypotheses:
            assert all(1 < i < len(joint) for i in hypothesis.ids)


def test_models_with_other_vocabularies_cannot_be_joined(joint, separate, tmp_path):
    for name, tokenizer in (("a", joint), ("b", separate)):
        save_model(tmp_path / name, random_model(len(tokenizer)), tokenizer, ModelCard(src="en", tgt="de"))
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    with pytest.raises(HeedError, match="another vocabulary"):
        Translator.load(tmp_path / "a", tmp_path / "b")
    both = Translator.load(tmp_path / "a", tmp_path / "c", precision="fp32")
    alone = Translator.load(tmp_path / "a", precision="fp32")
    assert [t.text for t in both.translate(ENGLISH[:3])] == [t.text for t in alone.translate(ENGLISH[:3])]


def test_a_parser_has_a_tokenizer_with_symbols(joint, tmp_path):
    card = ModelCard(src="en", tgt="trees", parsing={"leaves": "words"})
    save_model(tmp_path / "model", random_model(len(joint)), joint, card)
    with pytest.raises(HeedError, match="a parser's tokenizer has symbols"):
        Parser.load(tmp_path / "model")


def test_a_folder_without_the_package_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(HeedError, match=r"pip install 'heed-mt\[sentencepiece\]'"):
        load_model(folder)


def test_every_command_takes_such_a_model(folder, heed, tmp_path):
    for name, lines in (("en", ENGLISH[:4]), ("de", GERMAN[:4])):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    translated = heed("translate", folder, "--max-tokens", 9, stdin="\n".join([*ENGLISH[:4], ""]) + "\n")
    assert translated.returncode == 0 and translated.stdout.count("\n") == 5, translated.stderr
    scored = heed("score", folder, "--src", tmp_path / "en", "--tgt", tmp_path / "de")
    assert scored.returncode == 0 and scored.stdout.count("\n") == 4, scored.stderr
    evaluated = heed("evaluate", folder, "--src", tmp_path / "en", "--ref", tmp_path / "de")
    assert evaluated.returncode == 0 and "BLEU" in evaluated.stdout, evaluated.stderr
    shown = heed("attention", folder, ENGLISH[0], "--out", tmp_path / "page.html")
    assert shown.returncode == 0 and (tmp_path / "page.html").stat().st_size > 1000, shown.stderr
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    file = json.loads((damaged / "tokenizer.json").read_text(encoding="utf-8"))
    file["special"]["unk"] = 10**6
    (damaged / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    seal(damaged)
    done = heed("translate", damaged, stdin="two\n")
    assert_one_clear_line(done, "tokenizer.json: unk is id 1000000")
