"""Heed as a user installs it: a wheel in an environment of its own, outside the source tree and away from it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.parsing.corpus import write_treebank

from heed.runs.recipe import preset_names
from heed.runs.recipes import recipe_names, recipe_text
from heed.text.numbers import english, german, number_splits

PROJECT = Path(__file__).resolve().parents[2]
SMALL = (
    "tokenizer.vocab_size=600",
    "model.n_encoder_layers=1",
    "model.n_decoder_layers=1",
    "model.d_model=16",
    "model.d_ff=32",
    "training.max_steps=4",
)
SET = [part for setting in SMALL for part in ("--set", setting)]
# What a script would call, with the types that a checker sees.
SCRIPT = '''
"""A user's script."""

from pathlib import Path

import torch

import heed


def show_step(record: heed.StepRecord) -> None:
    print(f"{record.step} {record.loss:.2f} {record.perplexity:.2f} {record.learning_rate:.1e}")


def show_validation(record: heed.ValidationRecord) -> None:
    print(record.step, record.numbers["loss"])


def train(run: str | Path) -> Path:
    recipe: heed.Recipe = heed.read_recipe("multi30k-en-de", ["training.max_steps=4"])
    settings: heed.TrainingSettings = recipe.training
    print(heed.__version__, settings.max_steps)
    trained: heed.TrainedRun = heed.train(recipe, run, on_step=show_step, on_validation=show_validation)
    evaluation: heed.Evaluation = trained.evaluations[0]
    print(evaluation.scores["bleu"].value + 1.0)
    return trained.model


def translate(folder: str | Path, texts: list[str]) -> list[str]:
    translator: heed.Translator = heed.load(folder, precision="int8", beam_size=8, length_penalty_form="average")
    weights: heed.AttentionWeights = translator.attention("a dog", "ein Hund")
    print(type(weights), translator.log_probs(["a dog"], ["ein Hund"])[0][0])
    drawn = heed.SamplingSettings(temperature=0.5)
    translations: list[heed.Translation] = translator.translate(texts, sampling=drawn)
    translations += translator.stream(iter(texts))
    score: heed.Score = heed.bleu([translation.text for translation in translations], texts)
    print(score.value, heed.chrf(texts, texts).signature)
    return [translation.text for translation in translations]


def parse(folder: str) -> heed.Parse:
    parser: heed.Parser = heed.Parser.load(folder)
    return parser.parse([["a", "dog", "runs"]])[0]


def search(lines: list[str]) -> list[heed.Hypothesis]:
    tokenizer: heed.Tokenizer = heed.train_tokenizer(lines, heed.TokenizerSettings(vocab_size=600))
    model = heed.Transformer(heed.Architecture(n_layers=1), len(tokenizer))
    special: heed.SpecialIds = tokenizer.special
    found = heed.beam_search(model, [tokenizer.encode("two")], special, heed.DecodingSettings(beam_size=2))
    parameter: torch.nn.Parameter = next(model.parameters())
    print(parameter.shape)
    return found[0]


def main() -> None:
    heed.tune_process()
    try:
        train("runs/script")
    except heed.Stopped as stop:
        print(stop.signal)
    except heed.HeedError as error:
        print(error)
'''
# What a checker must refuse, and the kind of error.
MISTAKES = {
    "heed.lode": "attr-defined",
    "heed.load(3)": "arg-type",
    'heed.load("m", beams=3)': "call-arg",
    'heed.load("m", beam_size="3")': "arg-type",
    'heed.load("m", length_penalty_form="mean")': "arg-type",
    'heed.Parser.load("m", early_stop=True)': "call-arg",
    'heed.load("m").translate("text", beams=3)': "call-overload",
    'heed.load("m").translate("text")[0]': "index",
    'heed.load("m").translate(["text"]).text': "attr-defined",
    'heed.train("r", "run", on_steps=print)': "call-arg",
    'heed.train("r", "run", on_step=lambda record: record.los)': "attr-defined",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy of the source: a build writes into the tree that it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, env=without_source(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def without_source() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A fresh virtual environment with the wheel. Its dependencies are those that are installed already.

    Packages of this environment come after its own; that a folder's .pth files, such as that of an editable Heed, are
    not read where another .pth file names it, is how Python's `site` works.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder outside the source tree with text to train on."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, numbers in vars(number_splits(n_train=300, n_dev=10, n_test=3)).items():
        for suffix, words in (("en", english), ("de", german)):
            (folder / f"{name}.{suffix}").write_text("".join(f"{words(number)}\n" for number in numbers))
    return folder


def run(environment: Path, place: Path, name: str, *arguments: object, stdin: str = "") -> str:
    command = [environment / "bin" / name, *map(str, arguments)]
    done = subprocess.run(command, cwd=place, env=without_source(), input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_that_runs_is_the_wheels(environment, place):
    code = "import heed, heed.apps.commands; print(heed.__file__, heed.apps.commands.__file__)"
    shown = run(environment, place, "python", "-c", code)
    assert all(Path(file).is_relative_to(environment) for file in shown.split())
    version = re.search(r'(?m)^version = "(.+)"', (PROJECT / "pyproject.toml").read_text())
    assert version and run(environment, place, "heed", "--version") == f"heed {version[1]}\n"
    assert next(environment.glob("lib/python*/site-packages/heed_mt-*.dist-info")).name.startswith(
        f"heed_mt-{version[1]}"
    )


def test_presets_recipes_and_sources_of_the_kernels_are_in_the_wheel(environment, place):
    listed = json.loads(run(environment, place, "heed", "recipe", "list", "--json"))
    assert [entry["name"] for entry in listed] == recipe_names() and len(listed) > 5
    assert run(environment, place, "heed", "recipe", "show", "parsing-gum") == recipe_text("parsing-gum")
    code = "from heed.runs.recipe import preset_names; print(*preset_names())"
    assert run(environment, place, "python", "-c", code).split() == preset_names()
    (package,) = environment.glob("lib/python*/site-packages/heed")
    for folder in PROJECT.rglob("src/heed/**/csrc"):
        copied = package / folder.relative_to(PROJECT / "src" / "heed")
        expected = {file.name for file in folder.iterdir() if file.suffix in (".h", ".cpp")}
        assert {file.name for file in copied.iterdir()} == expected and expected
    source = PROJECT / "src" / "heed"
    data = [each for each in source.rglob("*.*") if each.suffix in (".css", ".html", ".js", ".toml", ".txt", ".typed")]
    assert len(data) > 20 and all((package / each.relative_to(source)).is_file() for each in data)


def test_a_recipe_found_by_name_trains_a_parser(environment, place):
    write_treebank(place / "wsj")
    run(environment, place, "heed", "train", "parsing-wsj", *SET, "--mirror", ".")
    tree = run(environment, place, "heed", "parse", "runs/parsing-wsj/model", stdin="the dog sleeps .\n")
    assert re.sub(r"\(\S+ |\)", "", tree).split() == ["the", "dog", "sleeps", "."]


def test_a_copied_recipe_trains_on_own_text_and_its_model_translates(environment, place):
    text = run(environment, place, "heed", "recipe", "show", "multi30k-en-de")
    own = 'train = ["train.en", "train.de"]\ndev = ["dev.en", "dev.de"]\n'
    changed = re.sub('corpus = "multi30k"\nvariant = .*\n', own, text)
    assert changed != text
    (place / "my.toml").write_text(changed)
    run(environment, place, "heed", "train", "my.toml", *SET)
    translated = run(environment, place, "heed", "translate", "runs/my/model", stdin="forty-two\n\nseven\n").split("\n")
    assert len(translated) == 4 and translated[1] == translated[3] == ""
    code = "import heed; print(heed.load('runs/my/model').translate(['forty-two'])[0].text)"
    assert run(environment, place, "python", "-c", code) == f"{translated[0]}\n"


@pytest.mark.soak
def test_a_users_script_passes_mypy_strict_and_its_mistakes_do_not(environment, place):
    script = place / "script.py"
    (snippet,) = re.findall(r"(?s)```python\n(.*?)```", (PROJECT / "README.md").read_text(encoding="utf-8"))
    (place / "readme.py").write_text(snippet)
    mistakes = "".join(f"{mistake}\n" for mistake in MISTAKES)
    script.write_text(f"{SCRIPT}\n\n{mistakes}")
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
        *(f"--python-executable={environment / 'bin' / 'python'}", f"--cache-dir={place / 'cache'}"),
        *("script.py", "readme.py"),
    ]
    done = subprocess.run(command, cwd=place, env=without_source(), capture_output=True, text=True)
    first = SCRIPT.count("\n") + 3
    errors = re.findall(r"(?m)^(\S+?):(\d+): error: .*\[(\S+)\]$", done.stdout)
    errors = list(dict.fromkeys(errors))  # one mistake may be two errors
    assert errors == [("script.py", str(first + i), kind) for i, kind in enumerate(MISTAKES.values())], done.stdout
