"""heed prepare: the text of a run, prepared by one process, several, a Slurm array or Ray."""

import os
from pathlib import Path
from typing import Annotated

import typer

from heed.apps.cli.cluster import Part, share_of
from heed.apps.cli.terminal import Directory, Mirror, say, show


def prepare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (heed recipe list), a TOML file, or a run folder.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override one setting; repeatable.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", "--run-folder", help="Run folder. Default: runs/NAME of the recipe.")
    ] = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: this one, or with --cluster all there is.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a worker. Default: an equal share of this machine's cores.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="A Ray cluster: auto (the one that this machine is part of) or the ADDRESS of one."),
    ] = None,
    part: Part = None,
) -> None:
    """Prepare a run's text before it is trained, by many workers if it is large. Run again, it resumes.

    Corpora of more than 10 million pairs, and others if data.shard_pairs is set, are kept in shards.
    """
    from heed.data.corpora.download import Corpora
    from heed.data.preparation.job import Workforce
    from heed.runs.prepare import prepare_run
    from heed.runs.recipe import is_run_folder, read_recipe

    run = run or (Path(recipe) if is_run_folder(recipe) else Path("runs") / Path(recipe).stem)
    values = read_recipe(recipe, settings or [])
    who = cluster or ("local" if workers is not None and workers > 1 else "none")
    if who == "none" and threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer, which starts them when it is first used
    workforce = Workforce(cluster=who, n_workers=workers, threads=threads, share=share_of(part))
    if prepare_run(values, run, Corpora(directory, mirror, say), workforce):
        show(f"Prepared: {run / 'data'}")
