"""All pages at once, with an index that says what is measured and what is not."""

from collections.abc import Callable
from pathlib import Path

from heed.apps.paper import equations, figures, table2, table3, table4
from heed.apps.paper.result_page import Page, check_pages, command, plain
from heed.errors import HeedError
from heed.model_folder import load_model


def page_names(*, model: Path | None, src: Path | None) -> list[str]:
    """Names of the pages that `write_all` writes."""
    of_model = ["figure3", "figure4", "figure5"] if model else []
    heads = ["heads"] if model and src else []
    return ["README", "table1", "table2", "table3", "table4", "equations", *of_model, *heads]


def write_all(
    folder: Path,
    *,
    layers: Callable[[], Page],
    model: Path | None,
    src: Path | None,
    lower: bool,
    vocab_size: int,
    runs: Path,
    report: Callable[[str], None],
) -> Path:
    """Writes every page into the folder and returns the index's path.

    layers: makes Table 1's page, which takes minutes, when all others are made. Figures need a trained model, and named
    heads sentences (`src`) too; without them the index shows the commands. runs: the folder with the runs of Table 3,
    in table3, and with the parsers of Table 4.
    """
    check_pages(folder, page_names(model=model, src=src))
    pages = [
        (table2.page([model] if model else []), "BLEU and training cost, counted both ways"),
        (table3.page(vocab_size, runs / "table3"), "variations of the base model: published, counted, trained small"),
        (table4.page(runs), "constituency parsing"),
        (equations.page(), "the schedule, the position table, the variance of dot products"),
    ]
    missing = []
    if model is None:
        missing.append("Figures 3 to 5: `heed paper all --model MODEL` with a trained model.")
    else:
        load_model(model)  # a damaged one is an error
        for number, shows in ((3, "all heads from one word"), (4, "single heads"), (5, "two whole heads")):
            try:
                pages.append((figures.figure(number, model, lower=lower), shows))
            except HeedError as error:  # the model has one head, or too few positions
                missing.append(f"figure{number}: {plain(error)}")
    if model is None or src is None:
        missing.append("Heads with a recognisable function: `heed paper all --model MODEL --src FILE`.")
    else:
        figures.first_sentences(src, figures.HEADS_LINES)  # a file without sentences is an error
        try:
            heads = figures.heads_page(model, src, figures.HEADS_LINES, lower=lower)
            pages.append((heads, "heads with a recognisable function"))
        except HeedError as error:  # a sentence is too long
            missing.append(f"Heads with a recognisable function: {plain(error)}")
    pages.insert(0, (layers(), "types of layers: time and memory measured, exponents fitted, path lengths"))
    lines = ["# The paper, page by page", ""]
    for page, shows in pages:
        report(f"Wrote {page.write(folder)}")
        lines.append(f"- [{page.name}]({page.name}.md): {shows}")
    missing = [*(line for page, _ in pages for line in page.missing), *missing]
    if missing:
        lines += ["", "Not measured yet:", "", *(f"- {line}" for line in missing)]
    options = {"vocab": None if vocab_size == table3.VOCAB_SIZE else vocab_size, "folder": _other(runs)}
    made_by = command("all", model=model, src=src, lower=lower, **options)
    index = Page("README", "\n".join([*lines, ""]), made_by)
    return index.write(folder)


def _other(runs: Path) -> Path | None:
    return None if runs == table4.RUNS else runs
