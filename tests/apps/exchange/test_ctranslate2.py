"""CTranslate2 gives an exported model's greedy translations; the Python in the folder's README is one of them."""

import json
import subprocess
import sys

import pytest
from tests.apps.exchange.folders import ENGLISH, exported, random_folder, trained_folder
from tests.text.test_sentencepiece import GERMAN, trained

from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.decoding.translator import Translator
from heed.model_folder import load_model
from heed.text.segmentation import BOS
from heed.text.sentencepiece import SentencePieceTokenizer, marian_tokenizer

ctranslate2 = pytest.importorskip("ctranslate2")
NETWORKS = [
    {},
    {"decoder_start": "zero", "positions": "sinusoid-t2t", "share": "tgt"},
    {"norm": "pre", "share": "none", "n_layers": 2, "n_decoder_layers": 1},
    {"activation": "gelu", "attention_bias": True, "positions": "sinusoid-halves"},
    {"activation": "swish", "output_bias": True, "norm": "pre", "decoder_start": "zero"},
    {"positions": "learned", "max_positions": 64},
]
N_TOKENS = 30


def search(folder, lines):
    """Heed's greedy ids."""
    loaded = load_model(folder)
    options = DecodingSettings(beam_size=1, max_tokens=N_TOKENS, max_extra_tokens=100)
    sources = loaded.tokenizer.encode_lines(lines)
    return [found[0] for found in beam_search(loaded.model, sources, loaded.tokenizer.special, options)]


def searched_by_them(out, sources, *, barred=()):
    model = ctranslate2.Translator(str(out), compute_type="float32")
    results = model.translate_batch(
        sources,
        beam_size=1,
        max_decoding_length=N_TOKENS,
        min_decoding_length=0,
        disable_unk=True,
        suppress_sequences=[[token] for token in barred],
    )
    return [result.hypotheses[0] for result in results]


@pytest.mark.parametrize("changes", NETWORKS, ids=lambda changes: "-".join(map(str, changes.values())) or "paper")
def test_greedy_translations_are_the_same(number_tokenizer, tmp_path, changes):
    folder = trained_folder(tmp_path / "model", number_tokenizer, **changes)
    messages = exported(folder, tmp_path / "ct2", "ctranslate2")
    assert "gives the same log-probabilities" in messages[0]
    names = number_tokenizer.id_names()
    eos = number_tokenizer.special.eos
    sources = [[names[i] for i in (*number_tokenizer.encode(line), eos)] for line in ENGLISH]
    found = search(folder, ENGLISH)
    assert sum(hypothesis.ended for hypothesis in found) > 20
    assert searched_by_them(tmp_path / "ct2", sources, barred=[BOS]) == [[names[i] for i in one.ids] for one in found]


def test_a_vocabulary_a_side_is_kept(separate, tmp_path):
    folder = trained_folder(tmp_path / "model", separate, share="tgt", decoder_start="zero")
    exported(folder, tmp_path / "ct2", "ctranslate2")
    sources = [[separate.src.table[i] for i in separate.encode(line)] for line in ENGLISH]
    expected = [[separate.tgt.table[i] for i in one.ids] for one in search(folder, ENGLISH)]
    assert searched_by_them(tmp_path / "ct2", sources) == expected


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> SentencePieceTokenizer:
    """Tables of words, as Marian has them without SentencePiece."""
    folder = tmp_path_factory.mktemp("words")
    for name, lines in (("src", ENGLISH), ("tgt", GERMAN)):
        table = ["</s>", "<unk>", *sorted({word for line in lines for word in line.split()} | {"A", "sentence."})]
        (folder / f"{name}.yml").write_text("".join(f"{json.dumps(w)}: {i}\n" for i, w in enumerate(table)))
    return marian_tokenizer(folder / "src.yml", folder / "tgt.yml")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "beam"), [("own", 4), ("sentencepiece", 1), ("words", 4)])
def test_the_python_in_the_readme_prints_heeds_translation(number_tokenizer, separate, words, tmp_path, kind, beam):
    tokenizer = {"own": number_tokenizer, "sentencepiece": separate, "words": words}[kind]
    decoding = {"beam_size": beam, "early_stopping": True, "length_penalty_form": "average", "length_penalty": 1.0}
    changes = {} if kind == "own" else {"share": "tgt"}
    folder = trained_folder(tmp_path / "model", tokenizer, decoding=decoding, n_steps=150, **changes)
    exported(folder, tmp_path / 'demo "ct2"', "ctranslate2")
    code = (tmp_path / 'demo "ct2"' / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (expected,) = Translator.load(folder, precision="fp32").translate(["A sentence."])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode("utf-8") == f"{expected.text}\n" and expected.text


def test_the_readme_asks_for_no_position_that_the_model_lacks(number_tokenizer, tmp_path):
    decoding = {"beam_size": 1, "early_stopping": True, "max_extra_tokens": 20}
    changes = {"positions": "learned", "max_positions": 64, "n_layers": 1}
    folder = random_folder(tmp_path / "model", number_tokenizer, decoding=decoding, **changes)
    exported(folder, tmp_path / "ct2", "ctranslate2")
    readme = (tmp_path / "ct2" / "README.md").read_text(encoding="utf-8")
    assert "max_input_length=45, max_decoding_length=64" in readme
    code = readme.split("```python\n")[1].split("```")[0].replace("A sentence.", "two hundred " * 50)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60, check=True)


def test_a_piece_does_not_become_a_line_of_the_readme(tmp_path):
    folder, source = tmp_path / "spm", [">>fra\nimport os # <<", *ENGLISH]
    folder.mkdir()
    for name in ("src", "tgt"):
        (folder / f"{name}.spm").write_bytes(trained(source, vocab_size=200, user_defined_symbols=source[:1]))
    model = random_folder(tmp_path / "model", marian_tokenizer(folder / "src.spm", folder / "tgt.spm"))
    exported(model, tmp_path / "ct2", "ctranslate2")
    assert "import os" not in (tmp_path / "ct2" / "README.md").read_text(encoding="utf-8")


def test_another_rule_of_stopping_is_said(number_tokenizer, tmp_path):
    for beam, early, said in ((4, False, True), (4, True, False), (1, False, False)):
        decoding = {"beam_size": beam, "early_stopping": early, "length_penalty_form": "average"}
        folder = random_folder(tmp_path / f"model-{beam}-{early}", number_tokenizer, n_layers=1, decoding=decoding)
        messages = exported(folder, tmp_path / f"ct2-{beam}-{early}", "ctranslate2")
        assert any("early_stopping = true" in message for message in messages) is said


def test_eight_bits_load_and_translate(number_tokenizer, tmp_path):
    folder = trained_folder(tmp_path / "model", number_tokenizer, d_model=64, n_heads=4)
    exported(folder, tmp_path / "float", "ctranslate2")
    exported(folder, tmp_path / "int8", "ctranslate2", int8=True)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float", "int8")]
    assert sizes[1] < 0.5 * sizes[0]
    model = ctranslate2.Translator(str(tmp_path / "int8"))
    assert "int8" in model.compute_type
    names = number_tokenizer.id_names()
    source = [names[i] for i in (*number_tokenizer.encode(ENGLISH[0]), number_tokenizer.special.eos)]
    assert model.translate_batch([source])[0].hypotheses[0]
