"""heed translate-shards, score-shards, back-translate: files in parts, by one process, several, Slurm or Ray."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.apps.cli.options import (
    PENALTY,
    Directory,
    From,
    Mirror,
    Overrides,
    PrecisionOption,
    To,
    check_options,
    decoding_of,
    decoding_precision,
    sampling_settings,
    with_options,
    workforce_of,
)
from heed.apps.cli.terminal import say, show
from heed.decoding.option_rules import SEARCH_RULES, Rule
from heed.decoding.settings import DecodingOptions
from heed.runtime.process_tuning import import_torch_for_training

if TYPE_CHECKING:
    from heed.leases.workforce import Workforce

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, at the same path on all machines.")]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--in",
        metavar="PATTERN",
        help="Files to read, such as 'web/*.parquet' or s3://bucket/*.jsonl.gz; repeatable. Parquet, JSON Lines or "
        "text, by their names; the last two also as .gz or .zst.",
    ),
]
Out = Annotated[
    str, typer.Option(metavar="FOLDER", help="Folder or URL of the parts. What is there is not made again.")
]
Column = Annotated[str | None, typer.Option(metavar="NAME", help="Column of the texts. Default: text.")]
OF_SEARCH = ("beam_size", *PENALTY, "early_stopping", "min_tokens", "max_tokens", "max_extra_tokens")
MaxErrors = Annotated[
    int, typer.Option(min=0, help="Bad rows to leave out and to list in the folder errors; more end the command.")
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of translate-shards and of score-shards."""

    source: From = None
    target: To = None
    column: Column = None
    output: Annotated[
        str | None, typer.Option("--format", help="Of the parts: parquet, jsonl or text. Default: the inputs'.")
    ] = None
    prefix: Annotated[str, typer.Option(help="Begins the names of the columns that are added.")] = ""
    part_lines: Annotated[int, typer.Option(min=1, help="Rows of a part.")] = 100_000
    precision: PrecisionOption = "auto"
    max_errors: MaxErrors = 100
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Time one part, say what the whole will take, and write nothing.")
    ] = False
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of a core-hour, or of a GPU-hour, to say the cost.")
    ] = None


@with_options(
    common=Common,
    workforce=workforce_of,
    decoding=decoding_of(*OF_SEARCH),
)
def translate_shards(
    model: Model, inputs: Inputs, out: Out, *, common: Common, workforce: "Workforce", decoding: DecodingOptions
) -> None:
    """Translate a column of many files in parts; add translation, score and ended. Run again, it resumes."""
    _run(common, task="translate", model=model, inputs=inputs, out=out, workforce=workforce, decoding=decoding)


@with_options(common=Common, workforce=workforce_of, decoding=decoding_of(*PENALTY))
def score_shards(
    model: Model,
    inputs: Inputs,
    out: Out,
    *,
    common: Common,
    target_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the translations. Default: translation.")
    ] = None,
    workforce: "Workforce",
    decoding: DecodingOptions,
) -> None:
    """Score pairs of texts in many files in parts; add log_prob and score. Run again, it resumes."""
    of_targets = (target_column,)
    _run(common, of_targets, task="score", model=model, inputs=inputs, out=out, workforce=workforce, decoding=decoding)


def _run(
    common: Common,
    more_columns: tuple[str | None, ...] = (),
    *,
    workforce: "Workforce",
    decoding: DecodingOptions,
    **others: Any,
) -> None:
    check_options(SEARCH_RULES, **decoding)
    precision = decoding_precision(common.precision)
    from heed.apps.cluster.job import ShardOptions, estimate, make_shards
    from heed.runtime.device import set_n_threads

    set_n_threads(workforce.threads or 1)
    options = ShardOptions(
        columns=(common.column, *more_columns), output=common.output, part_lines=common.part_lines,
        prefix=common.prefix, workforce=workforce, precision=precision, decoding=decoding,
        max_errors=common.max_errors, price=common.price, languages=(common.source, common.target), **others,
    )  # fmt: skip
    (estimate if common.dry_run else make_shards)(options, say)


BACK_TRANSLATION_RULES = (
    Rule(("top_k", "top_p", "seed"), "{these} {needs|need} {sample} TEMPERATURE.", without="sample"),
    Rule(
        ("beam_size", "early_stopping", *PENALTY),
        "{these} {is|are} for search only; leave {it|them} out with {sample}.",
        beside="sample",
    ),
    *SEARCH_RULES,
)


@with_options(
    workforce=workforce_of,
    decoding=decoding_of(*OF_SEARCH),
)
def back_translate(
    recipe: Annotated[str, typer.Argument(help="The recipe of the model that is wanted: a name, or a TOML file.")],
    mono: Annotated[
        list[str],
        typer.Option(
            "--mono",
            metavar="PATTERN",
            help="Text in the target language: files such as 'news/*.gz'; repeatable. Text, JSON Lines or Parquet, by "
            "their names; the first two also as .gz or .zst.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all that is made. Default: back-translated/NAME.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A model of the reverse direction. Default: one is trained on the recipe's own pairs."),
    ] = None,
    settings: Overrides = None,
    tag: Annotated[str, typer.Option(help="The word that marks a translated source.")] = "<~>",
    column: Column = None,
    sample: Annotated[
        float | None, typer.Option(metavar="TEMPERATURE", help="Draw the translations instead of searching.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the fewest tokens of probability P together.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws. Default: 1.")] = None,
    *,
    decoding: DecodingOptions,
    part_lines: Annotated[
        int, typer.Option(min=1, help="Lines of a part; a kill loses no more of each worker.")
    ] = 10_000,
    workforce: "Workforce",
    precision: PrecisionOption = "auto",
    max_errors: MaxErrors = 100,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
) -> None:
    """Translate text of the target language back, and write a recipe that learns from it too. Run again, it resumes."""
    check_options(BACK_TRANSLATION_RULES, **decoding, sample=sample, top_k=top_k, top_p=top_p, seed=seed)
    checked = decoding_precision(precision)
    import_torch_for_training()
    from heed.apps.cluster.back_translation import PREFIX
    from heed.apps.cluster.back_translation import back_translate as run
    from heed.apps.cluster.job import ShardOptions
    from heed.data.corpora.download import Corpora
    from heed.runs.recipe import read_recipe

    values = read_recipe(recipe, settings or [])
    folder = out or Path("back-translated") / Path(recipe).stem
    sampling = sampling_settings(sample, top_k=top_k, top_p=1.0 if top_p is None else top_p, seed=seed)
    if sampling is not None:
        decoding["beam_size"] = 1
    options = ShardOptions(
        task="translate", model=Path(), inputs=mono, out="", columns=(column,), output="jsonl", part_lines=part_lines,
        prefix=PREFIX, workforce=workforce, precision=checked, decoding=decoding,
        max_errors=max_errors, price=None, sampling=sampling,
    )  # fmt: skip
    corpora = Corpora(directory, mirror, say)
    if (written := run(values, options, corpora, name=recipe, folder=folder, model=model, tag=tag)) is not None:
        show(written)
