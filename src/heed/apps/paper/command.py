"""heed paper: one sub-command per table or figure."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.apps.cli.options import JSON, Directory, Mirror
from heed.apps.cli.process import Verb, verb_group
from heed.apps.cli.terminal import print_json, say, show
from heed.errors import HeedError
from heed.runtime.process_tuning import import_torch_for_training

if TYPE_CHECKING:
    from heed.apps.paper.result_page import Page

paper_app = verb_group("The paper's tables and figures: published and measured on this machine.")
Out = Annotated[
    Path | None, typer.Option(help="Folder of the page and its plots, or one FILE.html. Default: print the page.")
]


@paper_app.command("table1", cls=Verb, epilog="Example: heed paper table1 --out docs/paper")
def paper_table1(out: Out = None, as_json: JSON = False) -> None:
    """Layer types: measured time and memory, fitted exponents, path lengths."""
    from heed.apps.paper import table1

    _check_out(out, "table1", as_json=as_json)
    say("Measuring five layer types, which takes a few minutes.")
    results, of_model = table1.measured(), table1.model_costs()
    if as_json:
        print_json({"layers": results, "model": of_model})
    else:
        _show_page(table1.page(results, of_model), out)


@paper_app.command("table2", cls=Verb, epilog="Example: heed paper table2 --model runs/multi30k-en-de/model")
def paper_table2(
    model: Annotated[list[Path] | None, typer.Option(help="Add the cost and scores of this model folder.")] = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """BLEU and training cost: published, counted as the paper does, and by formula."""
    from heed.apps.paper import table2

    _check_out(out, "table2", as_json=as_json)
    if as_json:
        print_json(table2.results(model or []))
    else:
        _show_page(table2.page(model or []), out)


@paper_app.command("table3", cls=Verb, epilog="Example: heed paper table3 --run --rows A,big --seeds 2")
def paper_table3(
    vocab_size: Annotated[int, typer.Option("--vocab", min=4, help="Count parameters for this vocabulary.")] = 37_000,
    run: Annotated[bool, typer.Option("--run", help="Train the rows at the size of the recipe's model.")] = False,
    recipe: Annotated[
        str | None, typer.Option(help="With --run: the recipe whose model stands for base. Default: table3-multi30k.")
    ] = None,
    rows: Annotated[
        str, typer.Option(help="With --run: presets or A to E, separated by commas, in addition to base. Default: all.")
    ] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="With --run: number of runs per row. Default: 2.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="With --run: override one setting; repeatable."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the runs, one per row and seed.")] = Path("runs/table3"),
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """Variations of the base model: published, and trained at a laptop's size."""
    if run:
        import_torch_for_training()
    from heed.apps.paper import table3
    from heed.data.corpora.download import Corpora
    from heed.runs.recipe import read_recipe

    if not run and (rows or seeds or settings or recipe or mirror):
        raise HeedError("--recipe, --rows, --seeds, --set and --mirror are about training; they need --run.")
    if not run:
        _check_runs(folder, table3.FOLDER)
    _check_out(out, "table3", as_json=as_json)
    if run:
        table3.run_rows(
            table3.chosen([name.strip() for name in rows.split(",") if name.strip()]),
            read_recipe(recipe or table3.RECIPE, settings or []),
            folder,
            n_seeds=seeds or 2,
            corpora=Corpora(directory, mirror, say),
        )
    if as_json:
        print_json({"rows": table3.published(vocab_size), "measured": table3.measured(folder)})
    else:
        _show_page(table3.page(vocab_size, folder), out)


@paper_app.command("table4", cls=Verb, epilog="Example: heed paper table4 --run --treebank /ldc/wsj")
def paper_table4(
    run: Annotated[bool, typer.Option("--run", help="Train and evaluate a parser first.")] = False,
    treebank: Annotated[
        Path | None, typer.Option(help="With --run: your Penn Treebank in the LDC's layout. Default: GUM, in --mirror.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="With --run: the recipe. Default: parsing-wsj with --treebank, else parsing-gum.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the runs parsing-wsj, parsing-gum.")] = Path("runs"),
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """Constituency parsing: published, and by parsers trained on this machine."""
    from heed.apps.paper import table4

    if (treebank or recipe or mirror) and not run:
        raise HeedError("--treebank, --recipe and --mirror are about training; they need --run.")
    if not run:
        _check_runs(folder, table4.RUNS)
    _check_out(out, "table4", as_json=as_json)
    if run:
        from heed.data.corpora.download import Corpora
        from heed.runs.recipe import read_recipe
        from heed.runs.train import train_recipe

        recipe = recipe or ("parsing-wsj" if treebank else "parsing-gum")
        name = Path(recipe).stem
        if name not in table4.RECIPES:
            raise HeedError(f"--recipe {recipe}: expected one of {', '.join(table4.RECIPES)}, or a file of that name.")
        changes = [f"parsing.treebank={json.dumps(os.path.realpath(treebank), ensure_ascii=False)}"] if treebank else []
        train_recipe(read_recipe(recipe, changes), folder / name, Corpora(directory, mirror, say))
    if as_json:
        print_json(table4.results(folder))
    else:
        _show_page(table4.page(folder), out)


@paper_app.command("equations", cls=Verb, epilog="Example: heed paper equations --out docs/paper")
def paper_equations(out: Out = None, as_json: JSON = False) -> None:
    """The learning rate, the linearity of sinusoidal positions, the variance of dot products."""
    from heed.apps.paper import equations

    _check_out(out, "equations", as_json=as_json)
    if as_json:
        print_json(equations.results())
    else:
        _show_page(equations.page(), out)


FigureModel = Annotated[Path, typer.Option(help="A model folder.")]


def _paper_figure(number: int, model: Path, out: Path, *, sentence: str | None, word: str | None, lower: bool) -> None:
    from heed.apps.paper import figures

    _check_out(out, f"figure{number}")
    _show_page(figures.figure(number, model, sentence=sentence, word=word, lower=lower), out)


def _add_figure(number: int, shows: str) -> None:
    def command(
        model: FigureModel,
        sentence: Annotated[str | None, typer.Option(help="Sentence. Default: the paper's.")] = None,
        word: Annotated[
            str | None, typer.Option(help="Word whose attention is drawn, where the figure shows one word.")
        ] = None,
        lower: Annotated[bool, typer.Option("--lower", help="For a model of lower-cased text.")] = False,
        out: Annotated[Path, typer.Option(help="Folder of the page and its pictures, or one FILE.html.")] = Path(
            "docs/paper"
        ),
    ) -> None:
        _paper_figure(number, model, out, sentence=sentence, word=word, lower=lower)

    example = f"Example: heed paper figure{number} --model runs/multi30k-en-de/model --lower"
    paper_app.command(f"figure{number}", cls=Verb, help=shows, epilog=example)(command)


_add_figure(3, "All heads of an encoder layer: attention of one word.")
_add_figure(4, "One head in full, and the attention of one word in two heads.")
_add_figure(5, "Two heads in full.")


@paper_app.command("heads", cls=Verb, epilog="Example: heed paper heads --model runs/multi30k-en-de/model --src dev.en")
def paper_heads(
    model: FigureModel,
    src: Annotated[Path, typer.Option(help="Sentences, one per line.")],
    lines: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of sentences to read.")] = 200,
    lower: Annotated[bool, typer.Option("--lower", help="For a model of lower-cased text.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the page and its pictures, or one FILE.html. Default: docs/paper.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Heads with a recognisable function, and how clearly each has it."""
    from heed.apps.paper import figures
    from heed.decoding.translator import Translator

    out = out if as_json else out or Path("docs/paper")
    _check_out(out, "heads", as_json=as_json)
    if as_json:
        sentences = figures.first_sentences(src, lines, lower=lower)
        heads, _ = figures.named_heads(Translator.load(model, precision="fp32"), sentences)
        print_json([vars(head) for head in heads])
    else:
        _show_page(figures.heads_page(model, src, lines, lower=lower), out)


@paper_app.command(
    "all", cls=Verb, epilog="Example: heed paper all --out docs/paper --model runs/multi30k-en-de/model --lower"
)
def paper_all(
    out: Annotated[Path, typer.Option(help="Folder of the pages.")],
    model: Annotated[Path | None, typer.Option(help="Trained model whose cost and figures to add.")] = None,
    src: Annotated[Path | None, typer.Option(help="Sentences for `heads`; the first 200 are read.")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="For a model of lower-cased text.")] = False,
    vocab_size: Annotated[int, typer.Option("--vocab", min=4, help="Table 3 counts for this vocabulary.")] = 37_000,
    folder: Annotated[Path, typer.Option(help="Folder of the runs of Table 3 (in table3) and of the parsers.")] = Path(
        "runs"
    ),
) -> None:
    """All pages with their plots, and an index."""
    from heed.apps.paper import figures, table1, table4
    from heed.apps.paper.index import page_names, write_all
    from heed.apps.paper.result_page import check_pages
    from heed.apps.visualization.render import require_matplotlib
    from heed.model_folder import read_config

    require_matplotlib()
    check_pages(out, page_names(model=model, src=src))
    _check_runs(folder, table4.RUNS, advice="")
    if model is None and (src is not None or lower):
        raise HeedError("--src and --lower are for pages about a model; they need --model.")
    if model is not None:  # what is wrong with these shows before minutes are spent
        read_config(model)
        if src is not None:
            figures.first_sentences(src, figures.HEADS_LINES, lower=lower)

    def layers() -> "Page":
        say("Table 1: measuring five layer types.")
        return table1.page(table1.measured(), table1.model_costs())

    show(
        write_all(out, layers=layers, model=model, src=src, lower=lower, vocab_size=vocab_size, runs=folder, report=say)
    )


def _check_runs(folder: Path, default: Path, *, advice: str = "; --run creates one") -> None:
    """HeedError for a folder that the user has named and that is none."""
    if folder != default and not folder.is_dir():
        raise HeedError(f"--folder {folder}: there is no folder {folder}{advice}.")


def _check_out(out: Path | None, name: str, *, as_json: bool = False) -> None:
    """HeedError, before long work, if the page would replace a file that Heed did not write, or lack its pictures.

    Also if JSON is asked for in its place.
    """
    from heed.apps.paper.result_page import check_pages
    from heed.apps.visualization.render import require_matplotlib
    from heed.runtime.files import check_target

    if out is not None:
        if as_json:
            raise HeedError("--out writes a page, --json prints its numbers instead: leave one of them out.")
        if out.suffix == ".html":
            check_target(out)
        else:
            check_pages(out, [name])
        if name not in ("table2", "table3", "table4"):
            require_matplotlib()


def _show_page(page: Any, out: Path | None) -> None:
    """Prints a page, or writes it into a folder with its plots, or with them into one .html file."""
    if out is None:
        print(page.text, end="")
    else:
        say(f"Wrote {page.write_html(out) if out.suffix == '.html' else page.write(out)}")
