"""The documentation: links lead somewhere, the generated pages are those of the code, what is named exists."""

import importlib.util
import json
import re
import subprocess
from datetime import date
from pathlib import Path
from types import ModuleType, NoneType
from typing import get_args

import pytest
from benchmarks import report
from typer.main import get_command

import heed
from heed.apps.commands import app
from heed.config import Settings
from heed.runs.recipe import Recipe

PROJECT = Path(__file__).resolve().parents[1]
PROSE = {"is", "on", "and", "or", "for", "to", "has", "reads", "takes"}  # after the word "heed" at a line's beginning
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """docs/generate.py, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("generate", PROJECT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_that_the_documentation_names_exists():
    commands = get_command(app).commands
    texts = [page for page in PAGES if "lab" not in page.parts and page.name != "CHANGELOG.md"] + sorted(
        (PROJECT / "examples").rglob("*.[im][pd]*")
    )
    found = {
        (page.name, verb, name)
        for page in texts
        for verb, name in re.findall(
            r"(?:`|\$ |\n|\| )heed ([a-z][a-z-]+)(?: ([a-z]+[0-9]?)\b)?(?![./-])", page.read_text(encoding="utf-8")
        )
    }
    assert len(found) > 50
    for page, verb, name in found:
        assert verb in commands or verb in PROSE, (page, verb)
        if inner := getattr(commands.get(verb), "commands", {}):
            assert not name or name in inner, (page, verb, name)


@pytest.mark.parametrize("page", ["settings.md", "commands.md", "python.md", "../explain/paper-in-code.md"])
def test_the_reference_is_what_the_code_says(generate, page):
    written = (PROJECT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page](), "run: python docs/generate.py"


def test_the_results_are_those_of_their_file_a_row_a_claim():
    written = (PROJECT / "docs" / "results.md").read_text(encoding="utf-8")
    results = json.loads(report.SOURCE.read_text(encoding="utf-8"))
    assert written == report.page(results), "run: python -m benchmarks.report"
    assert len(written.splitlines()) <= 150
    for section in results["sections"]:
        for claim in section["claims"]:
            assert re.fullmatch("[0-9a-f]{7}", claim["commit"]), claim
            assert date.fromisoformat(claim["date"]) and claim["value"] and claim["command"], claim


def test_measurements_on_a_gpu_become_claims_once():
    results = json.loads(report.SOURCE.read_text(encoding="utf-8"))
    device = {"name": "NVIDIA H100 80GB HBM3", "bytes": 85 * 10**9}
    about = {"commit": "9c8791f0", "date": "2026-12-01", "devices": [device], "cores": 16, "python": "3.12"}
    speed = {"target_tokens_per_second": 600_000.0, "step_seconds": 0.04}
    parts = {
        "versions": about | {"torch": "2.11.0"},
        "train-base": speed,
        "r-drop-base": {"step_seconds": 0.1},
        "torch-base": {"base": {"target_tokens_per_second": 200_000.0}},
        "decode-512-4-base": {"target_tokens_per_second": 50_000.0, "dtype": "bf16"},
        "ctranslate2-512-4-base": {
            "ct2-bf16": {"target_tokens_per_second": 40_000.0},
            "ct2-fp16": {"target_tokens_per_second": 100_000.0},
            "heed-bf16": {"target_tokens_per_second": 300_000.0},
        },
        "losses": {"losses": {}, "fp32 on the device against the CPU (bound: 1e-5)": 4e-7},
        "tests": {"tests": 9, "on a real GPU": 4, "failed": ["test_a[real]"], "skipped": ["test_b[emulated]"]},
    }
    for _ in range(2):
        report.add(results, parts)
    page = report.page(results)
    for line in (
        "| base on a GPU | **600,000 (3.00 times)** | 550,000: met | 200,000, PyTorch's module, bf16 | "
        "H100 80GB HBM3 | `9c8791f` | 2026-12-01 | `heed bench train --preset base` |",
        "| base, two passes on a GPU, step time against one | **2.50 times** | 2.3: missed | – |",
        "| base on a GPU, bf16, beam 4, 512 sentences | **50,000 (0.50 times)** | 100,000: missed | "
        "100,000, CTranslate2 (ct2-fp16) |",
        "| fp32 losses of 20 steps on a GPU against a CPU's, relative difference | **4.0e-07** | 1e-05: met |",
        "| Tests of the GPU's code that pass on a real one | **3 of 4** |",
    ):
        assert page.count(line) == 1, line
    assert "Nobody has run the paper's own result" in page and "search of 512 sentences" not in page
    run = {
        "versions": parts["versions"] | {"devices": [device] * 8},
        "processes": 8,
        "rehearsal": False,
        "model": "base",
        "steps": 100_000,
        "training_seconds": 3600.0,
        "energy": {"kwh": 5.0},
        "scores": {"newstest2014": {"paper_bleu": 27.5, "bleu": 26.4}},
    }
    report.add(results, run)
    page = report.page(results)
    assert "| **27.50** | 27.3: met | 27.3, Vaswani et al. 2017 | 8 × H100 80GB HBM3 |" in page
    assert "| **1.0 h, 5.0 kWh** |" in page and "Nobody has run" not in page
    for no_result in (run | {"rehearsal": True}, {"versions": parts["versions"] | {"devices": []}}):
        with pytest.raises(SystemExit):
            report.add(results, no_result)


def test_the_page_of_settings_names_every_setting_and_default():
    page = (PROJECT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    for table, field in Recipe.model_fields.items():
        section = page.split(f"## [{table}]")[1].split("\n## ")[0]
        kind = next((part for part in get_args(field.annotation) if part is not NoneType), field.annotation)
        assert isinstance(kind, type) and issubclass(kind, Settings)
        rows = re.findall(r"(?m)^\| `(\w+)` \| (.*?) \|", section)
        assert [name for name, _ in rows] == list(kind.model_fields)
        for name, shown in rows:
            setting = kind.model_fields[name]
            if setting.is_required():
                assert shown == "required"
            elif setting.get_default(call_default_factory=True) is None:
                assert shown == "not set"
            else:  # as a recipe writes it: Python's own form, but for quotes and capitals
                default = str(setting.get_default(call_default_factory=True))
                assert shown.strip('`"').lower() == default.lower(), name


def test_the_page_of_commands_names_every_verb_and_option(heed):
    page = (PROJECT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"(?ms)^## heed (\S.*?)\n(.*?)(?=^## |\Z)", page))
    assert {"demo", "train", "translate", "bench decode", "data list", "paper table1"} <= set(sections)
    for verb in ("train", "translate", "bench decode", "evalb"):
        shown = heed(*verb.split(), "--help").stdout
        assert set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"} <= set(
            re.findall(r"--[a-z][a-z-]+", sections[verb])
        )


def test_every_command_in_the_pages_exists_with_its_options():
    """docs/reference/commands.md, which names them, is held to the code above."""
    reference = (PROJECT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"(?ms)^## heed (\S.*?)\n(.*?)(?=^## |\Z)", reference))
    n_commands = 0
    for page in PAGES:
        for block in re.findall(r"(?s)```(?:sh|bash)\n(.*?)```", page.read_text(encoding="utf-8")):
            for command in re.findall(
                r"(?m)(?:^|\| |-m |bin/)heed ([a-z].*?)(?:#.*|\| .*)?$", block.replace("\\\n", " ")
            ):
                verb = next((verb for verb in sections if f"{command} ".startswith(f"{verb} ")), None)
                assert verb, f"{page}: heed {command}"
                options = set(re.findall(r"(?<= )--[a-z][a-z-]*", command))
                assert options <= set(re.findall(r"--[a-z][a-z-]*", sections[verb])), f"{page}: heed {command}"
                n_commands += 1
    assert n_commands > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_relative_link_leads_to_a_file_and_its_heading(page):
    for target in _links(page.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page}: {target}"
        if heading:
            assert heading in _anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def test_the_notebook_keeps_its_outputs_uses_public_names_and_names_sections_of_the_paper_in_code():
    path = PROJECT / "examples" / "attention_alive.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    # Format 4.5: each cell has an id of its own.
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names) and all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
    of_code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in of_code] == list(range(1, len(of_code) + 1))  # in one go
    assert all(output["output_type"] in ("stream", "display_data") for cell in of_code for output in cell["outputs"])
    assert all(cell["outputs"] for cell in of_code)
    code = "".join("".join(cell["source"]) for cell in of_code)
    assert "from heed" not in code and set(re.findall(r"heed\.(\w+)", code)) <= set(heed.__all__)
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert all((path.parent / target.partition("#")[0]).exists() for target in _links(text))
    # Every section names its section of the paper.
    named = [set(re.findall(r"\d(?:\.\d)+", heading)) for heading in re.findall("(?m)^## (.*)", text)]
    paper = (PROJECT / "docs" / "explain" / "paper-in-code.md").read_text(encoding="utf-8")
    assert len(named) > 4 and all(named)
    assert set().union(*named) <= set(re.findall(r"(?m)^## Section (\d(?:\.\d)*)", paper))


def test_every_page_of_docs_can_be_reached_from_the_index():
    start = PROJECT / "docs" / "index.md"
    seen, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for target in _links(page.read_text(encoding="utf-8")):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file not in seen:
                seen.add(file)
                waiting.append(file)
    assert {page for page in PAGES if (PROJECT / "docs") in page.parents} <= seen


def test_every_page_and_test_that_is_named_exists():
    """What the code says about docs/, and what the pages say about tests/ and benchmarks/."""
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git repository")
    for name in listed.splitlines():
        file = PROJECT / name
        if file.suffix not in (".py", ".toml", ".md", ".cpp", ".h") or not file.is_file():
            continue
        if name == "CHANGELOG.md" or name.startswith("docs/lab/"):  # what they tell of had other names then
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            named = re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.py\b", text)
        else:
            named = re.findall(r"\bdocs/[\w/-]+\.md\b", text)
        for path in named:
            assert (PROJECT / path).is_file(), f"{name} names {path}"


def _links(text: str) -> list[str]:
    """The relative targets of a page's links and images, without those in code."""
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(([^()\s]+)\)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def _anchors(text: str) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?s)```.*?```", "", text))
    anchors: set[str] = set()
    for heading in headings:
        anchor = base = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        number = 0
        while anchor in anchors:
            number += 1
            anchor = f"{base}-{number}"
        anchors.add(anchor)
    return anchors


def test_every_promise_of_the_security_page_names_a_test_that_exists():
    text = (PROJECT / "SECURITY.md").read_text(encoding="utf-8")
    numbered = dict(re.findall(r"(?m)^(\d+)\. `(tests/\S+)`$", text))
    named = {number for numbers in re.findall(r"\[([\d, ]+)\]\(#tests\)", text) for number in numbers.split(", ")}
    assert named == set(numbered)
    for name in [*numbered.values(), *re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", text)]:
        path, _, function = name.partition("::")
        assert not function or f"\ndef {function}(" in (PROJECT / path).read_text(encoding="utf-8"), name
        assert (PROJECT / path).is_file(), name
    table = text.partition("## What may come")[2].partition("\n\nHeed never")[0]
    for row in re.findall(r"(?m)^\| (?:\*\*|its|the same).*", table):
        assert row.endswith("](#tests) |"), row[:60]


def test_each_behaviour_of_another_program_names_a_test_a_script_or_a_guide_that_exists():
    page = (PROJECT / "docs" / "explain" / "other-programs.md").read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (PROJECT / "tests").rglob("test_*.py"))
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ") and "| what it does |" not in line]
    assert len(rows) > 40 and {len(row) for row in rows} == {3}
    for program, _, named in rows:
        tests, scripts = re.findall(r"`(test_\w+)`", named), re.findall(r"`(\w+\.sh)`", named)
        assert tests or scripts or "](../guides/" in named, program
        assert all(f"def {test}(" in sources for test in tests), program
        assert all((PROJECT / "findings" / script).is_file() for script in scripts), program
