"""The options of search: made from the fields of DecodingSettings; rules on what may be combined with them."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_origin

import typer

from heed.decoding.rules import SEARCH_RULES, Rule, Spelling, check_rules
from heed.decoding.settings import DecodingSettings

# Options that are not named as their parameter is.
NAMES = {"beam_size": "--beam", "as_json": "--json", "document_format": "--format"}
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


def with_decoding_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a verb an option for each of these fields, in place of its parameter `decoding: DecodingOptions`."""

    def decorated(verb: Callable[..., None]) -> Callable[..., None]:
        # Typer reads the options from the signature.
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(verb).parameters.values():
            is_decoding = parameter.name == "decoding"
            parameters += map(_parameter, names) if is_decoding else [parameter.replace(kind=parameter.KEYWORD_ONLY)]

        @functools.wraps(verb)
        def with_options(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in names}
            verb(**arguments, decoding={name: value for name, value in given.items() if value is not None})

        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorated


def _parameter(name: str) -> inspect.Parameter:
    """The parameter of a verb for a field of DecodingSettings; None if the option is not given."""
    kind: Any = DecodingSettings.model_fields[name].annotation
    kind = str if get_origin(kind) is Literal else kind  # DecodingSettings says which texts there are
    option: Any = Annotated[kind | None, decoding_option(name)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)


TRANSLATE_RULES = (
    *(
        Rule((option,), f"{{{option}}} is for documents; give {{document_format}} too.", without="document_format")
        for option in ("language", "keep", "attributes", "glossary", "cues")
    ),
    Rule(
        ("n_best", "scores", "as_json", "prefix", "prefixes", "sample", "mbr", "strict"),
        "{these} {is|are} for lines; leave out {document_format} or {these}.",
        beside="document_format",
    ),
    Rule(("prefix",), "{prefixes} has a prefix for each line; leave out {prefix}.", beside="prefixes"),
    Rule(("top_k", "top_p", "seed"), "{these} {needs|need} {sample} TEMPERATURE.", without="sample"),
    Rule(("utility",), "{utility} needs {mbr} N.", without="mbr"),
    Rule(("beam_size",), "{mbr=} is the size of the beam too; leave out {beam_size}.", beside="mbr"),
    Rule(("beam_size",), "{sample} draws {n_best} translations; {beam_size} is for search only.", beside="sample"),
    Rule(("early_stopping",), "{early_stopping} is for search only; leave it out with {sample}.", beside="sample"),
    Rule(
        PENALTY,
        "{these} {changes|change} only the scores of samples; add {scores} or {as_json}, or leave {it|them} out.",
        beside="sample",
        # Scores order --n-best samples, unless --mbr does; --scores and --json show them.
        when=lambda given: ("n_best" not in given or "mbr" in given) and not given.keys() & {"scores", "as_json"},
    ),
    *SEARCH_RULES,
    Rule(
        ("n_best",),
        "{n_best=} needs as many candidates, but {mbr} is {=mbr}; 100 is the most.",
        beside="mbr",
        when=lambda given: given["n_best"] > given["mbr"],
    ),
)
# Of what the model's recipe says too.
LOADED_RULES = (
    Rule(
        ("n_best",),
        "{n_best=} needs a beam of at least {=n_best}, found {=beam_size}; set {beam_size}.",
        when=lambda given: given["n_best"] > given["beam_size"],
    ),
)
EVALUATE_RULES = (
    Rule(
        (*DecodingSettings.model_fields, "device", "precision"),
        "{hyp} is translated already: leave out {these}, which {says|say} how a model translates.",
        beside="hyp",
    ),
    *SEARCH_RULES,
)


def check_options(rules: Iterable[Rule], **options: object) -> None:
    """HeedError for the first rule that a verb's options break. Those that are None, "" or an unset flag are not given.

    A flag that is None unless it is given, as --early-stopping/--exact, may be False.
    """
    unset = {name for name, value in options.items() if value == "" or (value is False and name not in FLAGS)}
    check_rules(rules, {name: value for name, value in options.items() if name not in unset}, COMMAND_LINE)
