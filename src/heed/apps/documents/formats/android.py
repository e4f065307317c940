"""Android's strings.xml: texts, arrays and plurals are translated; names, placeholders and what is marked stay."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from heed.apps.documents.formats.texts import Edit, Text
from heed.apps.documents.formats.xml_texts import TextReader, XMLRules
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, keyed_xml_job, read_xml, write_xml
from heed.apps.documents.text.items import Item, Tag, with_read
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_RULES = XMLRules(is_inline=lambda token: token.local != "g", is_kept=lambda token: True)  # xliff:g is a placeholder
_REFERENCE = re.compile(r"\s*[@?][\w:.+*/-]+\s*")  # to another resource
# A tag written as text, whose quotes belong to it, or an escape, or a quote, which is not shown.
_ESCAPE = re.compile(r'(<[A-Za-z][\w:-]{0,40}\s[^<>=]{0,200}=[^<>]{0,500}(?:>|\Z))|\\(?:u([0-9A-Fa-f]{4})|([\s\S]))|"')
_SIGNS = {ord("'"): "\\'", ord('"'): '\\"', ord("\\"): "\\\\"}
_QUANTITY = re.compile(r"""(\squantity\s*=\s*["'])other(["'])""")


def android_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is damaged or other XML."""
    document = read_xml(content, name=name)
    if (local := document.root.local[:40]) != "resources":
        told = f"XML whose root is {local}, not Android's resources; of other XML it is not known which words are shown"
        raise HeedError(f"{name}: {told}.")
    return (yield from keyed_xml_job(document, options, _texts))


def _texts(document: XMLDocument) -> Iterator[Text]:
    """The texts; the key of each is its name and kind of device, with its place in an array or its quantity."""
    reader = TextReader(document, _RULES)
    name, number = "", 0
    place = 0
    while place < len(document.tokens):
        token = document.tokens[place]
        place += 1
        if token.kind != "open":
            continue
        if _stays(token):
            place = token.end
        elif token.local in ("string", "item"):
            number += 1
            if token.local == "string":
                name, number = " ".join(filter(None, map(token.attributes.get, ("name", "product")))), 0
            raw = document.raw(place, token.end)
            if raw and not _REFERENCE.fullmatch(raw):
                yield Text(
                    start=document.at(place),
                    end=document.at(token.end),
                    items=with_read(reader.text(place, token.end), _ESCAPE, _read_escape),
                    write=_write,
                    key=(name, token.attributes.get("quantity", str(number))),
                    raw=raw,
                    sibling=_sibling(document, place - 1),
                )
            place = token.end
        else:
            name, number = f"{token.local} {token.attributes.get('name', '')}", 0


def _stays(token: XMLToken) -> bool:
    """Whether what an element holds is no words: a style, an item of a type, what a choice stores ("reply_values")."""
    named = token.attributes
    is_stored = token.local == "string-array" and named.get("name", "").lower().endswith("values")
    is_other = token.local == "style" or named.get("type", "string") != "string"
    return is_stored or is_other or named.get("translatable") == "false"


def _sibling(document: XMLDocument, place: int) -> Callable[[str, str], Edit]:
    """A form that only the target has goes behind the words for other numbers."""

    def write(quantity: str, written: str) -> Edit:
        opening, before = document.tokens[place], document.tokens[place - 1]
        tag = _QUANTITY.sub(rf"\g<1>{quantity}\2", opening.markup)
        space = before.markup if before.kind == "text" else ""
        after = opening.end + 1
        return document.edit(after, after, f"{space}{tag}{written}{document.tokens[opening.end].markup}")

    return write


def _read_escape(match: re.Match[str]) -> Item:
    """What an escape of Android's stands for; line ends and quotes that it does not show are tags."""
    tag, code, sign = match.groups()
    if tag:
        return re.sub(r"\\([\"'])", r"\1", tag)
    if code or (sign and sign in "@?#"):
        return Tag("spelling", match[0], text=chr(int(code, 16)) if code else sign)
    if sign in ("'", '"', "\\"):
        return sign
    return Tag("cut" if sign in ("n", "t") or match[0] == '"' else "atom", match[0])


def _write(items: list[Item]) -> str:
    written = write_xml(map(_escaped, items))
    return f"\\{written}" if written[:1] in ("@", "?") else written


def _escaped(item: Item) -> Item:
    if isinstance(item, str):
        return item.translate(_SIGNS)
    return replace(item, kind="atom") if item.markup[:1] == "\\" else item  # an escape, no reference of XML
