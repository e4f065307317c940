"""make soak: tests that take too long for make test, in parts that can be run alone.

    python -m tests.soak                     # all parts
    python -m tests.soak fuzz load           # some

Each part adds a row to docs/lab/soak.md. Ends with exit status 1 if one has failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from heed.runtime.device import processor
from tests.fuzzing import TARGETS

PROJECT = Path(__file__).parents[1]
REPORT = PROJECT / "docs" / "lab" / "soak.md"
AVX2 = {"HEED_ISA": "avx2"}  # as on a processor with AVX2 and no more
SIDE_BY_SIDE = ["-n", "2", "--dist", "loadfile"]
CORE = [f"tests/{name}" for name in ("backends", "data", "decoding", "golden", "model", "runs", "training")]
PAGES = [f"tests/end_to_end/test_{name}.py" for name in ("documentation", "examples", "extending")]
MORE_PAGES = [
    "tests/apps/exchange/test_guide.py",
    "tests/apps/paper/test_figures.py",
    "tests/end_to_end/test_installed.py",
]
LOAD = "--model tests/golden/models/byte-pairs --src tests/golden/half/texts/dev.en"
LOADS = (["--memory", "10000"], ["--hostile", "10"])


@dataclass(frozen=True)
class Command:
    """A program, with its arguments and what it adds to the environment."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def tests(*words: str, **environment: str) -> Command:
    return Command(["-m", "pytest", *words], {"OMP_NUM_THREADS": "1"} | environment)


def kills(*words: str) -> Command:
    return Command(["benchmarks/kill_series.py", *words])


PARTS = {
    "kills": [
        kills("--kills", "15", "--longest", "4"),
        kills("--kills", "5", "--longest", "4", "--signal", "TERM"),
        kills("--kills", "6", "--longest", "8", "--workers", "2", "--steps", "1000"),
    ],
    "torchrun": [tests("tests/end_to_end/test_torchrun.py", HEED_KILLS="5")],
    "cluster": [tests("tests/apps/cluster", HEED_KILLS="5", HEED_OUTAGE="60")],
    "shards": [tests("tests/data/shards/test_kills.py", HEED_KILLS="10")],
    "lost": [tests("tests/end_to_end/test_nothing_is_lost.py", "tests/end_to_end/test_a_users_things.py")],
    "training": [tests("-m", "soak", "tests/training")],
    "fuzz": [tests(*SIDE_BY_SIDE[:2], "tests/test_fuzz.py", HEED_FUZZ="2000")],
    "guided": [Command(["-m", "tests.fuzzing", target]) for target in TARGETS],
    "readers": [tests("-m", "soak", *SIDE_BY_SIDE[:2], "tests/apps/documents/test_linear.py")],
    "clients": [tests("-m", "soak", "tests/apps/serving/test_clients.py")],
    "instructions": [
        tests("-m", "soak", "tests/backends"),
        tests(*SIDE_BY_SIDE, "-m", "not slow and not soak", *CORE, **AVX2),
        tests(*SIDE_BY_SIDE, "-m", "not slow and not soak", *CORE, HEED_KERNELS="0"),
    ],
    "gpu": [tests("-m", "soak", "tests/gpu")],
    "properties": [
        tests("-m", "hypothesis and not soak", *SIDE_BY_SIDE, "--hypothesis-profile=many", HEED_SHAPES="all")
    ],
    "documentation": [tests("-m", "soak", *PAGES, *MORE_PAGES)],
    "benchmarks": [tests("tests/end_to_end/test_benchmarks.py")],
    "load": [Command(["benchmarks/serve_load.py", *LOAD.split(), *more]) for more in LOADS],
}


def run(part: str) -> bool:
    """Runs a part, adds its row to the report, and returns whether it passed."""
    started, results, passed = time.monotonic(), [], True
    for command in PARTS[part]:
        words = [sys.executable, *command.words]
        given = " ".join(f"{name}={value}" for name, value in command.environment.items())
        print(f"{given} {' '.join(words)}".strip(), flush=True)
        environment = os.environ | command.environment
        done = subprocess.run(words, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            lines = [json.dumps(json.loads(done.stdout))]
        except ValueError:
            lines = done.stdout.strip().splitlines() or ["nothing said"]
        print("\n".join(lines[-30:]), flush=True)
        passed &= done.returncode == 0
        results.append(
            re.sub(r"^=+ | in [\d.:]+s.*", "", lines[-1]) if done.returncode == 0 else f"FAILED: {lines[-1]}"
        )
    minutes = (time.monotonic() - started) / 60
    row = [str(date.today()), commit(), f"{os.cpu_count()} × {processor()}", part, f"{minutes:.1f}", "; ".join(results)]
    with REPORT.open("a", encoding="utf-8") as report:
        report.write("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |\n")
    return passed


def commit() -> str:
    """The checked-out commit, and whether anything else than the report was changed since."""
    options = {"cwd": PROJECT, "capture_output": True, "text": True, "check": True}
    name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **options).stdout.strip()
    others = f":!{REPORT.relative_to(PROJECT)}"
    changed = subprocess.run(["git", "status", "--porcelain", "--", ".", others], **options).stdout
    return name + (" and changes" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parts = parser.parse_args().parts or list(PARTS)
    failed = [part for part in parts if not run(part)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
