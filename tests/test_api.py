"""heed.train and heed.load, as a script uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import heed
from heed.text.numbers import english, german, number_splits
from tests.runs.test_start_from import write_model
from tests.samples import sample

RECIPE = sample("numbers.toml")


@pytest.fixture
def recipe(tmp_path) -> Path:
    splits = number_splits(n_train=200, n_dev=10, n_test=10)
    for name, numbers in vars(splits).items():
        for suffix, words in (("en", english), ("de", german)):
            (tmp_path / f"{name}.{suffix}").write_text("".join(f"{words(number)}\n" for number in numbers))
    (tmp_path / "numbers.toml").write_text(RECIPE)
    return tmp_path / "numbers.toml"


@pytest.mark.slow
def test_train_calls_back_with_what_it_logs_and_returns_what_it_made(recipe, tmp_path):
    steps: list[heed.StepRecord] = []
    validations: list[heed.ValidationRecord] = []
    run = tmp_path / "run"
    trained = heed.train(str(recipe), str(run), on_step=steps.append, on_validation=validations.append)

    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [entry for entry in entries if entry["kind"] == "train"]
    assert [record.step for record in steps] == [2, 4, 6]
    for record, entry in zip(steps, logged, strict=True):
        assert vars(record) == {name: entry[name] for name in vars(record)}
    assert [record.step for record in validations] == [3, 6]
    assert {"loss", "perplexity", "greedy_bleu"} == validations[0].numbers.keys()

    assert [evaluation.name for evaluation in trained.evaluations] == [
        f"{name} ({model})" for model in ("best checkpoint", "last checkpoint") for name in ("dev", "numbers")
    ]
    assert trained.model == run / "model"
    assert heed.load(str(trained.model)).translate(["forty-two", ""])[1].text == ""


@pytest.mark.slow
def test_an_exception_of_a_callback_ends_the_run_and_the_next_call_resumes_it(recipe, tmp_path):
    def give_up(record: heed.ValidationRecord) -> None:
        raise InterruptedError(f"at {record.step}")

    lines: list[str] = []
    settings = heed.read_recipe(recipe, ["training.max_steps=9"])
    once = heed.train(settings, tmp_path / "whole")
    with pytest.raises(InterruptedError, match="at 3"):
        heed.train(settings, tmp_path / "run", on_validation=give_up)
    twice = heed.train(settings, tmp_path / "run", report=lines.append)
    weights = [(trained.model / "model.safetensors").read_bytes() for trained in (once, twice)]
    assert weights[0] == weights[1]
    # The last checkpoint, which is also the best, is translated with once; its scores are both models'.
    assert len([line for line in lines if line.startswith("Translating numbers with the ")]) == 1
    of_model, of_last = (
        {name: value for name, value in evaluation.numbers().items() if name != "name"}
        for evaluation in (twice.evaluations[1], twice.evaluations[3])
    )
    assert of_model == of_last


def test_a_wrong_recipe_is_a_heed_error_before_any_work(tmp_path):
    with pytest.raises(heed.HeedError, match="did you mean multi30k-en-de"):
        heed.train("multi30k-ende", tmp_path / "run")
    assert not (tmp_path / "run").exists()


WRONG = {  # what a program may write → what the error says
    't.translate(["two", None, "three"])': "texts[1] is of type NoneType",
    "t.translate([None])": "texts[0] is of type NoneType",
    't.translate(["two", float("nan")])': "texts[1] is of type float",
    't.translate(("two", 5))': "texts[1] is of type int",
    't.translate(iter(["two", None]))': "texts[1] is of type NoneType",
    't.translate(b"two")': "expected a list of texts",
    "t.translate(3)": "expected a list of texts",
    'list(t.stream(["two", 5]))': "every one must be a text",
    't.log_probs(["two"], [[None]])': "targets[0][0] is of type NoneType",
    't.attention("two", None)': "texts[1] is of type NoneType",
    "heed.Architecture(layers=1)": "Architecture: unknown setting layers; did you mean n_layers?",
    "heed.Architecture(d_model=16, n_heads=3)": "Architecture: d_model=16 is not a multiple of n_heads=3",
    "heed.DecodingSettings(beam_size=0)": "setting beam_size",
    'heed.Recipe(data={"src": "en", "tgt": "de", "bogus": 3})': "unknown setting data.bogus",
    "heed.load(None)": "found NoneType",
    'heed.bleu(["a"], [None])': "references[0] is of type NoneType",
    'heed.bleu(["a"], ["a"], tokenize="x")': "unknown tokenisation 'x'",
    'heed.read_recipe("multi30k-en-de", [None])': "overrides[0] is of type NoneType",
    'heed.evaluate(t, ["two"], ["zwei", "drei"])': "1 sources, 2 references",
    'heed.average("nowhere", 0)': "expected a number from 1",
    'heed.export("nowhere", "out", "x")': "expected huggingface",
    'heed.import_("nowhere", "out", "x")': "expected huggingface or marian",
    'heed.import_("opus-mt-en-de", "out")': "to download it: heed import opus-mt-en-de",
    't.translate("two", target=5)': "target is of type int",
    'heed.compare({"a": ["x"], "b": ["x", "y"]}, ["b"])': "b: 2 lines, 1 references",
    "heed.Transformer(5, vocab_size=9)": "arch is of type int",
    "heed.Transformer(heed.Architecture(), 0)": "vocab_size is 0; expected a number of ids",
    'heed.train_tokenizer(["a"], 600)': "expected TokenizerSettings",
    "heed.read_recipe(5)": "recipe is of type int",
    'heed.train("multi30k-en-de", "runs/x", on_step=5)': "on_step is of type int",
}
PROGRAM = """
import json, sys, heed
t, said = heed.load(sys.argv[1]), {}
for line in json.load(sys.stdin):
    try:
        said[line] = repr(eval(line))
    except heed.HeedError as error:
        said[line] = f"HeedError: {error}"
    except Exception as error:
        said[line] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def test_a_wrong_value_in_a_program_is_a_heed_error_of_one_line(tmp_path, number_tokenizer):
    """In a process of its own, where nothing else checks types."""
    write_model(tmp_path, number_tokenizer)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, input=json.dumps([*WRONG]), capture_output=True, text=True, check=True)
    for line, said in json.loads(done.stdout).items():
        assert said.startswith("HeedError: ") and WRONG[line] in said and "\n" not in said, (line, said)


def test_names_are_those_of_the_verbs_and_representations_are_short(tmp_path, number_tokenizer):
    write_model(tmp_path, number_tokenizer)
    translator = heed.load(tmp_path)
    assert dir(heed) == sorted(heed.__all__)
    assert repr(heed.Architecture(n_layers=2)) == "Architecture(n_layers=2)"
    assert "alternatives" not in repr(translator.translate("two", n_best=3))
    assert "cross: (1, " in repr(translator.attention("two", "zwei"))
    assert heed.evaluate(translator, ["two"], ["zwei"]).n_lines == 1
    assert heed.bleu(["a b c d"], ["x"], ["a b c d"]).value == pytest.approx(100)


class Board:
    """A tracker with the interface that Trackio and Weights & Biases share, which keeps what it is told."""

    Table = dict

    def __init__(self):
        self.started: dict[str, object] = {}
        self.logged: list[tuple[int | None, dict[str, object]]] = []
        self.ended = 0

    def init(self, **about):
        self.started = about

    def log(self, numbers, step=None):
        self.logged.append((step, numbers))

    def finish(self):
        self.ended += 1


@pytest.mark.slow
def test_a_tracker_gets_settings_curves_and_sample_translations_and_is_always_ended(recipe, tmp_path):
    board, steps = Board(), []
    heed.train(recipe, tmp_path / "run", track=board, project="numbers", on_step=lambda r: steps.append(r.step))
    assert board.started["project"] == "numbers" and board.started["config"]["training"]["max_steps"] == 6
    curves = [(step, set(numbers)) for step, numbers in board.logged[:-1]]
    assert [step for step, names in curves if "train/loss" in names] == steps == [2, 4, 6]
    assert [step for step, names in curves if "dev/greedy_bleu" in names] == [3, 6]
    samples = board.logged[-1][1]["samples"]
    known = heed.load(tmp_path / "run" / "model").examples
    assert [row[0] for row in samples["data"]] == known and len(known) == 3 and board.ended == 1

    def give_up(record: heed.StepRecord) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        heed.train(recipe, tmp_path / "other", track=board, on_step=give_up)
    assert board.ended == 2
