"""heed back-translate: more pairs from text in the target language alone."""

from pathlib import Path
from typing import Annotated

import typer

from heed.apps.cli.cluster import ClusterOption, Column, Gpus, MaxErrors, Part, Threads, Workers, workforce_of
from heed.apps.cli.decoding_options import PENALTY, check_options, with_decoding_options
from heed.apps.cli.terminal import Directory, Mirror, Overrides, PrecisionOption, decoding_precision, say, show
from heed.apps.cli.translation import sampling_settings
from heed.decoding.rules import SEARCH_RULES, Rule
from heed.decoding.settings import DecodingOptions
from heed.runtime.process_tuning import import_torch_for_training

RULES = (
    Rule(("top_k", "top_p", "seed"), "{these} {needs|need} {sample} TEMPERATURE.", without="sample"),
    Rule(
        ("beam_size", "early_stopping", *PENALTY),
        "{these} {is|are} for search only; leave {it|them} out with {sample}.",
        beside="sample",
    ),
    *SEARCH_RULES,
)


@with_decoding_options("beam_size", *PENALTY, "early_stopping", "min_tokens", "max_tokens", "max_extra_tokens")
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
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of all that is made. Default: back-translated/NAME."),
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
    cluster: ClusterOption = "none",
    workers: Workers = None,
    threads: Threads = 1,
    gpus_per_worker: Gpus = 0,
    part: Part = None,
    precision: PrecisionOption = "auto",
    max_errors: MaxErrors = 100,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
) -> None:
    """Translate text of the target language back, and write a recipe that learns from it too. Run again, it resumes."""
    check_options(RULES, **decoding, sample=sample, top_k=top_k, top_p=top_p, seed=seed)
    checked = decoding_precision(precision)
    import_torch_for_training()
    from heed.apps.cluster.back_translation import PREFIX, BackTranslation
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
        prefix=PREFIX, workforce=workforce_of(cluster, workers, part, threads=threads, gpus=gpus_per_worker),
        precision=checked, decoding=decoding, max_errors=max_errors, price=None, sampling=sampling,
    )  # fmt: skip
    wanted = BackTranslation(recipe=values, name=recipe, folder=folder, model=model, tag=tag, options=options)
    if (written := run(wanted, Corpora(directory, mirror, say))) is not None:
        show(written)
