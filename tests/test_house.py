"""The shape of the house: public names, what imports torch, that commands in the README exist; and its size.

python -m tests.test_house prints the lines of each room beside the most that it may have.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import heed
from heed.backends.cpu.build import state
from heed.runs.recipes import recipe_names

PROJECT = Path(__file__).resolve().parents[1]
SRC = PROJECT / "src" / "heed"
# The most lines of Python of each room. A change that needs more raises the figure, and its commit says why.
ROOMS = {
    "apps/bench": 920,
    "apps/cli": 790,
    "apps/cluster": 1_350,
    "apps/comparison": 960,
    "apps/corpora": 120,
    "apps/documents": 9_443,
    "apps/exchange": 2_780,
    "apps/paper": 2_190,
    "apps/parsing": 180,
    "apps/serving": 4_500,
    "apps/training": 400,
    "apps/translation": 450,
    "apps/visualization": 600,
    "backends": 6_070,
    "data": 6_990,
    "decoding": 2_400,
    "evaluation": 570,
    "leases": 1_320,
    "model": 1_400,
    "model_folder": 580,
    "parsing": 1_830,
    "runs": 2_680,
    "runtime": 1_580,
    "text": 2_440,
    "training": 3_194,
    "tests": 41_303,
}
MOST_LINES_BESIDE_ROOMS = 960  # apps/commands.py and the files directly in src/heed
MOST_OPTIONS = 334  # of all commands, as docs/reference/commands.md lists them
MOST_SETTINGS = 107  # of a recipe, as docs/reference/settings.md lists them
LONGEST_FUNCTION = 60  # lines
# The options of a command are its parameters, one or more lines each, and so are those of what Python's users call.
COMMANDS = {
    "apps/bench/command.py:bench_train": 73,
    "apps/cluster/command.py:back_translate": 61,
    "apps/comparison/command.py:compare": 100,
    "apps/documents/command.py:translate_file": 67,
    "apps/parsing/command.py:parse": 63,
    "apps/serving/command.py:serve": 107,
    "apps/training/command.py:train": 100,
    "apps/translation/command.py:evaluate": 63,
    "apps/translation/command.py:translate": 126,
    "apps/visualization/command.py:attention": 75,
    "apps/comparison/statistics.py:compare": 80,
    "decoding/translator.py:stream": 112,
}
# A loop with its steps, or one text from top to bottom: in parts, what they share would be handed on by each.
LOOPS_AND_TEXTS = {
    "apps/bench/decoding_speed.py:decoding_speed": 62,
    "apps/documents/folders.py:translate_folder": 68,
    "apps/documents/formats/markdown_inlines.py:read_inlines": 80,  # a case for each kind of token
    "apps/paper/equations.py:page": 67,
    "backends/gpu/triton_losses.py:_consistent": 74,  # a kernel of a GPU
    "data/corpora/own_recipe.py:own_recipe": 61,
    "data/inspection/inspection.py:inspect_text": 84,  # one pass over a corpus
    "decoding/beam.py:search": 68,
    "decoding/distinct.py:distinct_search": 73,
    "runs/train.py:train_files": 62,
    "training/trainer.py:train": 67,
}


def test_public_names_load_and_importing_heed_imports_no_torch():
    assert all(getattr(heed, name) is not None for name in heed.__all__)
    assert set(heed.__all__) <= set(dir(heed))
    with pytest.raises(AttributeError, match="no attribute 'transformer'"):
        _ = heed.transformer
    code = "import sys, heed; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_type_checkers_see_every_public_name_where_it_is_loaded_from():
    source = ast.parse((PROJECT / "src" / "heed" / "__init__.py").read_text(encoding="utf-8"))
    typed = {}
    for statement in ast.walk(source):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("heed."):
            for name in statement.names:
                assert name.asname == name.name  # what makes it public for a checker
                typed[name.name] = statement.module
    assert typed == heed._HOMES


def test_defaults_of_settings_are_named_so_that_type_checkers_see_them():
    """Without pydantic's plugin a checker takes `Field(1)` for a setting that has no default (PEP 681)."""
    for path in (PROJECT / "src").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Field":
                assert not call.args, f"{path}, line {call.lineno}: write Field(default=…)"


def test_the_version_is_that_of_the_package_and_the_command_prints_it(heed, tmp_path):
    import heed as library

    with (PROJECT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["version"]
    assert library.__version__ == declared
    assert heed("--version").stdout == f"heed {declared}\n"
    # Code that was never installed has no metadata; beside src/heed an installation may have left some.
    (tmp_path / "heed").symlink_to(PROJECT / "src" / "heed")
    code = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; import heed; print(heed.__version__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "0+unknown"


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("c++"), reason="needs Linux and a C++ compiler")
def test_the_kernels_are_there_wherever_they_can_be():
    """Without them their tests are skipped, so this one says why."""
    assert os.environ.get("HEED_KERNELS") == "0" or state() == "Heed's kernels" or "AVX-512" in state(), state()


def test_the_core_is_read_in_an_afternoon():
    """The files that docs/explain/reading.md names, in its table."""
    page = (PROJECT / "docs" / "explain" / "reading.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \d+ \| `([\w/]+\.py)`", page, flags=re.MULTILINE)
    assert len(files) == 13
    assert sum(len((PROJECT / "src" / "heed" / name).read_bytes().splitlines()) for name in files) <= 2700


def test_every_recipe_that_is_named_exists():
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    named = [
        (recipe, page)
        for page in pages
        for recipe in re.findall(r"heed train ([a-z][\w-]+)(?=[ `\n])", page.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    for recipe, page in named:
        assert recipe in recipe_names(), f"{page}: {recipe}"


def test_no_room_outgrows_its_budget():
    lines = _lines_of_rooms()
    assert {room: n for room, n in lines.items() if n > ROOMS[room]} == {}
    beside = _lines(SRC) - sum(n for room, n in lines.items() if room != "tests")
    assert beside <= MOST_LINES_BESIDE_ROOMS, "a new room needs a budget"


def test_scripts_and_styles_of_pages_hold_one_thing_each():
    parts = [path for path in SRC.rglob("*") if path.suffix in (".html", ".css", ".js")]
    assert len(parts) > 10 and all(len(path.read_bytes().splitlines()) <= 300 for path in parts)


def test_options_and_settings_are_as_many_as_was_agreed():
    reference = PROJECT / "docs" / "reference"  # which tests/test_docs.py holds to the code
    for page, most in (("commands.md", MOST_OPTIONS), ("settings.md", MOST_SETTINGS)):
        rows = re.findall(r"^\| `", (reference / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert 0 < len(rows) <= most, page


def test_functions_are_short():
    longer = {}
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                n_lines = node.end_lineno - node.lineno + 1
                if n_lines > LONGEST_FUNCTION:
                    longer[f"{path.relative_to(SRC).as_posix()}:{node.name}"] = n_lines
    assert longer == COMMANDS | LOOPS_AND_TEXTS


def test_no_call_has_more_than_four_arguments_without_names():
    """But PyTorch's own (forward), programs of Triton, and commands, whose options have names."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "forward":
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")]
                few = len(names) <= 4 or path.name in ("command.py", "options.py", "triton_losses.py")
                assert few, f"{path}, line {node.lineno}: put * before {names[-1]}"


def test_a_docstring_can_be_read_alone():
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                begins = (ast.get_docstring(node) or "").startswith(("Of ", "As ", "Those ", "The same "))
                assert not begins, f"{path}, line {node.lineno}: say what it is or returns"


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def _lines_of_rooms() -> dict[str, int]:
    return {room: _lines(PROJECT / room if room == "tests" else SRC / room) for room in ROOMS}


if __name__ == "__main__":
    for room, n in _lines_of_rooms().items():
        sys.stdout.write(f"{room:20} {n:7,} of {ROOMS[room]:7,} lines\n")
    sys.stdout.write(f"{'all of src/heed':20} {_lines(SRC):7,}\n")
