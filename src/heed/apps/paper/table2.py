"""Table 2: BLEU and training cost, counted the paper's way and by formula."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.apps.paper.result_page import Page, command, plain, prose, table
from heed.apps.paper.table3 import ROWS, architecture
from heed.errors import HeedError
from heed.model.cost import Workload, training_flops
from heed.model_folder import read_config

# Sustained single-precision operations a second that the paper takes for each device (its footnote 5).
SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


@dataclass(frozen=True)
class Published:
    """A row of Table 2; None where the paper leaves the cell empty."""

    model: str
    bleu_en_de: float | None = None
    bleu_en_fr: float | None = None
    flops_en_de: float | None = None
    flops_en_fr: float | None = None


PUBLISHED = (
    Published("ByteNet", 23.75),
    Published("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    Published("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    Published("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    Published("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    Published("Deep-Att + PosUnk, ensemble", None, 40.4, None, 8.0e20),
    Published("GNMT + RL, ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    Published("ConvS2S, ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    Published("Transformer (base)", 27.3, 38.1, 3.3e18),
    Published("Transformer (big)", 28.4, 41.8, 2.3e19),
)


def published_cost(hours: float, n_devices: int, device: str) -> float:
    """Operations as the paper counts them: time × devices × the device's sustained rate."""
    if device not in SUSTAINED_FLOPS:
        raise HeedError(f"device {device}: no rate in the paper; known: {', '.join(SUSTAINED_FLOPS)}.")
    return hours * 3600 * n_devices * SUSTAINED_FLOPS[device]


@dataclass(frozen=True)
class PaperRun:
    """A training of the paper: section 5.2."""

    preset: str
    steps: int
    seconds_a_step: float
    vocab_size: int = 37_000
    batch_tokens: int = 25_000
    mean_length: int = 29  # word pieces of a sentence of WMT14 English-German, about

    @property
    def hours(self) -> float:
        return self.steps * self.seconds_a_step / 3600

    @property
    def formula_flops(self) -> float:
        """FLOPs of all steps, for sentences of the mean length."""
        arch = architecture(next(row for row in ROWS if row.preset == self.preset))
        pairs = self.batch_tokens * self.mean_length
        work = Workload(self.batch_tokens, self.batch_tokens, pairs, pairs, pairs)
        return self.steps * training_flops(arch, self.vocab_size, work, n_steps=1)


PAPER_RUNS = (PaperRun("base", 100_000, 0.4), PaperRun("big", 300_000, 1.0))


def results(models: Sequence[Path] = ()) -> dict[str, Any]:
    """Published rows, the paper's two runs counted both ways, and what these model folders record of theirs."""
    return {
        "published": [vars(row) for row in PUBLISHED],
        "paper_runs": [
            {
                "preset": run.preset,
                "hours": run.hours,
                "time_times_rate": published_cost(run.hours, 8, "P100"),
                "formula": run.formula_flops,
            }
            for run in PAPER_RUNS
        ],
        "models": [_model_facts(folder) for folder in models],
    }


def _cost(flops: float | None) -> str:
    return f"{flops:.1e}" if flops else ""


def _model_facts(folder: Path) -> dict[str, Any]:
    card = read_config(folder).card
    return {"model": str(folder), "languages": f"{card.src} → {card.tgt}", **card.trained_on, "scores": card.scores}


def page(models: Sequence[Path] = ()) -> Page:
    """The table, both ways of counting, and Heed's models."""
    numbers = results(models)
    lines = [
        "# Table 2: BLEU and training cost",
        "",
        *table(
            ("model", "BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr"),
            (
                (row.model, row.bleu_en_de or "", row.bleu_en_fr or "", *map(_cost, (row.flops_en_de, row.flops_en_fr)))
                for row in PUBLISHED
            ),
        ),
        "",
        "Big en-fr: the table says 41.8, the text of section 6.1 says 41.0.",
        "",
        "## Two ways of counting",
        "",
        prose(
            """The paper multiplies training time, number of devices and what a device sustains (K80 2.8, K40 3.7, M40
            6.0, P100 9.5 TFLOP/s). Heed counts the operations of the model itself: forward, backward, Adam, for the
            real tokens of a run; it agrees with PyTorch's own counter to 1 % (a test). Their quotient is the share
            of the device's rate that the model used. Time is steps times the time of one (section 5.2); for base the
            paper takes 12 hours, hence its 3.3e18. The formula's batches have 25,000 + 25,000 tokens without padding,
            of 29 tokens a sentence, and a vocabulary of 37,000."""
        ),
        "",
        *table(
            ("run", "time × 8 P100", "formula", "share"),
            (
                (f"{run['preset']}, {run['hours']:.1f} h", _cost(rate), _cost(formula), f"{formula / rate:.0%}")
                for run in numbers["paper_runs"]
                for rate, formula in [(run["time_times_rate"], run["formula"])]
            ),
        ),
    ]
    missing = [
        f"Table 2, {corpus}: `heed train {corpus}-base` (and -big), then `heed paper table2 --model M`."
        for corpus in ("wmt14-en-de", "wmt14-en-fr")
        if corpus not in [model.get("corpus") for model in numbers["models"]]
    ]
    if models:
        lines += ["", "## Models of Heed", ""]
        for model in numbers["models"]:
            folder, scores = model.pop("model"), model.pop("scores")
            rows = (f"  - {plain(name)}: {plain(value)}" for name, value in (model | scores).items())
            lines += [f"- **{plain(folder)}**", *rows]
    lines += ["", *(f"Not measured yet: {line}\n" for line in missing)]
    recipes = "the recipes `wmt14-en-{de,fr}-{base,big}`"
    lines += [
        f"The paper's settings: {recipes}; `heed train RECIPE --dry-run` estimates their time and memory here.",
        "",
    ]
    return Page("table2", "\n".join(lines), command("table2", model=list(models)), missing=missing)
