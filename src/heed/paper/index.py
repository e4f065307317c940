"""All pages at once, with an index that says what is measured and what is not."""

from collections.abc import Callable, Sequence
from pathlib import Path

from heed.files import whole_file
from heed.model_folder import read_config
from heed.paper import equations, figures, table1, table2, table3, table4
from heed.visualization.render import require_matplotlib

INDEX = "README.md"


def write_all(
    folder: Path,
    *,
    model: Path | None,
    sentences: Sequence[str],
    lower: bool,
    vocab_size: int,
    runs: Path,
    report: Callable[[str], None],
) -> Path:
    """Writes every page into the folder and returns the index's path.

    Figures need a trained model, named heads sentences besides; without them the index shows the commands. `runs`:
    where `heed paper table3 --run` leaves its own in table3, and table4 its parsers.
    """
    require_matplotlib()
    if model is not None:
        read_config(model)
    report("Table 1: measuring five layers.")
    pages = [
        (
            table1.page(table1.measured(), table1.model_costs()),
            "types of layers: time and memory measured, exponents fitted, path lengths",
        ),
        (table2.page([model] if model else []), "BLEU and training cost, counted both ways"),
        (
            table3.page(vocab_size, runs / "table3"),
            "variations of the base model: published, counted, trained small",
        ),
        (table4.page(runs), "constituency parsing"),
        (equations.page(), "the schedule, the position table, the variance of dot products"),
    ]
    missing = []
    if not table4.facts(runs)["parsers"]:
        missing.append("Table 4, parsing: `heed paper table4 --run`.")
    n_rows = len(table3.measured(runs / "table3"))
    if n_rows < len(table3.ROWS):
        missing.append(
            f"Table 3 at a laptop's size: {n_rows} of {len(table3.ROWS)} rows; `heed paper table3 --run` goes on."
        )
    if model is None:
        missing.append("Figures 3 to 5, named heads: `heed paper all --model MODEL --src FILE` with a trained model.")
    else:
        for number, shows in ((3, "all heads from one word"), (4, "single heads"), (5, "two whole heads")):
            pages.append((figures.figure(number, model, lower=lower), shows))
        if not sentences:
            missing.append("Named heads: `heed paper all --model MODEL --src FILE`.")
        else:
            pages.append((figures.heads_page(model, sentences), "heads that do something nameable"))
    lines = ["# The paper, page by page", ""]
    for page, shows in pages:
        report(f"Wrote {page.write(folder)}.")
        lines.append(f"- [{page.name}]({page.name}.md): {shows}")
    lines += ["", "Not measured yet:", "", *(f"- {line}" for line in missing), ""]
    lines += ["Made by `heed paper all --out docs/paper`.", ""]
    with whole_file(folder / INDEX) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    return folder / INDEX
