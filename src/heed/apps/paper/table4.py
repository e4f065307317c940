"""Table 4: constituency parsing (section 6.3), published and by the parsers that were trained here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.apps.paper.result_page import Page, code, command, plain, prose, table
from heed.model.cost import n_parameters
from heed.model_folder import read_config

RUNS = Path("runs")
RECIPES = {"parsing-wsj": "WSJ only", "parsing-wsj-semi": "semi-supervised", "parsing-gum": "GUM only"}


@dataclass(frozen=True)
class Row:
    """A row of Table 4: EVALB's F1 on section 23 of the WSJ."""

    parser: str
    training: str
    f1: float


PUBLISHED = (
    Row("Vinyals & Kaiser et al. 2014", "WSJ only", 88.3),
    Row("Petrov et al. 2006", "WSJ only", 90.4),
    Row("Zhu et al. 2013", "WSJ only", 90.4),
    Row("Dyer et al. 2016", "WSJ only", 91.7),
    Row("Transformer (4 layers)", "WSJ only", 91.3),
    Row("Zhu et al. 2013", "semi-supervised", 91.3),
    Row("Huang & Harper 2009", "semi-supervised", 91.3),
    Row("McClosky et al. 2006", "semi-supervised", 92.1),
    Row("Vinyals & Kaiser et al. 2014", "semi-supervised", 92.1),
    Row("Transformer (4 layers)", "semi-supervised", 92.7),
    Row("Luong et al. 2015", "multi-task", 93.0),
    Row("Dyer et al. 2016", "generative", 93.3),
)


def results(runs: Path) -> dict[str, Any]:
    """The published rows, and what the parsers in RUNS/parsing-* were trained on and score."""
    parsers = []
    for name in RECIPES:
        folder = runs / name / "model"
        if (folder / "config.json").is_file():
            arch, vocab_size, card, src_vocab_size = read_config(folder)
            parsers.append(
                {
                    "recipe": name,
                    "model": str(folder),
                    "parameters": n_parameters(arch, vocab_size, src_vocab_size),
                    "trained_on": card.trained_on,
                    "scores": card.scores,
                }
            )
    return {"published": [vars(row) for row in PUBLISHED], "parsers": parsers}


def page(runs: Path) -> Page:
    """The table as Markdown, with the parsers in RUNS."""
    parsers = results(runs)["parsers"]
    lines = [
        "# Table 4: constituency parsing",
        "",
        *table(
            ("parser", "training", "scored on", "F1 by EVALB"),
            [
                *((row.parser, row.training, "WSJ 23", row.f1) for row in PUBLISHED),
                *(
                    (
                        f"**Heed, `{parser['recipe']}`**",
                        RECIPES[parser["recipe"]],
                        f"{parser['recipe'].split('-')[1].upper()} {plain(name)}",
                        plain(scores),
                    )
                    for parser in parsers
                    for name, scores in parser["scores"].items()
                ),
            ],
        ),
        "",
    ]
    if not any("wsj" in parser["recipe"] for parser in parsers):
        lines += [
            prose(
                """Heed is not measured on the WSJ, which the LDC licenses: `heed paper table4 --run --treebank FOLDER`
                trains the recipe `parsing-wsj` on yours, which has the paper's settings
                (`--recipe parsing-wsj-semi`: the semi-supervised ones). GUM (Zeldes 2017) is another
                treebank: its figures are not comparable with the published ones."""
            ),
            "",
        ]
    if not parsers:
        lines += ["Not measured on GUM yet: `heed paper table4 --run --mirror FOLDER`.", ""]
    for parser in parsers:
        lines += [f"**{parser['recipe']}**: {parser['parameters']:,} parameters, {code(parser['model'])}", ""]
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in parser["trained_on"].items()), ""]
    missing = [
        f"Table 4 on {treebank}: `heed paper table4 --run{option}`."
        for treebank, option in (("the WSJ", " --treebank FOLDER"), ("GUM", " --mirror FOLDER"))
        if not any(treebank[-3:].lower() in parser["recipe"] for parser in parsers)
    ]
    made_by = command("table4", folder=None if runs == RUNS else runs)
    return Page("table4", "\n".join(lines), made_by, missing=missing)
