"""Draws learning curves of runs, as docs/curves-*.svg are drawn: dev loss and greedy score at each validation.

    python docs/draw_curves.py PICTURE.svg "LABEL=RUN" ["LABEL=RUN" ...]

Needs `pip install 'heed-mt[plots]'`. A run whose log is kept apart from its folder is named by its metrics.jsonl.
"""

import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from heed.training.logbook import read_entries

pyplot.rcParams |= {
    "svg.hashsalt": "heed",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def validations(run: Path) -> list[dict[str, Any]]:
    """What a run logged of dev, step by step."""
    entries = read_entries(run if run.is_file() else run / "metrics.jsonl")
    if found := [entry for entry in entries if entry.get("kind") == "validation"]:
        return found
    sys.exit(f"{run}: no validations.")


def main() -> None:
    if len(sys.argv) < 3 or not all("=" in text for text in sys.argv[2:]):
        sys.exit(__doc__)
    picture, *named = sys.argv[1:]
    figure, (losses, scores) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, run in (text.split("=", 1) for text in named):
        entries = validations(Path(run))
        (score,) = {name for name in entries[0] if name.startswith("greedy_")}
        steps = [entry["step"] for entry in entries]
        losses.plot(steps, [entry["loss"] for entry in entries], label=label)
        scores.plot(steps, [entry[score] for entry in entries], label=label)
        scores.set_ylabel(f"dev {score.removeprefix('greedy_').upper()}, greedy")
    # The first steps would flatten all that follows.
    low = min(min(line.get_ydata()) for line in losses.get_lines())
    losses.set_ylim(low * 0.97, low * 1.8)
    high = max(max(line.get_ydata()) for line in scores.get_lines())
    scores.set_ylim(high * 0.6, high * 1.03)
    losses.set_ylabel("dev loss (nats a token)")
    for axes in (losses, scores):
        axes.set_xlabel("steps")
        axes.grid(alpha=0.3)
    losses.legend(frameon=False)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
