"""Files of keys and texts, each with escapes of its own: Java's .properties and Apple's .strings.

The texts are translated, and keys, comments and all other bytes stay.
"""

import re
from collections.abc import Callable, Iterator

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.plain_text import read_text, write_text
from heed.apps.documents.formats.texts import Text, edited, keyed_texts_job, read_string
from heed.apps.documents.text.items import Item, Tag, with_read
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

# .properties

_LOGICAL_LINE = re.compile(r"(?:[^\r\n\\]|\\(?:\r\n|[\s\S]|\Z))*+")
_LINE = re.compile(r"[^\r\n]*+")
_KEY = re.compile(r"[ \t\f]*+((?:[^\\=: \t\f\r\n]|\\[\s\S])*+)[ \t\f]*+[=:]?[ \t\f]*+")
_CONTINUATION = re.compile(r"\\(?:\r\n|\r|\n)[ \t\f]*")
_UNICODE = re.compile(r"\\u+([0-9A-Fa-f]{4})")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ARGUMENT = re.compile(r"\{\d")
# Two quotes are an apostrophe, and braces between two are text: MessageFormat shows '{0}' as it is. The quotes of such
# braces are written with characters that no text has.
_QUOTES = re.compile(r"''|'([{}])'|(?<!\w)'(\{[^{}']*\})'(?!\w)")
_OPENING, _CLOSING = "\ufdd0", "\ufdd1"
_QUOTED = re.compile(rf"{_OPENING}([^{_OPENING}{_CLOSING}]*){_CLOSING}")


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
    texts = list(_properties(text, codec))
    edits = yield from keyed_texts_job(texts, options, lambda file, _: _properties(decoded(file)[0], codec))
    return edited(text, edits).encode(decoded(content)[1])


def _properties(text: str, codec: str) -> Iterator[Text]:
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
            items = _read_message(words) if has_arguments else read_string(words)
            write = _writer(codec, has_arguments)
            yield Text(start=key.end(), end=line.end(), items=items, write=write, key=(key[1],), raw=raw)
        place = line.end() + 1


def _read_message(words: str) -> list[Item]:
    def read(quotes: re.Match[str]) -> str:
        braces = quotes[1] or quotes[2]
        return f"{_OPENING}{braces}{_CLOSING}" if braces else "'"

    items = read_text(_QUOTES.sub(read, words))
    return with_read(items, _QUOTED, lambda match: Tag("atom", match[0], text=match[1]))


def _unescaped(raw: str) -> str:
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), raw)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _ESCAPED.sub(lambda match: _NAMED.get(match[1], match[1]), text)


def _writer(codec: str, has_arguments: bool) -> Callable[[list[Item]], str]:
    def write(items: list[Item]) -> str:
        # MessageFormat reads a quote as the begin of what is no argument.
        text = write_text(items)
        text = text.replace("'", "''").replace(_OPENING, "'").replace(_CLOSING, "'") if has_arguments else text
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
    texts = list(_strings(text, name))
    edits = yield from keyed_texts_job(texts, options, lambda file, name: _strings(decode(file, name=name).text, name))
    return mark + edited(text, edits).encode(codec, errors="replace")


def _strings(text: str, name: str) -> Iterator[Text]:
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
                key, raw = statement[0][0].strip('"'), statement[2][0]
                items = read_string(_OF_STRINGS.sub(_sign, raw[1:-1]))
                yield Text(start=start, end=end, items=items, write=_quoted, key=(key,), raw=raw)
            statement = []
        elif part.lastgroup:
            statement.append(part)


def _sign(match: re.Match[str]) -> str:
    code, octal, other = match.groups()
    if other:
        return _NAMED.get(other, other)
    return chr(int(code, 16) if code else int(octal, 8))


def _quoted(items: list[Item]) -> str:
    return f'"{write_text(items).translate(_SIGNS_OF_STRINGS)}"'
