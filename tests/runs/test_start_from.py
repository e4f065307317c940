"""Training on from a given model: its weights, shape and vocabulary; what a recipe may not ask for next to it."""

import shutil
from pathlib import Path

import pytest
import torch

import heed
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, load_model, save_model
from heed.runs.recipe import read_recipe
from heed.text.numbers import english, german, number_splits
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.tokenizer import SpecialIds, Tokenizer
from tests.conftest import OTHERS
from tests.samples import sample

SHAPE = {"n_layers": 1, "d_model": 16, "d_ff": 24, "n_heads": 2, "dropout": 0.3}
RECIPE = sample("own.toml")


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    numbers = number_splits(n_train=60, n_dev=1, n_test=1).train
    for name, spelled in (("train.en", english), ("train.de", german)):
        (folder / name).write_text("".join(f"{spelled(number)}\n" for number in numbers), encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return folder / "mine.toml"


def write_model(
    folder: Path, tokenizer: Tokenizer | SentencePieceTokenizer, *, seed: int = 1, **shape: object
) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(Architecture(**SHAPE | shape), len(tokenizer), tokenizer.src_vocab_size)
    save_model(folder, model, tokenizer, ModelCard("en", "de"))
    return model


@pytest.mark.slow
def test_a_run_starts_from_the_given_weights_and_vocabulary(tmp_path, number_tokenizer):
    given = write_model(tmp_path / "given", number_tokenizer)
    recipe = write_recipe(tmp_path)
    said: list[str] = []
    losses: list[float] = []
    run = heed.train(
        recipe, tmp_path / "run", report=said.append, on_validation=lambda record: losses.append(record.numbers["loss"])
    )
    trained = load_model(run.model)
    assert trained.tokenizer == number_tokenizer
    # With a rate of nearly nothing the weights stay what they were.
    for ours, theirs in zip(trained.model.parameters(), given.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert trained.card.trained_on["started from"] == "given"
    assert any("Starting from the weights in" in line for line in said)
    assert not any("Learning" in line for line in said)
    # The shape is the given model's, the dropout the recipe's own.
    recipe.write_text(RECIPE + "[model]\nattention_dropout = 0.2\n", encoding="utf-8")
    read = read_recipe(recipe).model
    assert (read.d_model, read.n_layers, read.dropout, read.attention_dropout) == (16, 1, 0.3, 0.2)


@pytest.mark.slow
def test_a_run_resumes_without_the_model_that_it_started_from(tmp_path, number_tokenizer):
    write_model(tmp_path / "given", number_tokenizer)
    recipe = write_recipe(tmp_path)
    heed.train(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "given")
    more = read_recipe(tmp_path / "run", ["training.max_steps=3"])
    said: list[str] = []
    heed.train(more, tmp_path / "run", report=said.append)
    assert any("3" in line and "ended at step" in line for line in said)
    with pytest.raises(HeedError, match=r"training\.start_from was .*given', is .*other'; choose another --run"):
        heed.train(read_recipe(tmp_path / "run", ["training.start_from=other"]), tmp_path / "run")


@pytest.mark.slow
def test_a_run_keeps_its_vocabulary_when_its_data_and_the_given_model_are_gone(tmp_path, number_tokenizer):
    """Its text alone would give another. It was stopped before its first checkpoint."""
    write_model(tmp_path / "given", number_tokenizer)
    run = tmp_path / "run"
    heed.train(write_recipe(tmp_path), run)
    (run / "checkpoints" / "2").rename(run / "checkpoints" / "stopped")
    shutil.rmtree(run / "checkpoints" / "1")
    shutil.rmtree(run / "data")
    shutil.rmtree(tmp_path / "given")
    said: list[str] = []
    trained = heed.train(read_recipe(run, ["training.max_steps=3"]), run, report=said.append)
    assert load_model(trained.model).tokenizer == number_tokenizer
    assert any(line.startswith("Resumed from step 2 ") for line in said)
    assert not any("Learning" in line or "Starting from" in line for line in said)


def test_a_recipe_may_have_the_name_of_a_runs_own(tmp_path, number_tokenizer):
    write_model(tmp_path / "given", number_tokenizer)
    assert read_recipe(write_recipe(tmp_path).rename(tmp_path / "config.toml")).model.d_model == 16


@pytest.mark.slow
def test_a_model_of_another_program_is_trained_on(tmp_path):
    """With every option of other Transformers, and words as its pieces: a vocabulary a side."""
    numbers = number_splits(n_train=60, n_dev=1, n_test=1).train
    sides = (
        sorted({word for number in numbers for word in spelled(number).split(" ")}) for spelled in (english, german)
    )
    codes = [">>deu<<", ">>fra<<"]  # of two targets, which no line begins with
    src, tgt = (Vocabulary(pieces=["</s>", "<unk>", *codes, *words]) for words in sides)
    tokenizer = SentencePieceTokenizer(src, tgt, SpecialIds(0, 0, 0, 1))
    assert tokenizer.src_vocab_size != len(tokenizer)
    write_model(tmp_path / "given", tokenizer, share="tgt", **OTHERS)
    text = RECIPE.replace("max_steps = 2", "max_steps = 40").replace(
        "factor = 1e-12", "factor = 2.0\nwarmup_steps = 20"
    )
    losses: list[float] = []
    said: list[str] = []
    run = heed.train(
        write_recipe(tmp_path, text),
        tmp_path / "run",
        report=said.append,
        on_validation=lambda record: losses.append(record.numbers["loss"]),
    )
    assert losses[-1] < 0.8 * losses[0]
    (of_dev,) = (line for line in said if line.startswith("Remark: dev: ") and "no code" in line)
    assert "60 of 60 sources begin with no code of a target language (>>deu<<, >>fra<<)" in of_dev
    loaded = load_model(run.model)
    assert loaded.tokenizer == tokenizer and loaded.model.arch.norm == "pre"
    assert isinstance(heed.load(run.model).translate(["one hundred"])[0].text, str)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[tokenizer]\nvocab_size = 900\n", r"start_from brings a vocabulary of its own; leave out"),
        ("[model]\nd_model = 32\n", r"model\.d_model is 32, but .*given has 16; leave it out"),
        ('[model]\nactivation = "gelu"\n', r"model\.activation is 'gelu', but .*given has 'relu'; leave it out"),
    ],
)
def test_a_recipe_that_asks_for_another_model_is_refused(tmp_path, number_tokenizer, change, message):
    write_model(tmp_path / "given", number_tokenizer)
    with pytest.raises(HeedError, match=message):
        read_recipe(write_recipe(tmp_path, RECIPE + change))


@pytest.mark.slow
def test_what_is_no_model_or_another_one_than_before_is_refused(tmp_path, number_tokenizer):
    recipe = write_recipe(tmp_path)
    with pytest.raises(HeedError, match=r"given: no such folder; expected a model folder"):
        read_recipe(recipe)
    write_model(tmp_path / "given", number_tokenizer)
    read = read_recipe(recipe)
    other = read.model.model_copy(update={"d_ff": 30})
    with pytest.raises(HeedError, match=r"model\.d_ff is 30, but training\.start_from \(.*given\) has 24"):
        heed.train(read.model_copy(update={"model": other}), tmp_path / "run")
    same = read.model.model_copy(update={"n_encoder_layers": read.model.encoder_layers, "d_k": read.model.key_width})
    heed.train(read.model_copy(update={"model": same}), tmp_path / "same")
    # Interrupted before its first checkpoint, and the model has been replaced by one of another vocabulary.
    prepared = tmp_path / "run" / "data"
    heed.train(read, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    words = Vocabulary(pieces=["</s>", "<unk>", "a"])
    shutil.rmtree(tmp_path / "given")
    write_model(tmp_path / "given", SentencePieceTokenizer(words, words, SpecialIds(0, 0, 0, 1)))
    with pytest.raises(HeedError, match=f"{prepared}: prepared with another vocabulary than training.start_from;"):
        heed.train(read, tmp_path / "run")


def test_symbols_need_a_vocabulary_that_has_them(tmp_path, number_tokenizer):
    write_model(tmp_path / "given", number_tokenizer)
    text = RECIPE.replace("[training]", "tgt_symbols = true\n[training]")
    with pytest.raises(HeedError, match=r"the vocabulary of training\.start_from has no target symbols"):
        heed.train(read_recipe(write_recipe(tmp_path, text)), tmp_path / "run")
