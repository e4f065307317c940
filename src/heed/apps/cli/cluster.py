"""heed translate-shards, score-shards: many files in parts, by one process, several, a Slurm array or Ray."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.apps.cli.decoding_options import PENALTY, check_options, with_decoding_options
from heed.apps.cli.terminal import PrecisionOption, decoding_precision, say
from heed.decoding.rules import SEARCH_RULES
from heed.decoding.settings import DecodingOptions
from heed.errors import HeedError

if TYPE_CHECKING:
    from heed.apps.cluster.plan import Task
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
Format = Annotated[
    str | None, typer.Option("--format", help="Of the parts: parquet, jsonl or text. Default: the inputs'.")
]
Column = Annotated[str | None, typer.Option(metavar="NAME", help="Column of the texts. Default: text.")]
AddedPrefix = Annotated[str, typer.Option(help="Begins the names of the columns that are added.")]
PartLines = Annotated[int, typer.Option(min=1, help="Rows of a part.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes of this machine that share the work, or with --cluster workers of Ray. 0: as many as there is "
        "room for. Default: this process, or with --cluster 0.",
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        metavar="none|auto|ADDRESS",
        help="A Ray cluster that shares the work: auto (the one that this machine is part of, else one of its own on "
        "loopback) or the ADDRESS of one.",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of a worker.")]
Gpus = Annotated[float, typer.Option("--gpus-per-worker", min=0, help="1 for workers on GPUs. 0: on CPUs.")]
Part = Annotated[
    str | None, typer.Option("--part", metavar="I/N", help="Only the I-th of N shares of the parts, from 1/N to N/N.")
]
MaxErrors = Annotated[
    int, typer.Option(min=0, help="Bad rows to leave out and to list in the folder errors; more end the command.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Time one part, say what the whole will take, and write nothing.")
]
Price = Annotated[float | None, typer.Option(min=0, help="Price of a core-hour, or of a GPU-hour, to say the cost.")]


@with_decoding_options("beam_size", *PENALTY, "early_stopping", "min_tokens", "max_tokens", "max_extra_tokens")
def translate_shards(
    model: Model,
    inputs: Inputs,
    out: Out,
    *,
    column: Column = None,
    output: Format = None,
    prefix: AddedPrefix = "",
    part_lines: PartLines = 100_000,
    cluster: ClusterOption = "none",
    workers: Workers = None,
    threads: Threads = 1,
    gpus_per_worker: Gpus = 0,
    part: Part = None,
    precision: PrecisionOption = "auto",
    decoding: DecodingOptions,
    max_errors: MaxErrors = 100,
    dry_run: DryRun = False,
    price: Price = None,
) -> None:
    """Translate a column of many files in parts; add translation, score and ended. Run again, it resumes."""
    _run(
        "translate", model, inputs, out, columns=(column,), output=output, prefix=prefix, part_lines=part_lines,
        workforce=workforce_of(cluster, workers, part, threads=threads, gpus=gpus_per_worker), precision=precision,
        decoding=decoding, max_errors=max_errors, dry_run=dry_run, price=price,
    )  # fmt: skip


@with_decoding_options(*PENALTY)
def score_shards(
    model: Model,
    inputs: Inputs,
    out: Out,
    *,
    column: Column = None,
    target_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the translations. Default: translation.")
    ] = None,
    output: Format = None,
    prefix: AddedPrefix = "",
    part_lines: PartLines = 100_000,
    cluster: ClusterOption = "none",
    workers: Workers = None,
    threads: Threads = 1,
    gpus_per_worker: Gpus = 0,
    part: Part = None,
    precision: PrecisionOption = "auto",
    decoding: DecodingOptions,
    max_errors: MaxErrors = 100,
    dry_run: DryRun = False,
    price: Price = None,
) -> None:
    """Score pairs of texts in many files in parts; add log_prob and score. Run again, it resumes."""
    _run(
        "score", model, inputs, out, columns=(column, target_column), output=output, prefix=prefix,
        part_lines=part_lines, workforce=workforce_of(cluster, workers, part, threads=threads, gpus=gpus_per_worker),
        precision=precision, decoding=decoding, max_errors=max_errors, dry_run=dry_run, price=price,
    )  # fmt: skip


def _run(
    task: "Task",
    model: Path,
    inputs: list[str],
    out: str,
    *,
    columns: tuple[str | None, ...],
    output: str | None,
    prefix: str,
    part_lines: int,
    workforce: "Workforce",
    precision: str,
    decoding: DecodingOptions,
    max_errors: int,
    dry_run: bool,
    price: float | None,
) -> None:
    check_options(SEARCH_RULES, **decoding)
    checked = decoding_precision(precision)
    from heed.apps.cluster.job import ShardOptions, estimate, make_shards
    from heed.runtime.device import set_n_threads

    set_n_threads(workforce.threads or 1)
    options = ShardOptions(
        task=task, model=model, inputs=inputs, out=out, columns=columns, output=output, part_lines=part_lines,
        prefix=prefix, workforce=workforce, precision=checked, decoding=decoding, max_errors=max_errors, price=price,
    )  # fmt: skip
    (estimate if dry_run else make_shards)(options, say)


def workforce_of(
    cluster: str, workers: int | None, part: str | None, *, threads: int | None, gpus: float = 0
) -> "Workforce":
    """Who works, by the options that each verb has which shares its work. `--cluster local` is a former spelling."""
    from heed.leases.workforce import Workforce

    if cluster == "local":
        cluster, workers = "none", workers or 0
        say(f"--cluster local is --workers {workers} now; its former name is read until the next minor version.")
    return Workforce(cluster=cluster, n_workers=workers, threads=threads, gpus=gpus, share=_share(part))


def _share(part: str | None) -> tuple[int, int]:
    """(i, n) of I/N. HeedError unless 1 ≤ i ≤ n."""
    if part is None:
        return 1, 1
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    share = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= share[0] <= share[1]:
        raise HeedError(f"--part {part}: expected I/N, from 1/N to N/N, such as 3/10.")
    return share
