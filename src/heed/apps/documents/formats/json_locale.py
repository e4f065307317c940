"""Texts of a program in JSON (i18next, FormatJS, Docusaurus, Chrome, .arb): strings are translated, keys stay.

i18next's plurals get the forms of the target. Of an ICU message the words are translated. All other bytes stay.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.directives import has_the_same
from heed.apps.documents.formats.plurals import has_form_for_one, plural_rule
from heed.apps.documents.formats.texts import Edit, edited, strings_job
from heed.apps.documents.text.atoms import KEPT, find_messages
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

MAX_DEPTH = 200  # objects and lists within each other
_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+"')
_OTHER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][-+]?\d++)?+|true|false|null")
# Beside what every format keeps: Chrome's names, and what ICU shows as it is.
_ATOMS = re.compile(r"\$[A-Za-z0-9_@]{1,60}\$|'\{[^{}']{1,200}\}'")
_LANGUAGES = ("@@locale", "locale", "lang", "language")  # keys whose value names the file's language
_QUOTED_ARGUMENT = re.compile(r"(?<!')'(?=[{}])")
# Of objects that describe a text, the one that is shown.
_SHOWN = ("message", "defaultMessage")
_DESCRIBED = frozenset("message defaultMessage description placeholders id hash meaning context comment".split())

Path = tuple[str | int, ...]


class _String(NamedTuple):
    """A value: where it stands in the file, quotes included; its keys from the root on; and what stands before it."""

    start: int
    end: int
    path: Path
    text: str
    lead: str  # white space before its key, of a value in an object


@dataclass
class _Container:
    """An object or a list that is read: the key or the number of its value, and white space before the key."""

    is_object: bool
    key: str | int
    lead: str = ""


def json_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is not JSON.

    Texts of `options.earlier`, a file of the same kind, stay as they are. max_text: as for `document_job`.
    """
    text, mark, _ = decode(content, name=name)
    strings = list(_strings(text, name))
    known: dict[Path, str] = {}
    if options.earlier is not None:
        known = {
            string.path: string.text
            for string in _strings(decode(options.earlier, name="the earlier file").text, "the earlier file")
            if string.text
        }
    named = list(_language_edits(strings, options))
    places = {edit.start for edit in named}
    shown = [string for string in _shown(strings) if string.start not in places]
    asked = [string for string in shown if string.path not in known and needs_translation(string.text)]
    texts = _of_forms(asked, strings, options)
    found = yield from strings_job(texts, options, patterns=[_ATOMS] * len(asked))
    made = {string.start: words for string, words in zip(asked, found, strict=True)}
    is_ascii = text.isascii() and re.search(r"\\u[0-9A-Fa-f]{4}", text) is not None

    edits: list[Edit] = []
    for string in shown:
        words = known.get(string.path, made.get(string.start, string.text))
        if string.start in made and find_messages(string.text):
            words = _QUOTED_ARGUMENT.sub("''", words)  # a single one would make text of the argument behind it
        if words != string.text:
            edits.append(Edit(string.start, string.end, json.dumps(words, ensure_ascii=is_ascii)))
    edits += named
    for string, key, path in _missing_plurals(strings, options):
        words = known.get(path, made.get(string.start, string.text))
        member = f",{string.lead}{json.dumps(key, ensure_ascii=is_ascii)}: {json.dumps(words, ensure_ascii=is_ascii)}"
        edits.append(Edit(string.end, string.end, member))
    return ("\ufeff" * bool(mark) + edited(text, edits)).encode(errors="replace")


def _shown(strings: list[_String]) -> list[_String]:
    """The strings that a reader sees: not those that describe others."""
    keys: dict[Path, set[str | int]] = {}
    for string in strings:
        for depth in range(len(string.path)):
            keys.setdefault(string.path[:depth], set()).add(string.path[depth])

    def is_description(path: Path) -> bool:
        for depth, key in enumerate(path):
            own = keys[path[:depth]]
            if depth and own <= _DESCRIBED and not own.isdisjoint(_SHOWN) and key not in _SHOWN:
                return True
            if isinstance(key, str) and key.startswith("@") and (key.startswith("@@") or key[1:] in own):
                return True  # of .arb
        return False

    return [string for string in strings if not is_description(string.path)]


def _language_edits(strings: list[_String], options: DocumentOptions) -> Iterator[Edit]:
    """What names the source language at the top of the file names the target then."""
    code = options.language.lower()
    for string in strings:
        is_code = len(string.path) == 1 and string.path[0] in _LANGUAGES
        if is_code and code and options.target and re.split("[-_]", string.text)[0].lower() == code:
            yield Edit(string.start, string.end, json.dumps(options.target))


def _of_forms(asked: list[_String], strings: list[_String], options: DocumentOptions) -> list[str]:
    """What is translated of each string: of i18next's singular without a number the plural, if 21 has its form too."""
    if not options.target or has_form_for_one(plural_rule(options.target).expression):
        return [string.text for string in asked]
    texts = {string.path: string.text for string in strings}
    found: list[str] = []
    for string in asked:
        key = str(string.path[-1]) if string.path else ""
        other = texts.get((*string.path[:-1], f"{key[:-3]}other")) if key.endswith("_one") else None
        found.append(string.text if other is None or has_the_same(KEPT, string.text, other) else other)
    return found


def _missing_plurals(strings: list[_String], options: DocumentOptions) -> Iterator[tuple[_String, str, Path]]:
    """i18next's plurals: the text for other numbers, and the key and path of each form that the target needs."""
    paths = {string.path for string in strings}
    for string in strings if options.target else ():
        parents, key = string.path[:-1], string.path[-1] if string.path else None
        if not isinstance(key, str) or not key.endswith("_other") or not string.text:
            continue
        base = key.removesuffix("other")
        if (*parents, base + "one") in paths and not base.endswith("_ordinal_"):
            for form in plural_rule(options.target).categories:
                if (path := (*parents, base + form)) not in paths:
                    yield string, base + form, path


def _strings(text: str, name: str) -> Iterator[_String]:
    """The values of a file that are strings. HeedError names the place of what is not JSON."""
    opened: list[_Container] = []
    place = 0

    def fault(what: str) -> HeedError:
        line, last = text.count("\n", 0, place) + 1, text.rfind("\n", 0, place)
        return HeedError(f"{name}: line {line}, column {place - last}: not JSON: {what}.")

    def skip() -> str:
        nonlocal place
        match = _SPACE.match(text, place)
        assert match
        place = match.end()
        return match[0]

    lead = skip()
    while True:
        # A value, which may open a container; the key before it is read with it.
        if opened and opened[-1].is_object:
            key = _STRING.match(text, place)
            if key is None:
                raise fault("expected a key in quotes")
            place = key.end()
            opened[-1].key, opened[-1].lead = _text_of(key[0]), lead
            skip()
            if text[place : place + 1] != ":":
                raise fault("expected a colon")
            place += 1
            skip()
        sign = text[place : place + 1]
        if sign in ("{", "["):
            if len(opened) == MAX_DEPTH:
                raise fault(f"more than {MAX_DEPTH} levels")
            opened.append(_Container(sign == "{", -1))
            place += 1
            lead = skip()
            if text[place : place + 1] != "}]"[sign == "["]:
                if sign == "[":
                    opened[-1].key = 0
                continue
        elif string := _STRING.match(text, place):
            path = tuple(container.key for container in opened)
            yield _String(place, string.end(), path, _text_of(string[0]), opened[-1].lead if opened else "")
            place = string.end()
        elif other := _OTHER.match(text, place):
            place = other.end()
        else:
            raise fault("expected a value")

        # What may stand behind it: ends of containers, then a comma or the end of the file.
        while True:
            skip()
            if not opened:
                if place < len(text):
                    raise fault("expected the end")
                return
            if text[place : place + 1] == "}]"[not opened[-1].is_object]:
                opened.pop()
                place += 1
                continue
            break
        if text[place : place + 1] != ",":
            raise fault("expected a comma or a closing bracket")
        place += 1
        lead = skip()
        key_of = opened[-1].key
        opened[-1].key = key_of + 1 if isinstance(key_of, int) else key_of


def _text_of(string: str) -> str:
    """The text of a string in quotes; half a pair of surrogates becomes a question mark."""
    text: str = json.loads(string)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
