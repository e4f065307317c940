"""Writes docs/results.md from benchmarks/results.json: a row a claim.

    python -m benchmarks.report

A new measurement replaces the value, commit, date and machine of its claim in the JSON file; what was not measured
again keeps them. How a figure came about is told in docs/lab/.
"""

import json
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "benchmarks" / "results.json"
PAGE = PROJECT / "docs" / "results.md"
HEAD = """# Results

The newest figure for each claim, with the machine, commit, date and command that it was measured with, and the target
that had been set, if any. The [lab notebook](lab/index.md) has the ranges, earlier figures and experiments.
`python -m benchmarks.report` writes this page from `benchmarks/results.json`.
"""
NOT_RUN = """Nobody has run the paper's own result yet ([WMT 2014, one command](guides/gpus.md#the-papers-own-result)),
except for a rehearsal on a CPU with a made corpus. Not measured yet: several GPUs, search of 512 sentences on a GPU,
laptops, Arm, macOS.
"""
COLUMNS = ("claim", "value", "target", "other program", "machine", "commit", "date", "command")


def page(results: dict[str, Any]) -> str:
    """The text of docs/results.md."""
    machines = results["machines"]
    parts = [HEAD]
    for section in results["sections"]:
        rows = [_row(claim, machines) for claim in section["claims"]]
        table = "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows])
        link = f"[How it was measured](lab/{section['lab']})."
        parts.append(f"## {section['title']}\n\n{' '.join(filter(None, (section['note'], link)))}\n\n{table}\n")
    described = "\n".join(f"- **{machine['name']}**: {machine['description']}" for machine in machines.values())
    setting = "Linux, Python 3.11.7, PyTorch 2.13.0 (CPU), 2 threads, unless the line says otherwise."
    parts.append(f"## Machines\n\n{setting}\n\n{described}\n")
    parts.append(NOT_RUN)
    return "\n".join(parts)


def _row(claim: dict[str, str], machines: dict[str, Any]) -> str:
    cells = [
        claim["claim"],
        f"**{claim['value']}**",
        claim["target"],
        claim["other"],
        machines[claim["machine"]]["name"],
    ]
    cells += [f"`{claim['commit']}`", claim["date"], f"`{claim['command']}`"]
    return f"| {' | '.join(cell or '–' for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(SOURCE.read_text(encoding="utf-8"))), encoding="utf-8")
