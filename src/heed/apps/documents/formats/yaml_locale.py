"""Texts of a program in YAML (Rails, Symfony): values that are texts are translated; all else keeps its bytes.

A value is written in the style that it has, if that can hold its words, and else in double quotes. Plurals get the
forms of the target, and a root that is named by the source language, as in Rails, gets the target's name.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import yaml

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.plain_text import write_text
from heed.apps.documents.formats.texts import Edit, Text, edited, keyed_texts_job, read_forms
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

MAX_DEPTH = 200  # mappings and lists within each other
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # not every PyYAML has the faster one
_STRING = "tag:yaml.org,2002:str"
_RESOLVER = yaml.resolver.Resolver()
_PROPERTIES = re.compile(r"(?:[&!]\S*+\s++)*+")  # an anchor and a tag before a value
_SYMBOL = re.compile(r":[A-Za-z_]\w*+|ltr|rtl")  # of Ruby, and a direction of writing
_ATOMS = re.compile(r"(?<![\d%])%[-_0^#]?[A-Za-z](?![A-Za-z])")  # of a date or a price, as in "%d. %B" and "%n %u"
_BLOCK = re.compile(r"([^\n]*+)\n(?:[ \t]*+\n)*+([ \t]*+)")  # a block's head, and what its first line begins with


@dataclass
class _Collection:
    """A mapping or a list that is read: the key or the number of its value; before a key None.

    indent: columns before the key. place: where the key stands. is_key: it is a key itself.
    """

    is_mapping: bool
    is_flow: bool
    is_key: bool
    key: str | int | None
    indent: int = 0
    place: tuple[int, int] = (0, 0)


def yaml_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is not YAML.

    Texts of `options.earlier`, a file of the same kind, stay as they are. max_text: as for `document_job`.
    """
    text, mark, codec = decode(content, name=name)
    texts, named = _read(text, options.language, name)

    def read(content: bytes, name: str) -> list[Text]:
        return _read(decode(content, name=name).text, options.target, name)[0]

    edits = yield from keyed_texts_job(texts, options, read)
    if options.target:
        edits += [Edit(*place, options.target) for place in named]
    return mark + edited(text, edits).encode(codec, errors="replace")


def _read(text: str, language: str, name: str) -> tuple[list[Text], list[tuple[int, int]]]:
    """The texts of a file, and where a root stands that the language names; no other root's texts are its own then."""
    code = re.split("[-_]", language)[0].lower()
    roots: dict[str | int | None, tuple[int, int]] = {}
    try:
        texts = list(_texts(text, name, roots))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise HeedError(f"{name}: {place}not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise HeedError(f"{name}: not YAML: {str(error).partition(chr(10))[0]}.") from None
    own = {root: place for root, place in roots.items() if code and re.split("[-_]", str(root))[0].lower() == code}
    if own:
        texts = [replace(text, key=text.key[1:]) for text in texts if text.key[0] in own]
    return texts, list(own.values())


def _texts(text: str, name: str, roots: dict[str | int | None, tuple[int, int]]) -> Iterator[Text]:
    """The values that are texts. roots: gets the keys of mappings at the top, and where these keys stand."""
    opened: list[_Collection] = []

    def end_value() -> None:
        if opened:
            opened[-1].key = opened[-1].key + 1 if isinstance(opened[-1].key, int) else None

    for event in yaml.parse(text, Loader=_LOADER):
        inner = opened[-1] if opened else None
        is_key = inner is not None and inner.key is None
        if isinstance(event, yaml.CollectionStartEvent):
            if len(opened) == MAX_DEPTH:
                raise HeedError(f"{name}: line {event.start_mark.line + 1}: more than {MAX_DEPTH} levels.")
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            if inner and is_key:
                inner.key = ""
            elif inner and inner.is_mapping and is_mapping and len(opened) == 1:
                roots[inner.key] = inner.place
            opened.append(_Collection(is_mapping, bool(event.flow_style), is_key, None if is_mapping else 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            if not opened.pop().is_key:
                end_value()
        elif isinstance(event, yaml.AliasEvent | yaml.ScalarEvent):
            start, end = event.start_mark.index, event.end_mark.index
            if inner and is_key:
                inner.key = event.value if isinstance(event, yaml.ScalarEvent) else ""
                n_quotes = bool(event.style) if isinstance(event, yaml.ScalarEvent) else 0
                inner.indent, inner.place = event.start_mark.column, (start + n_quotes, end - n_quotes)
                continue
            is_text = isinstance(event, yaml.ScalarEvent) and _is_text(event)
            if is_text and not any(one.is_key for one in opened):
                yield _text(text, event, opened)
            end_value()


def _is_text(event: Any) -> bool:
    """Whether a value is words, not a number, a date, a symbol or the like."""
    if event.tag not in (None, "!", _STRING) or not event.value or _SYMBOL.fullmatch(event.value):
        return False
    return bool(event.style) or event.tag or _RESOLVER.resolve(yaml.ScalarNode, event.value, (True, False)) == _STRING


def _text(text: str, event: Any, opened: list[_Collection]) -> Text:
    start, end = event.start_mark.index, event.end_mark.index
    properties = _PROPERTIES.match(text, start, end)
    assert properties
    start = properties.end()
    raw = text[start:end].rstrip()  # a block ends with the line behind it
    end = start + len(raw)
    inner = opened[-1] if opened else _Collection(False, False, False, 0)
    is_flow, indent = inner.is_flow, " " * inner.indent

    def sibling(key: str, written: str) -> Edit:
        if is_flow:
            return Edit(end, end, f", {key}: {written}")
        behind = text.find("\n", end)  # a comment stays beside its value
        behind = behind if behind >= 0 else len(text)
        return Edit(behind, behind, f"\n{indent}{key}: {written}")

    return Text(
        start=start,
        end=end,
        items=read_forms(event.value, _ATOMS),
        write=_writer(raw, event.style, text[end : event.end_mark.index], is_flow=is_flow),
        key=tuple(one.key for one in opened if one.key is not None),
        raw=raw,
        sibling=sibling if inner.is_mapping else None,
        can_number=False,
    )


def _writer(raw: str, style: str | None, behind: str, *, is_flow: bool) -> Callable[[list[Item]], str]:
    """behind: the line ends that end a block."""

    def write(items: list[Item]) -> str:
        words = write_text(items)
        if style in ("|", ">") and (block := _BLOCK.match(raw)):
            lines = words.rstrip("\n").split("\n")
            between = "\n" if style == "|" else "\n\n"  # a line end of a folded text is an empty line
            made = f"{block[1]}\n{between.join((block[2] + line).rstrip() for line in lines)}"
            if _says(f"{made}{behind}", words):
                return made
        quote = style if style in ("'", '"') and "\n" not in words else '"' if style or "\n" in words else None
        value = [words] if is_flow else words
        scalar: str = yaml.dump(
            value,
            Dumper=yaml.SafeDumper,
            default_style=quote,
            default_flow_style=True,
            allow_unicode=True,
            width=2**30,
        )
        scalar = scalar.removesuffix("\n").removesuffix("\n...")
        return scalar[1:-1] if is_flow else scalar

    return write


def _says(made: str, words: str) -> bool:
    """Whether a value that is written so is these words."""
    try:
        # Event by event: what breaks out of the block may be nested without end, which a loader would follow.
        events = list(islice(yaml.parse(f"a: {made}", Loader=_LOADER), 6))
    except yaml.YAMLError:
        return False
    _, _, _, _, value, end = events + [None] * (6 - len(events))
    return isinstance(value, yaml.ScalarEvent) and value.value == words and isinstance(end, yaml.MappingEndEvent)
