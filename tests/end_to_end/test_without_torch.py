"""Translation where PyTorch is not installed: the same commands and bytes as where it is."""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from heed.backends.cpu.build import library

PROJECT = Path(__file__).parents[2]
MODELS = PROJECT / "tests" / "golden" / "models"
MODEL = MODELS / "byte-pairs"
LINES = "twenty one\nnine hundred three\n\nseven\n"
TARGETS = "einundzwanzig\nneunhundertdrei\nsieben\nsieben\n"
# Python imports this at its start. It hides the packages that come with heed-mt[train].
HIDING = """
import sys
import venv

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "jaxtyping"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
# What `translate` and `serve` may load of these: whatever a start-up imports, its user waits for.
SLOW_PACKAGES = ("torch", "jaxtyping", "sacrebleu", "matplotlib", "ctranslate2", "transformers", "sentencepiece")

pytestmark = pytest.mark.skipif(library() is None, reason="without Heed's kernels a search needs PyTorch")


@pytest.fixture(scope="module")
def hiding(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hiding")
    (folder / "sitecustomize.py").write_text(HIDING)
    return folder


def run(*words: object, hiding: Path | None = None, given: str = LINES) -> subprocess.CompletedProcess:
    path = [str(hiding)] if hiding else []
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, input=given, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def both(hiding, heed) -> Callable[..., list[subprocess.CompletedProcess]]:
    """Runs a command without PyTorch, then with it."""

    def run_both(*words: object) -> list[subprocess.CompletedProcess]:
        ours = run("-m", "heed", *words, hiding=hiding)
        assert ours.returncode == 0, ours.stderr
        return [ours, heed(*words, stdin=LINES)]

    return run_both


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--precision", "fp32"],
        ["--n-best", "3", "--json"],
        ["--beam", "1", "--prefix", "neun"],
        ["--sample", "0.8", "--top-k", "9", "--n-best", "2", "--json"],
        ["--device", "cpu", MODEL],
    ],
    ids=["fp32", "n-best", "prefix", "samples", "two models"],
)
def test_a_translation_has_the_same_bytes_with_and_without_pytorch(options, both):
    ours, theirs = both("translate", MODEL, *options)
    assert ours.stdout and ours.stdout == theirs.stdout


@pytest.mark.slow
def test_scores_evaluations_documents_and_facts_need_no_pytorch(hiding, both, tmp_path):
    for name, text in (("s", LINES.replace("\n\n", "\nseven\n")), ("t", TARGETS), ("d.md", f"# Numbers\n\n{LINES}")):
        (tmp_path / name).write_text(text)
    for words in (
        ["score", MODEL, "--src", tmp_path / "s", "--tgt", tmp_path / "t"],
        ["evaluate", MODEL, "--src", tmp_path / "s", "--ref", tmp_path / "t", "--tokenize", "none"],
        ["translate-file", MODEL, tmp_path / "d.md", tmp_path / "OUT.md"],
        ["info", MODEL, "--json"],
    ):
        ours, theirs = both(*words)
        assert ours.stdout == theirs.stdout
    facts = json.loads(run("-m", "heed", "doctor", "--json", hiding=hiding).stdout)
    assert "pip install 'heed-mt[train]'" in facts["torch"]["version"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["huggingface", "ctranslate2", "marian"])
def test_other_programs_models_are_read_and_written_as_with_pytorch(program, hiding, heed, tmp_path):
    model = MODELS / ("one-sentencepiece" if program == "marian" else "byte-pairs")
    options = {"with": heed, "without": partial(run, "-m", "heed", hiding=hiding)}
    for name, command in options.items():
        done = command("export", model, tmp_path / name, "--to", program)
        assert done.returncode == 0, done.stderr
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.suffix != ".npz"}
        for name in options
    )
    assert ours == theirs or program == "ctranslate2"  # whose README names the folder
    if program == "ctranslate2":
        assert ours["model.bin"] == theirs["model.bin"]
        return
    for name, command in options.items():
        back = command("import", tmp_path / name, tmp_path / f"{name}-back", "--from", program)
        assert back.returncode == 0, back.stderr
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "with-back" / name).read_bytes() == (tmp_path / "without-back" / name).read_bytes()
    if program == "huggingface":
        (tmp_path / "without" / "model.safetensors").rename(tmp_path / "without" / "pytorch_model.bin")
        refused = options["without"]("import", tmp_path / "without", tmp_path / "again")
        assert refused.returncode == 1 and refused.stderr.splitlines()[-1].endswith(
            "pytorch_model.bin: a pickle, which only PyTorch reads, and it is not installed: pip install "
            "'heed-mt[train]', or take the model as model.safetensors."
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["attention", MODEL, "two", "--out", "OUT.html"],
        ["train", "multi30k-en-de", "--run", "OUT"],
        ["translate", MODEL, "--device", "cuda"],
        ["translate", MODELS / "radius"],
        ["paper", "table1"],
    ],
    ids=["attention", "training", "another device", "a network that is not covered", "the paper's tables"],
)
def test_what_needs_pytorch_says_so_in_one_line(words, hiding, tmp_path):
    words = [tmp_path / word if str(word).startswith("OUT") else word for word in words]
    done = run("-m", "heed", *words, hiding=hiding)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "heed: this needs PyTorch, which is not installed: pip install 'heed-mt[train]'."
    )


@pytest.mark.slow
def test_a_search_loads_no_package_that_it_does_not_use(tmp_path):
    """Also where all are installed."""
    program = (
        "import sys\nsys.argv = ['heed', 'translate', sys.argv[1]]\n"
        "from heed.apps.commands import app\nfrom heed.apps.cli.process import _run\n_run(app, sys.argv[1:])\n"
        "import heed.apps.serving.server\nprint(*sys.modules, file=sys.stderr)"
    )
    done = run("-c", program, MODEL)
    assert done.returncode == 0 and done.stdout, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    assert "heed.backends.cpu.search" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in SLOW_PACKAGES]
    assert not [name for name in loaded if name in ("heed.model.transformer", "heed.backends.dispatch")]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_pytorch_imported_before_or_after_shares_one_set_of_threads(order):
    """One OpenMP library is loaded, and computes for both."""
    program = f"""
        import sys, heed
        if {order == "before"}: import torch
        translator = heed.load({str(MODEL)!r}, precision="fp32")
        assert ("torch" in sys.modules) == {order == "before"}
        expected = translator.translate("seven").text
        import torch
        torch.mm(torch.ones(99, 99), torch.ones(99, 99))
        torch.set_num_threads(3)
        from heed.backends.cpu.build import search_team
        assert translator.translate("seven").text == expected
        maps = open("/proc/self/maps").read().split()
        print(len({{name for name in maps if "libgomp" in name or "libomp" in name}}))
        print(search_team(500, one_sentence=False)[0])
    """
    done = run("-c", "\n".join(line[8:] for line in program.splitlines()))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["1", "3"]


@pytest.mark.soak
def test_what_pip_installs_without_extras_translates_and_is_small(tmp_path):
    """In an environment of its own, with the packages that an index offers."""
    environment, source = tmp_path / "venv", tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    venv.create(environment, with_pip=True)
    program = environment / "bin" / "python"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([program, "-m", "pip", "install", "--quiet", "--no-compile", source], env=own, check=True)
    size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file() and "/pip" not in str(file))
    assert size < 200e6
    command = [environment / "bin" / "heed", "translate", MODEL]
    done = subprocess.run(command, input=LINES, env=own, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == run("-m", "heed", "translate", MODEL).stdout
    assert subprocess.run([program, "-c", "import torch"], env=own, capture_output=True).returncode == 1
