"""The command `heed`: one file per group of verbs, which read arguments, call the packages below and print.

Only a verb that runs imports torch, so that --help answers at once.
"""

import typer

from heed.apps.cli.benchmark import bench_app
from heed.apps.cli.cluster import score_shards, translate_shards
from heed.apps.cli.comparison import compare
from heed.apps.cli.data import data_app
from heed.apps.cli.doctor import doctor
from heed.apps.cli.document_files import translate_file
from heed.apps.cli.exchange import export, import_
from heed.apps.cli.paper import paper_app
from heed.apps.cli.parsing import evalb, parse
from heed.apps.cli.process import Verb, run_and_exit
from heed.apps.cli.run import average, demo, info, train
from heed.apps.cli.serving import serve
from heed.apps.cli.shipped_recipes import options, recipe_app
from heed.apps.cli.translation import evaluate, score, translate
from heed.apps.cli.visualization import attention

app = typer.Typer(
    name="heed",
    help='The Transformer of "Attention Is All You Need": parallel text in, a trained model and translations out.',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for verb, example in (
    (demo, "heed demo"),
    (train, "heed train multi30k-en-de --set training.max_steps=2000"),
    (average, "heed average runs/multi30k-en-de --last 5 --out runs/last-5"),
    (info, "heed info runs/demo/model"),
    (translate, 'echo "a dog runs ." | heed translate runs/multi30k-en-de/model'),
    (translate_file, "heed translate-file runs/multi30k-en-de/model letter.docx brief.docx"),
    (score, "heed score runs/demo/model --src numbers.en --tgt numbers.de"),
    (translate_shards, "heed translate-shards MODEL --in 'web/*.parquet' --out translated --cluster local"),
    (score_shards, "heed score-shards MODEL --in 'translated/part-*.parquet' --prefix reverse_ --out scored"),
    (evaluate, "heed evaluate runs/multi30k-en-de/model --src test.en --ref test.de --tokenize none"),
    (compare, "heed compare --ref test.de --src test.en first.de second.de --html comparison.html"),
    (serve, "heed serve runs/multi30k-en-de/model --port 5000"),
    (attention, 'heed attention runs/multi30k-en-de/model "a dog runs ." --out dog.html'),
    (parse, "heed parse runs/parsing-gum/model < sentences.txt > trees.txt"),
    (evalb, "heed evalb gold.trees parsed.trees"),
    (doctor, "heed doctor"),
    (export, "heed export runs/demo/model demo-ct2 --to ctranslate2"),
    (import_, "heed import opus-mt-en-de models/en-de --from huggingface"),
):
    app.command(verb.__name__.rstrip("_").replace("_", "-"), cls=Verb, epilog=f"Example: {example}")(verb)
for group, name in ((recipe_app, "recipe"), (data_app, "data"), (bench_app, "bench"), (paper_app, "paper")):
    app.add_typer(group, name=name)
app.callback()(options)


def main() -> None:
    """Runs the verb of the command line, and exits."""
    run_and_exit(app)
