"""docs/guides/exchange.md: its commands and its Python, run in the order of the page on small models."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heed.apps.exchange.convert import export
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.numbers import english, german, number_splits
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.sentencepiece_model import SentencePieceModel
from heed.text.tokenizer import SpecialIds

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "exchange.md").read_text(encoding="utf-8")
SHAPE = {"n_layers": 1, "d_model": 16, "d_ff": 24, "n_heads": 2}
NUMBERS = number_splits(n_train=400, n_dev=1, n_test=1).train


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory) -> SentencePieceModel:
    sentencepiece = pytest.importorskip("sentencepiece")
    prefix = tmp_path_factory.mktemp("spm") / "joint"
    lines = [line for number in NUMBERS for line in (english(number), german(number))]
    # As Marian trains it: eos is the first id, and there are no bos and no pad.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), minloglevel=2,
        vocab_size=120, eos_id=0, unk_id=1, bos_id=-1, pad_id=-1,
    )  # fmt: skip
    return SentencePieceModel.read(prefix.with_suffix(".model"))


@pytest.fixture
def folder(tmp_path, sentencepiece_model, number_tokenizer) -> Path:
    """What the page takes for granted: a downloaded OPUS-MT model, one that Marian trained, the demo's, and text."""
    pieces = [*sentencepiece_model.pieces, "<pad>"]
    table = Vocabulary(model=sentencepiece_model, pieces=pieces)
    opus = SentencePieceTokenizer(table, table, SpecialIds(pad=120, bos=120, eos=0, unk=1))
    own = Vocabulary(model=sentencepiece_model)
    marian = SentencePieceTokenizer(own, own, SpecialIds(pad=0, bos=0, eos=0, unk=1))
    others = {"activation": "swish", "attention_bias": True, "output_bias": True}
    for name, tokenizer, changes in (
        ("opus", opus, {**others, "positions": "sinusoid-halves"}),
        ("marian", marian, {**others, "positions": "sinusoid-t2t", "decoder_start": "zero"}),
        ("runs/demo/model", number_tokenizer, {}),
    ):
        torch.manual_seed(1)
        model = Transformer(Architecture(**SHAPE, **changes), len(tokenizer))
        save_model(tmp_path / name, model, tokenizer, ModelCard("en", "de"))
    export(tmp_path / "opus", tmp_path / "opus-mt-en-de", "huggingface", report=print)
    export(tmp_path / "marian", tmp_path / "marian-en-de", "marian", report=print)
    for name in ("mine", "dev"):
        for language, spelled in (("en", english), ("de", german)):
            text = "".join(f"{spelled(number)}\n" for number in NUMBERS[:40])
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    recipe = re.search(r"(?s)```toml\n(.*?)```", GUIDE)[1]
    (tmp_path / "finetune.toml").write_text(recipe.replace("max_steps = 500", "max_steps = 2"), encoding="utf-8")
    return tmp_path


@pytest.mark.soak
def test_every_command_and_program_of_the_guide_runs(heed, folder):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    n_run = 0
    for block in re.findall(r"(?s)```sh\n(.*?)```", GUIDE):
        for line in block.splitlines():
            before, bar, command = line.rpartition(" | ")
            words = shlex.split(command)
            if words[0] != "heed":
                assert line == "pip install 'heed-mt[exchange]'"
                continue
            done = heed(*words[1:], cwd=folder, stdin=f"{shlex.split(before)[1]}\n" if bar else "")
            assert done.returncode == 0, (line, done.stderr)
            assert "Not checked" not in done.stderr or "pymarian" in done.stderr
            n_run += 1
    assert n_run == 9
    for program in re.findall(r"(?s)```python\n(.*?)```", GUIDE):
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
