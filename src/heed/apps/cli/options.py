"""Options that several verbs have: those of search are made from the fields of DecodingSettings."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_origin

import typer

from heed.apps.cli.guesses import complete_recipe, complete_setting
from heed.apps.cli.terminal import say
from heed.decoding.option_rules import Rule, Spelling, check_rules
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError

if TYPE_CHECKING:
    from heed.decoding.settings import SamplingSettings
    from heed.leases.workforce import Workforce
    from heed.runtime.device import DecodingPrecisionChoice

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Mirror = Annotated[
    str | None, typer.Option(help="Local folder or URL to take the corpus from, instead of where it was published.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Override one setting; repeatable.", autocompletion=complete_setting
    ),
]
RecipeName = Annotated[
    str,
    typer.Argument(
        help="A recipe's name (heed recipe list), a TOML file, or a run folder.", autocompletion=complete_recipe
    ),
]
Directory = Annotated[Path, typer.Option("--dir", help="Folder of downloaded corpora.")]

PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        help="fp32, int8, bf16 (on a GPU, or with AMX), or auto: the fastest here. Results in fp32 and int8 do not "
        "depend on the batch.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: the fastest available.")]
From = Annotated[str | None, typer.Option("--from", metavar="CODE", help="Source language, for a model of several.")]
To = Annotated[str | None, typer.Option("--to", metavar="CODE", help="Target language, for a model of several.")]
Tokenize = Annotated[
    str,
    typer.Option(
        help="BLEU's tokenisation, as sacrebleu names it: 13a for raw text, none for tokenised text. auto: 13a, or "
        "another if the target language is written without spaces."
    ),
]
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
        metavar="ADDRESS",
        help="A Ray cluster that shares the work: auto (the one that this machine is part of, else one of its own on "
        "loopback) or the ADDRESS of one.",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of a worker.")]
Gpus = Annotated[float, typer.Option("--gpus-per-worker", min=0, help="1 for workers on GPUs. 0: on CPUs.")]
Part = Annotated[
    str | None, typer.Option("--part", metavar="I/N", help="Only the I-th of N shares of the parts, from 1/N to N/N.")
]

# Options that are not named as their parameter is.
NAMES = {
    "beam_size": "--beam",
    "as_json": "--json",
    "document_format": "--format",
    "source": "--from",
    "target": "--to",
}
FLAGS = {"early_stopping": ("--early-stopping", "--exact")}  # True, False
PENALTY = ("length_penalty", "length_penalty_form")


class _OnTheCommandLine(Spelling):
    """How a user of the commands writes a setting."""

    def name(self, name: str, value: object) -> str:
        if name in FLAGS:
            return FLAGS[name][value is False]
        return NAMES.get(name, f"--{name.replace('_', '-')}")

    def with_value(self, name: str, value: object) -> str:
        return self.name(name, value) if isinstance(value, bool) else f"{self.name(name, value)} {value}"


COMMAND_LINE = _OnTheCommandLine()


def decoding_option(name: str, *, default: str = " Default: the model's recipe.") -> Any:
    """The option of a field of DecodingSettings, whose description is its help.

    Typer checks the least value of a whole number; DecodingSettings checks the rest when the model is loaded.
    """
    field = DecodingSettings.model_fields[name]
    flags = FLAGS.get(name)
    declaration = "/".join(flags) if flags else COMMAND_LINE.name(name, None)
    is_whole = field.annotation in (int, int | None)
    least = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    meaning = field.description or ""
    for other in sorted(DecodingSettings.model_fields, key=len, reverse=True):  # length_penalty_form first
        meaning = meaning.replace(other, COMMAND_LINE.name(other, None))
    text = f"{meaning[0].upper()}{meaning[1:]}.{default}"
    return typer.Option(declaration, min=least if is_whole else None, help=text)


def with_options(**makers: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a verb the options that these functions take, in place of its parameters of their names.

    Such a parameter's value is what its function returns.
    """
    taken = {name: inspect.signature(make).parameters for name, make in makers.items()}

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        # Typer reads the options from the signature.
        own = inspect.signature(verb).parameters.values()
        of_each = (taken.get(parameter.name, {"": parameter}).values() for parameter in own)
        parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in chain.from_iterable(of_each)]

        @functools.wraps(verb)
        def with_options(**arguments: Any) -> None:
            made = {name: make(**{each: arguments.pop(each) for each in taken[name]}) for name, make in makers.items()}
            verb(**arguments, **made)

        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorated


def decoding_of(*names: str) -> Callable[..., dict[str, Any]]:
    """Takes an option for each of these fields of DecodingSettings, and returns those that are given."""

    def given(**values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    given.__signature__ = inspect.Signature(list(map(_parameter, names)))  # type: ignore[attr-defined]
    return given


def _parameter(name: str) -> inspect.Parameter:
    """The parameter of a verb for a field of DecodingSettings; None if the option is not given."""
    kind: Any = DecodingSettings.model_fields[name].annotation
    kind = str if get_origin(kind) is Literal else kind  # DecodingSettings says which texts there are
    option: Any = Annotated[kind | None, decoding_option(name)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)


def check_options(rules: Iterable[Rule], **options: object) -> None:
    """HeedError for the first rule that a verb's options break. Those that are None, "" or an unset flag are not given.

    A flag that is None unless it is given, as --early-stopping/--exact, may be False.
    """
    unset = {name for name, value in options.items() if value == "" or (value is False and name not in FLAGS)}
    check_rules(rules, {name: value for name, value in options.items() if name not in unset}, COMMAND_LINE)


def decoding_precision(name: str) -> "DecodingPrecisionChoice":
    """The name, if decoding has this precision; else HeedError lists those it has."""
    if name not in ("auto", "fp32", "bf16", "int8"):
        raise HeedError(f"--precision {name}: expected auto, fp32, bf16 or int8.")
    return cast("DecodingPrecisionChoice", name)


def sampling_settings(
    temperature: float | None, *, top_k: int | None, top_p: float, seed: int | None
) -> "SamplingSettings | None":
    """The settings of --sample, or None without it. HeedError for values out of range."""
    if temperature is None:
        return None
    from heed.config import validated
    from heed.decoding.settings import SamplingSettings

    values = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": 1 if seed is None else seed}
    return validated(SamplingSettings, values, where="--sample")


def workforce_of(
    cluster: ClusterOption = "none",
    workers: Workers = None,
    threads: Threads = 1,
    gpus_per_worker: Gpus = 0,
    part: Part = None,
) -> "Workforce":
    """Who works, by the options that each verb has which shares its work. `--cluster local` is a former spelling."""
    from heed.leases.workforce import Workforce

    if cluster == "local":
        cluster, workers = "none", workers or 0
        say(f"--cluster local is --workers {workers} now; its former name is read until the next minor version.")
    return Workforce(cluster=cluster, n_workers=workers, threads=threads, gpus=gpus_per_worker, share=_share(part))


def cpus_of(
    workers: Workers = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a worker. Default: an equal share of this machine's cores.")
    ] = None,
    cluster: ClusterOption = "none",
    part: Part = None,
) -> "Workforce":
    """Who works where no GPU does, as `workforce_of`."""
    return replace(workforce_of(cluster, workers, part=part), threads=threads)


def _share(part: str | None) -> tuple[int, int]:
    """(i, n) of I/N. HeedError unless 1 ≤ i ≤ n."""
    if part is None:
        return 1, 1
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    share = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= share[0] <= share[1]:
        raise HeedError(f"--part {part}: expected I/N, from 1/N to N/N, such as 3/10.")
    return share
