"""Android's strings.xml: texts, arrays and plurals are translated; names, placeholders and what is marked stay."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from heed.apps.documents.formats.directives import FORMAT, has_the_same, in_order
from heed.apps.documents.formats.office_runs import flat
from heed.apps.documents.formats.plurals import has_form_for_one, plural_rule
from heed.apps.documents.formats.texts import texts_job
from heed.apps.documents.formats.words_in_markup import WordsInMarkup
from heed.apps.documents.formats.xml_texts import TextReader, XMLRules
from heed.apps.documents.formats.xml_tokens import XMLDocument, read_xml, write_xml
from heed.apps.documents.text.items import Item, Tag, with_read
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_RULES = XMLRules(is_inline=lambda token: token.local != "g", is_kept=lambda token: True)  # xliff:g is a placeholder
_REFERENCE = re.compile(r"\s*[@?][\w:.+*/-]+\s*")  # to another resource
# A tag written as text, whose quotes belong to it, or an escape, or a quote, which is not shown.
_ESCAPE = re.compile(r'(<[A-Za-z][\w:-]{0,40}\s[^<>=]{0,200}=[^<>]{0,500}(?:>|\Z))|\\(?:u([0-9A-Fa-f]{4})|([\s\S]))|"')
_SIGNS = {ord("'"): "\\'", ord('"'): '\\"', ord("\\"): "\\\\"}
_QUANTITY = re.compile(r"""(\squantity\s*=\s*["'])other(["'])""")


@dataclass(frozen=True)
class _Text:
    """A text: where its element stands, and its name with its place in an array or its quantity."""

    place: int
    key: tuple[str, str]


def android_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is damaged or other XML."""
    document = read_xml(content, name=name)
    root = next((token for token in document.tokens if token.kind == "open"), None)
    if root is None or root.local != "resources":
        local = root.local[:40] if root else "missing"
        told = f"XML whose root is {local}, not Android's resources; of other XML it is not known which words are shown"
        raise HeedError(f"{name}: {told}.")
    known: dict[tuple[str, str], str] = {}
    if options.earlier is not None:
        earlier = read_xml(options.earlier, name="the earlier file")
        known = {text.key: earlier.raw(text.place + 1, earlier.tokens[text.place].end) for text in _texts(earlier)}
    texts = list(_texts(document))
    reader = TextReader(document, _RULES, WordsInMarkup(document.raw(0, len(document.tokens))))
    asked = [text for text in texts if not known.get(text.key)]
    items = [
        with_read(reader.text(text.place + 1, document.tokens[text.place].end), _ESCAPE, _read_escape) for text in asked
    ]
    translated = yield from texts_job(items, options)

    for text, before, after in zip(asked, items, translated, strict=True):
        source = document.raw(text.place + 1, document.tokens[text.place].end)
        words = source if flat(before) == flat(after) else in_order(source, _write(after), FORMAT)
        known[text.key] = source if words is None else words
    # A singular without a number is wrong where its form is also that of 21.
    if options.target and not has_form_for_one(plural_rule(options.target).expression):
        for name, quantity in (text.key for text in asked):
            other = known.get((name, "other"))
            if quantity == "one" and other and not has_the_same(FORMAT, known[name, "one"], other):
                known[name, "one"] = other
    edits: dict[int, tuple[int, str]] = {}
    names = {text.key for text in texts}
    for text in texts:
        opening, closing = document.tokens[text.place].markup, document.tokens[document.tokens[text.place].end].markup
        whole = f"{opening}{known[text.key]}{closing}" if closing else opening
        if text.key[1] == "other" and options.target:
            # A form that only the target has begins with the words for other numbers.
            space = document.tokens[text.place - 1].markup if document.tokens[text.place - 1].kind == "text" else ""
            for form in plural_rule(options.target).categories:
                if (key := (text.key[0], form)) not in names:
                    other = _QUANTITY.sub(rf"\g<1>{form}\2", opening)
                    whole += f"{space}{other}{known.get(key) or known[text.key]}{closing}"
        edits[text.place] = (document.tokens[text.place].end + 1, whole)
    return document.edited(edits)


def _texts(document: XMLDocument) -> Iterator[_Text]:
    name, number = "", 0
    place = 0
    while place < len(document.tokens):
        token = document.tokens[place]
        place += 1
        if token.kind != "open":
            continue
        if token.attributes.get("translatable") == "false":
            place = token.end
        elif token.local in ("string", "item"):
            number += 1
            if token.local == "string":
                name, number = token.attributes.get("name", ""), 0
            if not _REFERENCE.fullmatch(document.raw(place, token.end)):
                yield _Text(place - 1, (name, token.attributes.get("quantity", str(number))))
            place = token.end
        else:
            name, number = f"{token.local} {token.attributes.get('name', '')}", 0


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
