"""The command `heed` and its verbs, which stand in apps/*/command.py beside what they start.

Only a verb that runs imports torch, so that --help answers at once.
"""

from typing import Annotated, Any

import typer

from heed.apps.bench.command import bench_app, doctor
from heed.apps.cli.process import Verb, VerbGroup, first_sentence, run_and_exit
from heed.apps.cluster.command import back_translate, score_shards, translate_shards
from heed.apps.comparison.command import compare
from heed.apps.corpora.command import data_app
from heed.apps.documents.command import translate_file
from heed.apps.exchange.command import export, import_
from heed.apps.paper.command import paper_app
from heed.apps.parsing.command import evalb, parse
from heed.apps.serving.command import serve
from heed.apps.training.command import average, demo, info, prepare, recipe_app, train
from heed.apps.translation.command import evaluate, score, translate
from heed.apps.visualization.command import attention, plot

# In the order of use: a title, then verbs and groups of verbs, each verb with an example.
COMMANDS: dict[str, dict[Any, str]] = {
    "Begin": {
        demo: "heed demo",
        doctor: "heed doctor",
        info: "heed info runs/demo/model",
    },
    "Train": {
        recipe_app: "recipe",
        data_app: "data",
        prepare: "heed prepare mine.toml --workers 8",
        train: "heed train multi30k-en-de --set training.max_steps=2000",
        back_translate: "heed back-translate my.toml --mono 'news/*.de.gz'",
        plot: "heed plot runs/demo runs/second --out curves.svg",
        average: "heed average runs/multi30k-en-de --last 5 --out runs/last-5",
    },
    "Translate": {
        translate: 'echo "a dog runs ." | heed translate runs/multi30k-en-de/model',
        translate_file: "heed translate-file runs/multi30k-en-de/model letter.docx brief.docx",
        translate_shards: "heed translate-shards MODEL --in 'web/*.parquet' --out translated --workers 0",
        serve: "heed serve runs/multi30k-en-de/model --port 5000",
    },
    "Evaluate": {
        evaluate: "heed evaluate runs/multi30k-en-de/model --src test.en --ref test.de --tokenize none",
        compare: "heed compare --ref test.de --src test.en first.de second.de --html comparison.html",
        score: "heed score runs/demo/model --src numbers.en --tgt numbers.de",
        score_shards: "heed score-shards MODEL --in 'translated/part-*.parquet' --prefix reverse_ --out scored",
        attention: 'heed attention runs/multi30k-en-de/model "a dog runs ." --out dog.html',
    },
    "Parse": {
        parse: "heed parse runs/parsing-gum/model < sentences.txt > trees.txt",
        evalb: "heed evalb gold.trees parsed.trees",
    },
    "Other programs' models": {
        import_: "heed import opus-mt-en-de models/en-de --from huggingface",
        export: "heed export runs/demo/model demo-ct2 --to ctranslate2",
    },
    "The paper, and speed": {
        paper_app: "paper",
        bench_app: "bench",
    },
}


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

    def list_commands(self, ctx: Any) -> list[str]:
        return [_name(command, example) for group in COMMANDS.values() for command, example in group.items()]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, group in COMMANDS.items():
            names = [_name(command, example) for command, example in group.items()]
            with formatter.section(title):
                formatter.write_dl([(f"{name:16}", first_sentence(self.commands[name])) for name in names])


def _name(command: Any, example: str) -> str:
    """The name that a user types. The example of a group of verbs is its name."""
    return example if isinstance(command, typer.Typer) else command.__name__.rstrip("_").replace("_", "-")


app = typer.Typer(
    name="heed",
    cls=Commands,
    help='Heed implements "Attention Is All You Need": it trains translation models, scores and serves them.',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for group in COMMANDS.values():
    for command, example in group.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=example)
        else:
            app.command(_name(command, example), cls=Verb, epilog=f"Example: {example}")(command)
app.callback()(options)


def main() -> None:
    """Runs the verb of the command line, and exits."""
    run_and_exit(app)
