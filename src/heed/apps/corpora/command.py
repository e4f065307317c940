"""heed data: named corpora, listed and downloaded; any text, checked."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from heed.apps.cli.guesses import complete_corpus
from heed.apps.cli.options import JSON, Directory, Mirror, Overrides, RecipeName
from heed.apps.cli.process import Verb, verb_group
from heed.apps.cli.terminal import print_json, say, show
from heed.text.printable import printable

data_app = verb_group("Corpora: list and download those with a name, check any.")


@data_app.command("list", cls=Verb, epilog="Example: heed data list")
def data_list(as_json: JSON = False) -> None:
    """List the corpora that a recipe can name: those that Heed can download, and those that you added."""
    from heed.data.corpora.catalogue import catalogue

    listed = [
        {
            "name": corpus.name,
            **corpus.settings.model_dump(include={"title", "languages", "download_bytes", "licence"}),
            "variants": list(corpus.settings.splits()),
            "file": None if corpus.file is None else str(corpus.file),
        }
        for corpus in catalogue()
    ]
    if as_json:
        print_json(listed)
        return
    for corpus in listed:
        pairs = ", ".join(f"{src}-{tgt}" for src, tgt in corpus["languages"])
        unknown = "nothing to download" if corpus["file"] else "size unknown"
        size = f"{corpus['download_bytes'] / 1e6:,.0f} MB" if corpus["download_bytes"] else unknown
        show(f"{corpus['name']}: {corpus['title']}")
        show(f"  {pairs}; {', '.join(corpus['variants'])}; {size}")
        show(f"  {corpus['licence']}")
        if corpus["file"]:
            show(f"  added: {corpus['file']}")


@data_app.command("add", cls=Verb, epilog="Example: heed data add proceedings.toml")
def data_add(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="NAME.toml, or a folder: of such files, or of text files called train.en, train.de, dev.en, dev.de …",
        ),
    ],
) -> None:
    """Add a corpus of your own, so that a recipe can name it. Nothing is downloaded yet."""
    from heed.data.corpora.added import add_corpora

    for corpus in add_corpora(given):
        say(f'Added {corpus.name}, kept in {corpus.file}. A recipe names it: data.corpus = "{corpus.name}".')


@data_app.command("get", cls=Verb, epilog="Example: heed data get multi30k --src en --tgt de --dir corpora")
def data_get(
    name: Annotated[str, typer.Argument(help="A name from `heed data list`.", autocompletion=complete_corpus)],
    src: Annotated[str, typer.Option(help="Source language.")] = "en",
    tgt: Annotated[str, typer.Option(help="Target language.")] = "de",
    variant: Annotated[str, typer.Option(help="raw, or lc.norm.tok if the corpus offers it.")] = "raw",
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
) -> None:
    """Download a corpus and verify its checksums. Files that exist are kept; interrupted downloads are resumed."""
    from heed.data.corpora.download import Corpora, fetch

    corpora = Corpora(directory, mirror, say)
    files = fetch(name, src=src, tgt=tgt, variant=variant, corpora=corpora)
    for src_file, tgt_file in files.pairs:
        print(f"{printable(str(src_file))}\t{printable(str(tgt_file))}")


@data_app.command("check", cls=Verb, epilog="Example: heed data check my.toml")
def data_check(
    recipe: RecipeName,
    settings: Overrides = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    as_json: JSON = False,
) -> None:
    """Read a recipe's text and describe it: lengths, copies, dev pairs in training, lines that look damaged."""
    from heed.data.corpora.download import Corpora
    from heed.data.inspection.inspection import inspect_text
    from heed.runs.recipe import read_recipe
    from heed.runs.tasks.parsing_task import ParsingTask
    from heed.runs.tasks.translation_task import TranslationTask
    from heed.text.tokenizer_kinds import load_tokenizer

    values = read_recipe(recipe, settings or [])
    given = (
        TranslationTask(values).given_files
        if values.parsing is None
        else ParsingTask(values, values.parsing).text_files
    )
    folder = values.training.start_from
    tokenizer = load_tokenizer(Path(folder) / "tokenizer.json") if folder else None
    with TemporaryDirectory() as run:  # where a treebank's trees become lines, as they do in the folder of a run
        files = given(Path(run), Corpora(directory, mirror, say))
        inspection = inspect_text(files, values.data, tokenizer=tokenizer)
    if as_json:
        print_json(json.loads(json.dumps({"remarks": inspection.remarks, **inspection.numbers}).replace(run, "RUN")))
        return
    for line in inspection.text():
        show(line.replace(run, "RUN"))
