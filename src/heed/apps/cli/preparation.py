"""heed prepare: the text of a run, prepared by one process, several, a Slurm array or Ray."""

import os
from pathlib import Path
from typing import Annotated

import typer

from heed.apps.cli.cluster import ClusterOption, Part, Workers, workforce_of
from heed.apps.cli.terminal import Directory, Mirror, Overrides, RecipeName, say, show


def prepare(
    recipe: RecipeName,
    settings: Overrides = None,
    run: Annotated[
        Path | None, typer.Option("--run", "--run-folder", help="Run folder. Default: runs/NAME of the recipe.")
    ] = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    workers: Workers = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a worker. Default: an equal share of this machine's cores.")
    ] = None,
    cluster: ClusterOption = "none",
    part: Part = None,
) -> None:
    """Prepare a run's text before it is trained, by many workers if it is large. Run again, it resumes.

    Corpora of more than 10 million pairs, and others if data.shard_pairs is set, are kept in shards.
    """
    from heed.data.corpora.download import Corpora
    from heed.runs.prepare import prepare_run
    from heed.runs.recipe import is_run_folder, read_recipe

    run = run or (Path(recipe) if is_run_folder(recipe) else Path("runs") / Path(recipe).stem)
    values = read_recipe(recipe, settings or [])
    workforce = workforce_of(cluster, workers, part, threads=threads)
    if workforce.is_this_process and threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer, which starts them when it is first used
    if prepare_run(values, run, Corpora(directory, mirror, say), workforce):
        show(f"Prepared: {run / 'data'}")
