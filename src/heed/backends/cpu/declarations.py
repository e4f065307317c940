"""The declarations of csrc/kernels.h for Python, read from the header, so that nothing of it is written down twice."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cffi import FFI

FOLDER = Path(__file__).parent / "csrc"
KINDS = ("float", "bf16")  # the types of number for which typed_kernels.h is included
Address = Any  # cffi's pointer to void
Structure = Any  # cffi's pointer to a structure, or several, that it owns


def _in_c(text: str) -> str:
    """C that cffi reads: pointers to numbers of a template's T, or of bf16, become pointers to void."""
    text = "\n".join(line.partition("//")[0].rstrip() for line in text.splitlines())
    text = re.sub(r"^(#.*|extern \"C\" \{|namespace heed \{|\})$", "", text, flags=re.MULTILINE)
    text = re.sub(r"template <class T>|<T>|\bheed::|HEED_EXPORT ", "", text)
    text = re.sub(r"^ +\w+ \w+\(\) const \{.*\}$", "", text, flags=re.MULTILINE)  # member functions
    text = re.sub(r"std::atomic<(\w+)>", r"\1", text)
    text = re.sub(r"\b(T|bf16)\b", "void", text)
    return re.sub(r"(struct|enum) (\w+) (\{[^}]*\});", r"typedef \1 \2 \3 \2;", text)


def _declarations() -> str:
    typed = (FOLDER / "typed_kernels.h").read_text("utf-8")
    of_kinds = [re.sub(r"KERNEL\((\w+)\)", rf"\1_{kind}", typed) for kind in KINDS]
    return "\n".join(map(_in_c, [(FOLDER / "kernels.h").read_text("utf-8"), *of_kinds]))


def _parameters(declarations: str) -> dict[str, tuple[str, ...]]:
    """The names of each function's parameters."""
    functions = re.findall(r"^\w+ (\w+)\(([^)]*)\);", declarations, flags=re.MULTILINE)
    return {name: tuple(re.findall(r"(\w+)(?:,|$)", listed)) for name, listed in functions}


_TEXT = _declarations()
ffi = FFI()
ffi.cdef(_TEXT)
PARAMETERS = _parameters(_TEXT)
_ADDRESS = ffi.typeof("void *")


def address(at: int) -> Address:
    """A place in memory, as structures and kernels take it."""
    return ffi.cast(_ADDRESS, at)


def structure(name: str, **fields: Any) -> Structure:
    """A structure of kernels.h. KeyError if it has no field of a name; what its addresses lead to is not kept."""
    return ffi.new(f"{name} *", {field: value for field, value in fields.items() if value is not None})


def array(name: str, structures: Sequence[Structure]) -> Structure:
    """Copies of structures of one kind, one after the other."""
    return ffi.new(f"{name}[]", [of[0] for of in structures])


def constants(enum: str) -> dict[str, int]:
    """The names and values of an enumeration of kernels.h."""
    return dict(ffi.typeof(enum).relements)
