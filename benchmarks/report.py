"""Writes docs/results.md from benchmarks/results.json: a row a claim.

    python -m benchmarks.report
    python -m benchmarks.report gpu-results/results.json runs/wmt14-en-de-base/record.json

Files that are named are results of gpu.sh or records of wmt14.sh, of a commit: their figures become claims of
benchmarks/results.json first. A new measurement replaces the value, commit, date and machine of its claim; what was not
measured again keeps them. How a figure came about is told in docs/lab/.
"""

import json
import sys
from collections.abc import Iterator
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
PAPERS_RUN = "benchmarks/wmt14.sh"
NOBODY = """Nobody has run the paper's own result yet ([WMT 2014, one command](guides/gpus.md#the-papers-own-result)),
except for a rehearsal on a CPU with a made corpus.
"""
MANY_SENTENCES = "512 sentences"
COLUMNS = ("claim", "value", "target", "other program", "machine", "commit", "date", "command")
# Set for an H100 before the measurement: the least target tokens/s, and the longest two passes in times of one.
H100_TARGETS = {"train-base": 550_000, "train-big": 260_000, "train-tiny": 800_000, "decode-512-4-base": 100_000}
H100_TWO_PASSES = 2.3
LOSSES_BOUND = 1e-5
PUBLISHED = {"base": 27.3, "big": 28.4}  # Vaswani et al. 2017, Table 2
Claim = dict[str, str]


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
    claims = [claim for section in results["sections"] for claim in section["claims"]]
    if not any(claim["command"].startswith(PAPERS_RUN) for claim in claims):
        parts.append(NOBODY)
    gaps = ["several GPUs", f"search of {MANY_SENTENCES} on a GPU", "laptops", "Arm", "macOS"]
    if any(claim["claim"].endswith(MANY_SENTENCES) for claim in claims):
        del gaps[1]
    parts.append(f"Not measured yet: {', '.join(gaps)}.\n")
    return "\n".join(parts)


def _row(claim: Claim, machines: dict[str, Any]) -> str:
    cells = [
        claim["claim"],
        f"**{claim['value']}**",
        claim["target"],
        claim["other"],
        machines[claim["machine"]]["name"],
    ]
    cells += [f"`{claim['commit']}`", claim["date"], f"`{claim['command']}`"]
    return f"| {' | '.join(cell or '–' for cell in cells)} |"


def add(results: dict[str, Any], measured: dict[str, Any]) -> None:
    """Adds the claims of one measurement. SystemExit if it is of no commit, or a rehearsal."""
    about = measured["versions"]
    if not about["commit"] or not about["devices"]:
        raise SystemExit("these figures are of no commit, or of no GPU, so they are no results")
    device, n = about["devices"][0], measured.get("processes", 1)
    description = (
        f"{n} × {device['name']} ({device['bytes'] / 1e9:.0f} GB), {about['cores']} cores, Python {about['python']}, "
        f"PyTorch {about['torch']}"
    )
    known = {machine["description"]: key for key, machine in results["machines"].items()}
    key = known.get(description, f"gpu{len(known)}")
    name = device["name"].removeprefix("NVIDIA ") if n == 1 else f"{n} × {device['name'].removeprefix('NVIDIA ')}"
    results["machines"][key] = {"name": name, "description": description}
    fixed = {"machine": key, "commit": about["commit"][:7], "date": about["date"]}
    claims = _claims_of_run(measured) if "scores" in measured else _claims_of_gpu(measured, device["name"])
    for title, claim in claims:
        (section,) = (section for section in results["sections"] if section["title"] == title)
        full = {"target": "", "other": ""} | claim | fixed
        kept = [one for one in section["claims"] if (one["claim"], one["machine"]) != (full["claim"], key)]
        section["claims"] = [*kept, full]


def _claims_of_gpu(parts: dict[str, Any], device: str) -> Iterator[tuple[str, Claim]]:
    """Of each part of gpu.sh that is there: the section of the page, and the claim without machine, commit and date."""
    for name, part in parts.items():
        kind, *numbers = name.split("-")
        preset = name.rpartition("-")[2]
        if kind in ("train", "decode"):
            speed = part["target_tokens_per_second"]
            shape = "" if kind == "train" else f", {part['dtype']}, beam {numbers[1]}, {numbers[0]} sentences"
            claim = {"claim": f"{preset} on a GPU{shape}", "value": f"{speed:,.0f}"}
            peers = parts.get(name.replace("train", "torch").replace("decode", "ctranslate2"), {})
            others = {title: row for title, row in peers.items() if not title.startswith("heed-")}
            if others:
                title, best = max(others.items(), key=lambda item: item[1]["target_tokens_per_second"])
                title = "PyTorch's module, bf16" if kind == "train" else f"CTranslate2 ({title})"
                claim["value"] += f" ({speed / best['target_tokens_per_second']:.2f} times)"
                claim["other"] = f"{best['target_tokens_per_second']:,.0f}, {title}"
            if (target := H100_TARGETS.get(name)) and "H100" in device:
                claim["target"] = f"{target:,}: {'met' if speed >= target else 'missed'}"
            options = "" if kind == "train" else f" --batch {numbers[0]} --beam {numbers[1]}"
            claim["command"] = f"heed bench {kind} --preset {preset}{options}"
            yield "Training speed" if kind == "train" else "Decoding speed", claim
        elif kind == "r" and (once := parts.get(f"train-{preset}")):
            times = part["step_seconds"] / once["step_seconds"]
            claim = {"claim": f"{preset}, two passes on a GPU, step time against one", "value": f"{times:.2f} times"}
            if "H100" in device:
                claim["target"] = f"{H100_TWO_PASSES}: {'met' if times <= H100_TWO_PASSES else 'missed'}"
            yield "Training speed", claim | {"command": f"heed bench train --preset {preset} --consistency 3"}
    if losses := parts.get("losses"):
        found = next(value for title, value in losses.items() if "against the CPU" in title)
        verdict = f"{LOSSES_BOUND:g}: {'met' if found < LOSSES_BOUND else 'missed'}"
        claim = {
            "claim": "fp32 losses of 20 steps on a GPU against a CPU's, relative difference",
            "value": f"{found:.1e}",
        }
        yield "Reliability, size, tests", claim | {"target": verdict, "command": "benchmarks/gpu.sh losses"}
    if tests := parts.get("tests"):
        passed = tests["on a real GPU"] - sum("[real" in name for name in tests["failed"] + tests["skipped"])
        claim = {
            "claim": "Tests of the GPU's code that pass on a real one",
            "value": f"{passed} of {tests['on a real GPU']}",
        }
        yield "Reliability, size, tests", claim | {"command": "benchmarks/gpu.sh tests"}


def _claims_of_run(record: dict[str, Any]) -> Iterator[tuple[str, Claim]]:
    """Of a run of wmt14.sh: both BLEU scores of newstest2014, time and energy."""
    if record["rehearsal"]:
        raise SystemExit("a rehearsal is no result")
    model, scores, watts = record["model"], record["scores"]["newstest2014"], record["energy"]
    name, command = f"WMT 2014 English-German, {model}", {"command": f"{PAPERS_RUN} {model}"}
    bleu, published = scores["paper_bleu"], PUBLISHED[model]
    yield (
        "Translation",
        command
        | {
            "claim": f"{name}, newstest2014, tokenised BLEU, compounds split",
            "value": f"{bleu:.2f}",
            "target": f"{published}: {'met' if bleu >= published else 'missed'}",
            "other": f"{published}, Vaswani et al. 2017",
        },
    )
    yield "Translation", command | {"claim": f"{name}, newstest2014, sacrebleu", "value": f"{scores['bleu']:.2f}"}
    energy = f", {watts['kwh']:.1f} kWh" if watts else ""
    yield (
        "Translation",
        command
        | {
            "claim": f"{name}, {record['steps']:,} steps, time and energy of training",
            "value": f"{record['training_seconds'] / 3600:.1f} h{energy}",
        },
    )


def main() -> None:
    results = json.loads(SOURCE.read_text(encoding="utf-8"))
    for path in map(Path, sys.argv[1:]):
        add(results, json.loads(path.read_text(encoding="utf-8")))
        SOURCE.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
