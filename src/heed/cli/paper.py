"""heed paper: a sub-command a table or figure."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heed.cli.terminal import JSON, Directory, Mirror, print_json, say, show
from heed.errors import HeedError

paper_app = typer.Typer(
    help="The paper's tables and figures: published, measured here, and how.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Out = Annotated[Path | None, typer.Option(help="Write the page and its plots into this folder; else it is printed.")]


@paper_app.command("table1", epilog="Example: heed paper table1 --out docs/paper")
def paper_table1(out: Out = None, as_json: JSON = False) -> None:
    """Types of layers: time and memory measured here, exponents fitted, path lengths."""
    from heed.paper import table1
    from heed.visualization.render import require_matplotlib

    if out is not None:
        require_matplotlib()
    _check_out(out, "table1")
    say("Measuring five layers; a few minutes.")
    results, of_model = table1.measured(), table1.model_costs()
    if as_json:
        print_json({"layers": results, "model": of_model})
    else:
        _give(table1.page(results, of_model), out)


@paper_app.command("table2", epilog="Example: heed paper table2 --model runs/multi30k-en-de/model")
def paper_table2(
    model: Annotated[list[Path] | None, typer.Option(help="A model folder whose cost and scores to add.")] = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """BLEU and training cost: published, the paper's way of counting, and by formula."""
    from heed.paper import table2

    if as_json:
        print_json(table2.facts(model or []))
    else:
        _give(table2.page(model or []), out)


@paper_app.command("table3", epilog="Example: heed paper table3 --run --rows A,big --seeds 2")
def paper_table3(
    vocab_size: Annotated[int, typer.Option("--vocab", min=4, help="Count parameters for this vocabulary.")] = 37_000,
    run: Annotated[bool, typer.Option("--run", help="Train the rows, scaled to the recipe's model as base.")] = False,
    recipe: Annotated[str, typer.Option(help="The laptop's base: name or TOML file.")] = "table3-multi30k",
    rows: Annotated[
        str, typer.Option(help="Of --run: presets or A to E, separated by commas; base comes with them. Default: all.")
    ] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="Of --run: runs of each row. Default: 2.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Of --run: override one setting; repeatable."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the runs lie, a folder a row and seed.")] = Path("runs/table3"),
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """Variations of the base model: published, counted, and trained at a laptop's size."""
    from heed.paper import table3
    from heed.recipe import read_recipe

    if not run and (rows or seeds or settings):
        raise HeedError("--rows, --seeds and --set say what to train: they need --run.")
    if not run and folder != table3.FOLDER and not folder.is_dir():
        raise HeedError(f"--folder {folder}: there is no folder {folder}; `--run` makes one.")
    _check_out(out, "table3")
    if run:
        table3.run_rows(
            table3.chosen([name.strip() for name in rows.split(",") if name.strip()]),
            read_recipe(recipe, settings or []),
            folder,
            n_seeds=seeds or 2,
            directory=directory,
            mirror=mirror,
            report=say,
        )
    if as_json:
        print_json({"rows": table3.facts(vocab_size), "measured": table3.measured(folder)})
    else:
        _give(table3.page(vocab_size, folder), out)


@paper_app.command("table4", epilog="Example: heed paper table4 --run --treebank /ldc/wsj")
def paper_table4(
    run: Annotated[bool, typer.Option("--run", help="Train and score a parser first.")] = False,
    treebank: Annotated[
        Path | None, typer.Option(help="Of --run: your Penn Treebank in the LDC's layout. Default: GUM.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Of --run, name or TOML file. Default: parsing-wsj with --treebank, else parsing-gum."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the runs lie: parsing-wsj, parsing-gum.")] = Path("runs"),
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    out: Out = None,
    as_json: JSON = False,
) -> None:
    """Constituency parsing: published, and the parsers that were trained here."""
    from heed.paper import table4

    if (treebank or recipe) and not run:
        raise HeedError("--treebank and --recipe say what to train: they need --run.")
    _check_out(out, "table4")
    if run:
        from heed.pipeline import train_recipe
        from heed.recipe import read_recipe

        recipe = recipe or ("parsing-wsj" if treebank else "parsing-gum")
        name = Path(recipe).stem
        if name not in table4.RECIPES:
            raise HeedError(f"--recipe {recipe}: expected {', '.join(table4.RECIPES)}, or a TOML file so called.")
        changes = [f"parsing.treebank={str(treebank.resolve())!r}"] if treebank else []
        train_recipe(read_recipe(recipe, changes), folder / name, directory=directory, mirror=mirror, report=say)
    if as_json:
        print_json(table4.facts(folder))
    else:
        _give(table4.page(folder), out)


@paper_app.command("equations", epilog="Example: heed paper equations --out docs/paper")
def paper_equations(out: Out = None, as_json: JSON = False) -> None:
    """The schedule, the position table's linearity, the variance of dot products."""
    from heed.paper import equations

    if as_json:
        print_json(equations.facts())
    else:
        _give(equations.page(), out)


FigureModel = Annotated[Path, typer.Option(help="A model folder.")]


def _paper_figure(number: int, model: Path, sentence: str | None, word: str | None, lower: bool, out: Path) -> None:
    from heed.paper import figures

    _check_out(out, f"figure{number}")
    _give(figures.figure(number, model, sentence=sentence, word=word, lower=lower), out)


def _add_figure(number: int, shows: str) -> None:
    def command(
        model: FigureModel,
        sentence: Annotated[str | None, typer.Option(help="Instead of the paper's.")] = None,
        word: Annotated[str | None, typer.Option(help="Whose lines to draw, where one word's are.")] = None,
        lower: Annotated[bool, typer.Option("--lower", help="For a model of lower-cased text.")] = False,
        out: Annotated[Path, typer.Option(help="Folder of the page and its pictures.")] = Path("docs/paper"),
    ) -> None:
        _paper_figure(number, model, sentence, word, lower, out)

    example = f"Example: heed paper figure{number} --model runs/multi30k-en-de/model --lower"
    paper_app.command(f"figure{number}", help=shows, epilog=example)(command)


_add_figure(3, "All heads of an encoder layer, from one word.")
_add_figure(4, "One head in full, and two from one word.")
_add_figure(5, "Two whole heads.")


@paper_app.command("heads", epilog="Example: heed paper heads --model runs/multi30k-en-de/model --src dev.en")
def paper_heads(
    model: FigureModel,
    src: Annotated[Path, typer.Option(help="Sentences, a line each.")],
    lines: Annotated[int, typer.Option(min=1, help="So many of them.")] = 200,
    out: Annotated[Path, typer.Option(help="Folder of the page and its pictures.")] = Path("docs/paper"),
    as_json: JSON = False,
) -> None:
    """Heads that do something nameable, each with its measure."""
    from heed.decoding.translator import Translator
    from heed.paper import figures

    if as_json:
        found = figures.named_heads(Translator.load(model), figures.first_sentences(src, lines))
        print_json([vars(head) for head in found])
    else:
        _check_out(out, "heads")
        _give(figures.heads_page(model, src, lines), out)


@paper_app.command("all", epilog="Example: heed paper all --out docs/paper --model runs/multi30k-en-de/model --lower")
def paper_all(
    out: Annotated[Path, typer.Option(help="Folder of the pages.")],
    model: Annotated[Path | None, typer.Option(help="A trained model, for costs and figures.")] = None,
    src: Annotated[Path | None, typer.Option(help="Sentences for named heads; the first 200 are read.")] = None,
    lower: Annotated[bool, typer.Option("--lower", help="For a model of lower-cased text.")] = False,
    vocab_size: Annotated[int, typer.Option("--vocab", min=4, help="Table 3 counts for this vocabulary.")] = 37_000,
    folder: Annotated[Path, typer.Option(help="Where runs lie: Table 3's in table3, parsers.")] = Path("runs"),
) -> None:
    """Every page with its plots, and an index."""
    from heed.model_folder import read_config
    from heed.paper import table1
    from heed.paper.index import page_names, write_all
    from heed.paper.page import check_pages
    from heed.visualization.render import require_matplotlib

    require_matplotlib()
    check_pages(out, page_names(model=model, src=src))
    if model is not None:
        read_config(model)  # before a minute is spent
    say("Table 1: measuring five layers.")
    layers = table1.page(table1.measured(), table1.model_costs())
    show(
        write_all(out, layers=layers, model=model, src=src, lower=lower, vocab_size=vocab_size, runs=folder, report=say)
    )


def _check_out(out: Path | None, name: str) -> None:
    """HeedError, before long work, if the page would replace what is not Heed's."""
    from heed.paper.page import check_pages

    if out is not None:
        check_pages(out, [name])


def _give(page: Any, out: Path | None) -> None:
    """A page to standard output, or into a folder with its plots."""
    if out is None:
        print(page.text, end="")
    else:
        say(f"Wrote {page.write(out)}.")
