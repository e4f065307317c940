"""Texts of a program in JSON (i18next, FormatJS, Docusaurus, Chrome, .arb): strings are translated, keys stay.

Plurals get the forms of the target. Of an ICU message the words are translated. All other bytes stay.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.plain_text import write_text
from heed.apps.documents.formats.texts import Edit, Key, Text, edited, keyed_texts_job, read_forms
from heed.apps.documents.text.atoms import find_messages
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

MAX_DEPTH = 200  # objects and lists within each other
_TOKEN = re.compile(r'(?<![ \t\r\n])([ \t\r\n]*+)("(?:[^"\\]|\\.)*+"|[\[\]{},])')
# Beside what every format keeps: Chrome's names, what ICU shows as it is, and Laravel's names.
_ATOMS = re.compile(r"\$[A-Za-z0-9_@]{1,60}\$|'\{[^{}']{1,200}\}'|(?<![\w:.]):[A-Za-z]\w{1,40}(?![\w:])")
_LANGUAGES = ("@@locale", "locale", "lang", "language")  # keys whose value names the file's language
_QUOTED_ARGUMENT = re.compile(r"(?<!')'(?=[{}])")
# Of objects that describe a text, the one that is shown.
_SHOWN = ("message", "defaultMessage")
_DESCRIBED = frozenset("message defaultMessage description placeholders id hash meaning context comment".split())


@dataclass
class _Container:
    """An object or a list that is read: the key or the number of its value, and white space before the key."""

    is_object: bool
    key: str | int | None
    lead: str = ""


def json_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is not JSON.

    Texts of `options.earlier`, a file of the same kind, stay as they are. max_text: as for `document_job`.
    """
    text, mark, _ = decode(content, name=name)
    texts = list(_texts(text, name))
    named = list(_language_edits(texts, options))
    places = {edit.start for edit in named}
    shown = [text for text in _shown(texts) if text.start not in places]
    translated = yield from keyed_texts_job(
        shown, options, lambda file, name: _texts(decode(file, name=name).text, name)
    )
    return ("\ufeff" * bool(mark) + edited(text, [*translated, *named])).encode(errors="replace")


def _shown(texts: list[Text]) -> list[Text]:
    """The texts that a reader sees: not those that describe others."""
    keys: dict[Key, set[str | int]] = {}
    for text in texts:
        for depth in range(len(text.key)):
            keys.setdefault(text.key[:depth], set()).add(text.key[depth])

    def is_description(path: Key) -> bool:
        for depth, key in enumerate(path):
            own = keys[path[:depth]]
            if depth and own <= _DESCRIBED and not own.isdisjoint(_SHOWN) and key not in _SHOWN:
                return True
            if isinstance(key, str) and key.startswith("@") and (key.startswith("@@") or key[1:] in own):
                return True  # of .arb
        return False

    return [text for text in texts if not is_description(text.key)]


def _language_edits(texts: list[Text], options: DocumentOptions) -> Iterator[Edit]:
    """What names the source language at the top of the file names the target then."""
    code = options.language.lower()
    for text in texts:
        is_code = len(text.key) == 1 and text.key[0] in _LANGUAGES
        if is_code and code and options.target and re.split("[-_]", text.raw[1:-1])[0].lower() == code:
            yield Edit(text.start, text.end, json.dumps(options.target))


def _texts(text: str, name: str) -> Iterator[Text]:
    """The values of a file that are strings. HeedError names the place of what is not JSON."""
    _check(text, name)
    is_ascii = text.isascii() and re.search(r"\\u[0-9A-Fa-f]{4}", text) is not None
    opened: list[_Container] = []
    for token in _TOKEN.finditer(text):
        lead, sign = token.groups()
        inner = opened[-1] if opened else None
        if sign in "{[":
            if len(opened) == MAX_DEPTH:
                line = text.count("\n", 0, token.start(2)) + 1
                raise HeedError(f"{name}: line {line}: not JSON: more than {MAX_DEPTH} levels.")
            opened.append(_Container(sign == "{", None if sign == "{" else 0))
        elif sign in "}]":
            opened.pop()
        elif sign == "," and inner:
            inner.key = inner.key + 1 if isinstance(inner.key, int) else None
        elif inner and inner.key is None:
            inner.key, inner.lead = _text_of(sign), lead
        else:
            start, end = token.span(2)
            own, words = tuple(one.key for one in opened if one.key is not None), _text_of(sign)
            write = _writer(is_ascii, has_messages=bool(find_messages(words)))
            sibling = _sibling(end, inner.lead, is_ascii) if inner and inner.is_object else None
            items = read_forms(words, _ATOMS)
            yield Text(start=start, end=end, items=items, write=write, key=own, raw=sign, sibling=sibling)


def _check(text: str, name: str) -> None:
    def constant(sign: str) -> None:
        raise HeedError(f"{name}: not JSON: {sign} is no number.")

    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=constant)
    except json.JSONDecodeError as error:
        told = f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg.removesuffix(' at')}."
        raise HeedError(told) from None
    except RecursionError:
        raise HeedError(f"{name}: not JSON: more than {MAX_DEPTH} levels.") from None


def _writer(is_ascii: bool, *, has_messages: bool) -> Callable[[list[Item]], str]:
    def write(items: list[Item]) -> str:
        if has_messages:  # where a single quote would make text of the argument behind it
            items = [_QUOTED_ARGUMENT.sub("''", item) if isinstance(item, str) else item for item in items]
        return json.dumps(write_text(items), ensure_ascii=is_ascii)

    return write


def _sibling(end: int, lead: str, is_ascii: bool) -> Callable[[str, str], Edit]:
    return lambda key, written: Edit(end, end, f",{lead}{json.dumps(key, ensure_ascii=is_ascii)}: {written}")


def _text_of(string: str) -> str:
    """The text of a string in quotes; half a pair of surrogates becomes a question mark."""
    text: str = json.loads(string)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
