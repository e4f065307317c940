"""Settings ↔ TOML, with errors that say where and what to do. Knows no field of any setting."""

import functools
import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from heed.errors import HeedError
from heed.runtime.reading import read_bounded
from heed.suggestions import advice, did_you_mean, names_meant, names_of_meaning

log = logging.getLogger(__name__)
MAX_TOML_BYTES = 2**18
MAX_DEPTH = 16  # of nested tables and lists; no setting lies deeper than 3
MAX_DOTS = 256  # in one line of TOML: the parser's memory grows with the square of a dotted key's parts
SHOWN = 80  # characters that an error shows of a value
_INCOMPLETE = ("missing", "value_error")  # pydantic's errors that more settings may mend


if TYPE_CHECKING:  # a checker would take the signature below for that of every kind of settings
    _Model = BaseModel
else:

    class _Kind(type(BaseModel)):
        def __call__(cls, *args: Any, **values: Any) -> Any:
            """Makes a HeedError of what a program gets wrong; pydantic makes the settings in a table without this."""
            if args:
                raise TypeError(f"{cls.__name__} takes settings by name, such as {next(iter(cls.model_fields))}=….")
            try:
                return super().__call__(**values)
            except ValidationError as error:
                raise _setting_error(cls, error, cls.__name__) from None

    class _Model(BaseModel, metaclass=_Kind):
        pass


class Settings(_Model):
    """Base of all settings: frozen, keyword-only, no unknown names, no silent conversion of types, no NaN or ∞."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
    # Names that settings had in the minor version before, which files and commands may still use: former → current.
    FORMER_NAMES: ClassVar[Mapping[str, str]] = {}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What differs from the defaults."""
        for name, value in super().__repr_args__():
            if name is None or value != type(self).model_fields[name].get_default(call_default_factory=True):
                yield name, value

    @model_validator(mode="before")
    @classmethod
    def _take_former_names(cls, values: Any) -> Any:
        return current_names(cls, values)


S = TypeVar("S", bound=Settings)


def current_names(kind: type[BaseModel], values: Any) -> Any:
    """`values` of a table, and of those in it, under the settings' current names; each former one is reported once.

    ValueError if a setting stands under both names. Anything but a table is left to validation.
    """
    if not isinstance(values, Mapping):
        return values
    renamed = dict(values)
    for former, current in getattr(kind, "FORMER_NAMES", {}).items():
        if former in renamed:
            if current in renamed:
                raise ValueError(f"{former} is the former name of {current}; leave it out")
            renamed[current] = renamed.pop(former)
            _report_former_name(former, current)
    for name, field in kind.model_fields.items():
        for inner in get_args(field.annotation) or (field.annotation,):
            if name in renamed and isinstance(inner, type) and issubclass(inner, BaseModel):
                renamed[name] = current_names(inner, renamed[name])
    return renamed


@functools.cache
def _report_former_name(former: str, current: str) -> None:
    # Without a handler of the program's own, logging writes it to standard error.
    log.warning(
        "The setting %s is called %s now; its former name is read until the next minor version.", former, current
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. HeedError if it is missing, no regular file, not UTF-8, or not TOML (with line)."""
    try:
        return toml_tables(read_bounded(path, MAX_TOML_BYTES).decode("utf-8-sig"))  # some editors write its signature
    except UnicodeDecodeError as error:
        raise HeedError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8.") from None
    except ValueError as error:
        raise HeedError(f"{path}: not valid TOML: {cut(str(error), 4 * SHOWN)}.") from None


def toml_tables(text: str) -> dict[str, Any]:
    """The tables of a TOML text. ValueError if it is none, or one made to exhaust the parser."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"line {number} has more than {MAX_DOTS} dots; break it into several lines")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own: it reads no longer one
        raise ValueError("an integer has more than 4,300 digits") from None
    except RecursionError:
        raise ValueError("tables or lists are nested too deeply") from None
    _check_depth(tables)
    return tables


def _check_depth(tables: dict[str, Any]) -> None:
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        nested = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in nested for value in values if isinstance(value, (dict, list))]
    if level:
        raise ValueError("tables or lists are nested too deeply")


def cut(text: str, length: int = SHOWN) -> str:
    """The text, or its first `length` characters and "…"."""
    return text if len(text) <= length else text[:length] + "…"


def reason(error: BaseException) -> str:
    """Another library's error message, on one line and cut short."""
    return cut(" ".join(str(error).split()), 4 * SHOWN)


def shown(value: object) -> str:
    """A value as an error names it: in quotes if it is text, without control characters, cut short."""
    try:
        return cut(repr(value[:SHOWN] + "…" if isinstance(value, str) and len(value) > SHOWN else value))
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or nested too deeply
        return f"a value of type {type(value).__name__} that is too long to show"


def _in_one_line(text: str) -> str:
    """Without control characters, which a name in a file may have."""
    return text if text.isprintable() else repr(text)[1:-1]


def toml_text(settings: Mapping[str, Any]) -> str:
    """TOML of nested settings; None stands for "not set" and is left out."""

    def without_none(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: without_none(item) for key, item in value.items() if item is not None}
        return [without_none(item) for item in value] if isinstance(value, (list, tuple)) else value

    return tomli_w.dumps(without_none(settings))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, table by table."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def parse_override(text: str) -> dict[str, Any]:
    """Nested tables of one `--set a.b=value`; the value is TOML, or else a plain string."""
    name, equals, value_text = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise HeedError(f"--set {cut(text)}: expected NAME=VALUE, such as --set training.max_steps=500.")
    try:
        value = toml_tables(f"value = {value_text}")["value"]
        if toml_tables(f"value = [{value_text}]") != {"value": [value]}:  # a comment, or more than one line
            value = value_text.strip()
    except tomllib.TOMLDecodeError:
        value = value_text.strip()
    except ValueError as error:
        raise HeedError(f"--set {cut(text)}: {error}.") from None
    if len(keys) > MAX_DEPTH:
        raise HeedError(f"--set {cut(text)}: no setting's name has more than {MAX_DEPTH} parts.")
    tables = {keys[-1]: value}
    for key in reversed(keys[:-1]):
        tables = {key: tables}
    return tables


def parse_overrides(texts: Sequence[str], kind: type[BaseModel], *, beside: str) -> dict[str, Any]:
    """`parse_override` of all. HeedError for a setting that `kind` lacks, or for a value that it never has.

    beside: a name that files have beside the settings.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        changes = merged(changes, parse_override(text))
    try:
        kind.model_validate({name: value for name, value in changes.items() if name != beside})
    except ValidationError as error:
        # What is missing comes from a file, and what else is wrong may depend on it.
        if any(each["type"] not in _INCOMPLETE for each in error.errors()):
            raise _setting_error(kind, error, "--set") from None
    return changes


def validated(kind: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """`values` as settings of type `kind`. HeedError names the setting, its fault and the nearest known name."""
    try:
        return kind.model_validate(values)
    except UnicodeEncodeError as error:  # a name with half a surrogate pair, which only a command line can hold
        raise HeedError(f"{where}: {shown(error.object)} is not valid Unicode text; write it in UTF-8.") from None
    except ValidationError as error:
        raise _setting_error(kind, error, where) from None


def _setting_error(kind: type[BaseModel], error: ValidationError, where: str) -> HeedError:
    """One line for one of pydantic's errors: the setting, its fault, what is known."""
    first = min(error.errors(), key=lambda each: each["type"] in _INCOMPLETE)
    name = cut(_in_one_line(".".join(str(part) for part in first["loc"])))
    if first["type"] == "extra_forbidden":
        beside = _names_beside(kind, first["loc"])
        known = [each for each in (*beside, *known_names(kind)) if not name.startswith(f"{each}.")]
        meant = names_of_meaning(name, known)
        hint_by_meaning = "" if meant else advice(name)
        meant = meant or names_meant(name, known, cutoff=0.5)
        if isinstance(first["input"], dict) and not any(each.startswith(f"{name}.") for each in known):
            # A table that does not exist: what is set in it tells more than its name.
            inside = [each for key in first["input"] for each in names_meant(f"{name}.{key}", known, cutoff=0.9)]
            meant, hint_by_meaning = inside or meant, "" if inside else hint_by_meaning
        hint = f"{hint_by_meaning}." if hint_by_meaning else did_you_mean(meant) or f"known: {', '.join(beside)}."
        return HeedError(f"{where}: unknown setting {name}; {hint}")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = cut(_in_one_line(message[:1].lower() + message[1:]), 4 * SHOWN)
    given = f", found {shown(first['input'])}" if first["type"] not in ("missing", "value_error") else ""
    subject = f"setting {name}: " if name else ""
    return HeedError(f"{where}: {subject}{message.rstrip('.')}{given}.")


def known_names(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """All settings, in tables too; not in lists and dictionaries of tables, whose keys a file decides."""
    names = []
    for name, field in kind.model_fields.items():
        names.append(prefix + name)
        if get_origin(field.annotation) not in (list, dict):
            for inner in _tables_in(field.annotation):
                names += known_names(inner, f"{prefix}{name}.")
    return names


def _names_beside(kind: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The settings that the table has in which a name is unknown. place: the keys that lead to that name."""
    for key in place[:-1]:
        if isinstance(key, str) and key in kind.model_fields:  # else a key of a dictionary, or a number in a list
            kind = next(_tables_in(kind.model_fields[key].annotation), kind)
    prefix = "".join(f"{key}." for key in place[:-1])
    return [prefix + name for name in kind.model_fields]


def _tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The kinds of tables that a field of this type can hold, itself or in lists and dictionaries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables_in(inner)
