"""Settings ↔ TOML, with errors that say where and what to do. Knows no field of any setting."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError


class HeedError(Exception):
    """What a user can mend: the message says what was found, where, and what to do. Printed as one line."""


class Stopped(Exception):
    """A signal asked a run to stop, and its state is saved. `signal`: its number."""

    def __init__(self, signal: int):
        super().__init__(signal)
        self.signal = signal


class Settings(BaseModel):
    """Base of all settings: frozen, keyword-only, no unknown names, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


S = TypeVar("S", bound=Settings)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. HeedError if it is missing, not UTF-8, or not TOML (with the line)."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise HeedError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise HeedError(f"{path}: not valid TOML: {error}.") from None


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
        raise HeedError(f"--set {text}: expected NAME=VALUE, such as --set training.max_steps=500.")
    try:
        value = tomllib.loads(f"value = {value_text}")["value"]
    except tomllib.TOMLDecodeError:
        value = value_text.strip()
    for key in reversed(keys):
        value = {key: value}
    return value


def validated(kind: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """`values` as settings of type `kind`. HeedError names the setting, its fault and the nearest known name."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _known_names(kind)
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_siblings(known, name))}."
            raise HeedError(f"{where}: unknown setting {name}; {hint}") from None
        message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        message = message[:1].lower() + message[1:]
        found = f", found {first['input']!r}" if first["type"] not in ("missing", "value_error") else ""
        subject = f"setting {name}: " if name else ""
        raise HeedError(f"{where}: {subject}{message.rstrip('.')}{found}.") from None


def _known_names(kind: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in kind.model_fields.items():
        names.append(prefix + name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += _known_names(inner, f"{prefix}{name}.")
    return names


def _siblings(known: list[str], name: str) -> list[str]:
    parent = name.rpartition(".")[0]
    return [other for other in known if other.rpartition(".")[0] == parent]
