"""The command `heed` and its verbs, which stand in apps/*/command.py beside what they start.

Only a verb that runs is imported, and imports torch, so that short commands and --help answer at once.
"""

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from heed.apps.cli.process import Verb, VerbGroup, first_sentence, run_and_exit

# In the order of use: a title, then the room and function of each verb, or group of verbs (`_app`), with an example.
COMMANDS: dict[str, dict[str, str]] = {
    "Begin": {
        "training.demo": "heed demo",
        "bench.doctor": "heed doctor",
        "training.info": "heed info runs/demo/model",
    },
    "Train": {
        "training.recipe_app": "",
        "corpora.data_app": "",
        "training.prepare": "heed prepare mine.toml --workers 8",
        "training.train": "heed train multi30k-en-de --set training.max_steps=2000",
        "cluster.back_translate": "heed back-translate my.toml --mono 'news/*.de.gz'",
        "visualization.plot": "heed plot runs/demo runs/second --out curves.svg",
        "training.average": "heed average runs/multi30k-en-de --last 5 --out runs/last-5",
    },
    "Translate": {
        "translation.translate": 'echo "a dog runs ." | heed translate runs/multi30k-en-de/model',
        "documents.translate_file": "heed translate-file runs/multi30k-en-de/model letter.docx brief.docx",
        "cluster.translate_shards": "heed translate-shards MODEL --in 'web/*.parquet' --out translated --workers 0",
        "serving.serve": "heed serve runs/multi30k-en-de/model --port 5000",
    },
    "Evaluate": {
        "translation.evaluate": ("heed evaluate runs/multi30k-en-de/model --src test.en --ref test.de --tokenize none"),
        "comparison.compare": ("heed compare --ref test.de --src test.en first.de second.de --html comparison.html"),
        "translation.score": "heed score runs/demo/model --src numbers.en --tgt numbers.de",
        "cluster.score_shards": (
            "heed score-shards MODEL --in 'translated/part-*.parquet' --prefix reverse_ --out scored"
        ),
        "visualization.attention": 'heed attention runs/multi30k-en-de/model "a dog runs ." --out dog.html',
    },
    "Parse": {
        "parsing.parse": "heed parse runs/parsing-gum/model < sentences.txt > trees.txt",
        "parsing.evalb": "heed evalb gold.trees parsed.trees",
    },
    "Other programs' models": {
        "exchange.import_": "heed import opus-mt-en-de models/en-de --from huggingface",
        "exchange.export": "heed export runs/demo/model demo-ct2 --to ctranslate2",
    },
    "The paper, and speed": {
        "paper.paper_app": "",
        "bench.bench_app": "",
    },
}


def _name(place: str) -> str:
    """The name that a user types."""
    return place.partition(".")[2].removesuffix("_app").rstrip("_").replace("_", "-")


PLACES = {_name(place): (place, example) for group in COMMANDS.values() for place, example in group.items()}


@cache
def _verb(name: str) -> Any:
    """The verb, or group of verbs, whose room is imported only now: the others' would take most of a short command."""
    place, example = PLACES[name]
    room, _, function = place.partition(".")
    command = getattr(import_module(f"heed.apps.{room}.command"), function)
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, cls=Verb, epilog=f"Example: {example}")(command)
        command = app
    verb = typer.main.get_command(command)
    verb.name = name
    return verb


def _print_version(wanted: bool) -> None:
    if wanted:
        from heed import __version__

        print(f"heed {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print Heed's version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""


class Commands(VerbGroup):
    """The help of `heed`: commands under the titles of COMMANDS, with the whole first sentence of each."""

    @property
    def commands(self) -> Any:
        """All verbs by name; a program may have added some."""
        return {name: _verb(name) for name in PLACES} | self._added

    @commands.setter
    def commands(self, added: Any) -> None:
        self._added = added

    def list_commands(self, ctx: Any) -> list[str]:
        return [*PLACES, *self._added]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _verb(cmd_name) if cmd_name in PLACES else self._added.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:16}", first_sentence(_verb(name))) for name in map(_name, group)])


app = typer.Typer(
    name="heed",
    cls=Commands,
    help='Heed implements "Attention Is All You Need": it trains translation models, scores and serves them.',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.callback()(options)


def main() -> None:
    """Runs the verb of the command line, and exits."""
    run_and_exit(app)
