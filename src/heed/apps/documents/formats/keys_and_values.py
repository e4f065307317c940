"""Files of keys and texts, each with escapes of its own: Java's .properties and Apple's .strings.

The texts are translated, and keys, comments and all other bytes stay.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.directives import FORMAT, in_order
from heed.apps.documents.formats.texts import Edit, edited, strings_job
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions, TranslationJob
from heed.errors import HeedError


class _Value(NamedTuple):
    """Where a text stands in its file, its key there, what it says, and how it is written there with other words."""

    start: int
    end: int
    key: str
    text: str
    write: Callable[[str], str]


_Reader = Callable[[str, str], Iterator[_Value]]


def _values_job(
    text: str, read: _Reader, options: DocumentOptions, *, name: str, earlier: str | None
) -> TranslationJob[str]:
    """The file in the other language; texts of an earlier one stay as they are."""
    values = list(read(text, name))
    known = (
        {} if earlier is None else {value.key: value.text for value in read(earlier, "the earlier file") if value.text}
    )
    asked = [value for value in values if value.key not in known and needs_translation(value.text)]
    translated = yield from strings_job([value.text for value in asked], options)
    # A text whose directives would be filled wrongly stays in its language. A key may stand in a file twice.
    made = {
        value.start: in_order(value.text, words, FORMAT) or value.text
        for value, words in zip(asked, translated, strict=True)
    }
    edits = []
    for value in values:
        words = known.get(value.key, made.get(value.start, value.text))
        if words != value.text:
            edits.append(Edit(value.start, value.end, value.write(words)))
    return edited(text, edits)


# .properties

_LOGICAL_LINE = re.compile(r"(?:[^\r\n\\]|\\(?:\r\n|[\s\S]|\Z))*+")
_LINE = re.compile(r"[^\r\n]*+")
_KEY = re.compile(r"[ \t\f]*+((?:[^\\=: \t\f\r\n]|\\[\s\S])*+)[ \t\f]*+[=:]?[ \t\f]*+")
_CONTINUATION = re.compile(r"\\(?:\r\n|\r|\n)[ \t\f]*")
_UNICODE = re.compile(r"\\u+([0-9A-Fa-f]{4})")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ARGUMENT = re.compile(r"\{\d")


def properties_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language, in its charset: UTF-8, or else Latin 1, as Java reads it."""

    def decoded(content: bytes) -> tuple[str, str]:
        try:
            return content.decode(), "utf-8"
        except UnicodeDecodeError:
            return content.decode("latin-1"), "latin-1"

    text, codec = decoded(content)
    if text.isascii() or codec == "latin-1":  # Java of before 9 reads Latin 1
        codec = "ascii"
    earlier = None if options.earlier is None else decoded(options.earlier)[0]
    written = yield from _values_job(text, _properties(codec), options, name=name, earlier=earlier)
    return written.encode(decoded(content)[1])


def _properties(codec: str) -> _Reader:
    def read(text: str, name: str) -> Iterator[_Value]:
        place = 0
        while place < len(text):
            line = _LOGICAL_LINE.match(text, place)
            key = _KEY.match(text, place)
            assert line and key
            if key[1][:1] in ("#", "!"):
                comment = _LINE.match(text, place)
                assert comment
                place = comment.end() + 1
                continue
            raw = text[key.end() : line.end()]
            has_arguments = _ARGUMENT.search(raw) is not None
            words = _unescaped(_CONTINUATION.sub("", raw))
            if key[1]:
                shown = words.replace("''", "'") if has_arguments else words
                yield _Value(key.end(), line.end(), key[1], shown, _writer(codec, has_arguments))
            place = line.end() + 1

    return read


def _unescaped(raw: str) -> str:
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), raw)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _ESCAPED.sub(lambda match: _NAMED.get(match[1], match[1]), text)


def _writer(codec: str, has_arguments: bool) -> Callable[[str], str]:
    def write(words: str) -> str:
        # MessageFormat reads a quote as the begin of what is no argument.
        text = words.replace("'", "''") if has_arguments else words
        text = text.replace("\\", "\\\\")
        for letter, sign in _NAMED.items():
            text = text.replace(sign, f"\\{letter}")
        if text[:1] == " ":
            text = "\\" + text
        return text if codec == "utf-8" else "".join(sign if sign.isascii() else _utf16(sign) for sign in text)

    return write


def _utf16(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


# .strings

_PART = re.compile(
    r'\s++|/\*(?s:.*?)\*/|//[^\n]*+|(?P<string>"(?:[^"\\]|\\[\s\S])*+")|(?P<word>[\w.$/:-]++)|(?P<sign>[=;])'
)
_OF_STRINGS = re.compile(r"\\(?:[uU]([0-9A-Fa-f]{4})|([0-7]{1,3})|([\s\S]))")
_SIGNS_OF_STRINGS = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


def strings_file_job(
    content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None
) -> DocumentJob:
    """The file in the other language, in its charset: UTF-8, or UTF-16 if it has a mark."""

    if content.startswith(b"bplist"):
        raise HeedError(f"{name}: compiled for a program; translate the .strings that it was made from.")
    text, mark, codec = decode(content, name=name)
    earlier = None if options.earlier is None else decode(options.earlier, name="the earlier file").text
    written = yield from _values_job(text, _strings, options, name=name, earlier=earlier)
    return mark + written.encode(codec, errors="replace")


def _strings(text: str, name: str) -> Iterator[_Value]:
    place = 0
    statement: list[re.Match[str]] = []
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or (part["sign"] == "=" and len(statement) != 1):
            line = text.count("\n", 0, place) + 1
            raise HeedError(f'{name}: line {line}: expected "key" = "value"; or a comment.')
        place = part.end()
        if part["sign"] == ";":
            if len(statement) == 3 and statement[2]["string"]:
                start, end = statement[2].span()
                key, value = statement[0][0].strip('"'), statement[2][0][1:-1]
                yield _Value(start, end, key, _OF_STRINGS.sub(_sign, value), _quoted)
            statement = []
        elif part.lastgroup:
            statement.append(part)


def _sign(match: re.Match[str]) -> str:
    code, octal, other = match.groups()
    if other:
        return _NAMED.get(other, other)
    return chr(int(code, 16) if code else int(octal, 8))


def _quoted(words: str) -> str:
    return f'"{words.translate(_SIGNS_OF_STRINGS)}"'
