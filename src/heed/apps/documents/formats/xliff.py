"""XLIFF 1.2 and 2: each source that has no translation gets a target and its state; sources and all else stay."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from heed.apps.documents.formats.texts import Edit, read_string, texts_job
from heed.apps.documents.formats.xml_texts import TextReader, XMLRules
from heed.apps.documents.formats.xml_tokens import XML, XMLDocument, XMLToken, read_xml, write_xml
from heed.apps.documents.text.items import Item, Tag, paired, with_read
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_WAITING = ("new", "needs-translation", "initial")  # states of a target that has no words of its own yet
_STATE = re.compile(r"""\sstate(?:-qualifier)?\s*=\s*(?:"[^"]*"|'[^']*')""")
_END = re.compile(r"(/?>)\Z")  # of a tag
_NAME = re.compile(r"<([^\s/>]+)")
_BEGINS, _ENDS = frozenset(("bpt", "bx", "sc")), frozenset(("ept", "ex", "ec"))  # codes of a format
_ID = re.compile(r"""\s(?:id|rid|startRef)\s*=\s*["']([^"']*)""")
_ANGULAR = re.compile(r"<(?:\w{1,20}:)?x\s[^<>]{0,200}?id=[\"'](START|CLOSE)_(\w++)")
_LINE_END = re.compile(r"\n\s*+")
_KEPT = frozenset("alt-trans matches notes note ignorable".split())  # what holds no source of its own
# Codes of the original format stay, content included; the words of protected marks are read with their sentence.
_RULES = XMLRules(
    is_inline=lambda token: token.local in ("g", "pc", "mrk") and not _is_protected(token),
    is_apart=lambda token: token.local == "mrk" and token.attributes.get("mtype") == "seg",
    is_kept=lambda token: token.local != "mrk",
)


def _is_protected(token: XMLToken) -> bool:
    return token.attributes.get("translate") == "no" or token.attributes.get("mtype") == "protected"


@dataclass(frozen=True)
class _Unit:
    """A source, or a segment of one: where it, its text in segments (or it again) and its target stand, −1 if none.

    key: the name of the unit, and the source's text. holder: where the element around it stands.
    keeps_spaces: whether its white space counts.
    """

    source: int
    segments: int
    target: int
    key: tuple[str, str]
    holder: int
    keeps_spaces: bool


def xliff_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file with its targets. HeedError, which calls it `name`, if it is damaged or of another kind."""
    document = read_xml(content, name=name)
    is_new = _version(document, name) == "2"
    known: dict[tuple[str, str], str] = {}
    if options.earlier is not None:
        earlier = read_xml(options.earlier, name="the earlier file")
        known = {unit.key: earlier.content(unit.target) for unit in _units(earlier) if _is_translated(earlier, unit)}
    units = [unit for unit in _units(document) if not _is_translated(document, unit)]
    tokens = document.tokens
    texts = [[] if unit.key in known else _items(document, unit) for unit in units]
    translated = yield from texts_job(texts, options)

    edits: dict[int, Edit] = {}  # by the place of the first token
    state = "" if is_new else ' state="needs-review-translation"'
    for unit, items in zip(units, translated, strict=True):
        words = known.get(unit.key) or write_xml(items)
        tag = _NAME.match(tokens[unit.source].markup)
        assert tag
        target = f"{tag[1].removesuffix('source')}target"
        if unit.target >= 0:
            own, own_state = (tag[1], "") if tokens[unit.target].local == "mrk" else (target, state)
            opening = _STATE.sub("", tokens[unit.target].markup).rstrip("/> \t\r\n")
            whole = f"{opening}{own_state}>{words}</{own}>"
            edits[unit.target] = document.edit(unit.target, tokens[unit.target].end + 1, whole)
        else:
            behind = max(tokens[unit.source].end, tokens[unit.segments].end) + 1
            before = tokens[unit.source - 1]
            space = before.markup if before.kind == "text" else ""
            edits[behind] = document.edit(behind, behind, f"{space}<{target}{state}>{words}</{target}>")
        if is_new:
            markup = _STATE.sub("", tokens[unit.holder].markup).removesuffix(">")
            edits[unit.holder] = document.edit(unit.holder, unit.holder + 1, f'{markup} state="translated">')
    name_of_target = "trgLang" if is_new else "target-language"
    for place, token in enumerate(tokens):
        is_named = token.local == ("xliff" if is_new else "file") and token.kind == "open"
        if is_named and options.target and name_of_target not in token.attributes:
            markup = _END.sub(rf' {name_of_target}="{options.target}"\1', token.markup)
            edits[place] = document.edit(place, place + 1, markup)
    return document.edited(edits.values())


def _items(document: XMLDocument, unit: _Unit) -> list[Item]:
    """The items of a source. Where white space stays, line ends divide texts, but for those of wrapped paragraphs."""
    items = TextReader(document, _RULES).text(unit.segments + 1, document.tokens[unit.segments].end)
    if not unit.keeps_spaces:
        return paired(items, _code)
    if all(isinstance(item, str) for item in items):
        return read_string("".join(map(str, items)))
    return paired(with_read(items, _LINE_END, lambda end: Tag("cut", end[0])), _code)


def _code(tag: Tag) -> tuple[str, bool] | None:
    """The format that a code begins or ends, and whether it begins it; None for other tags."""
    if angular := _ANGULAR.match(str(tag.markup)):
        return re.sub(r"_\d++\Z", "", angular[2]), angular[1] == "START"
    if tag.name not in _BEGINS | _ENDS:
        return None
    ids = _ID.findall(str(tag.markup).partition(">")[0])
    return (f"code {ids[-1]}", tag.name in _BEGINS) if ids else None


def _version(document: XMLDocument, name: str) -> str:
    root = document.root
    version = root.attributes.get("version", "") if root.local == "xliff" else ""
    if version[:1] not in ("1", "2"):
        kind = f"{root.local[:40]} {version[:10]}".strip()
        raise HeedError(f"{name}: no XLIFF 1.2 or 2: its root is {kind}.")
    return version[:1]


def _units(document: XMLDocument) -> Iterator[_Unit]:
    """The sources that may be translated."""
    tokens = document.tokens
    name, holder, preserved = "", 0, -1  # the end of an element whose white space counts
    place = 0
    while place < len(tokens):
        token = tokens[place]
        if token.attributes.get(f"{XML}space") == "preserve":
            preserved = max(preserved, token.end)
        if token.kind == "open" and (token.local in _KEPT or token.attributes.get("translate") == "no"):
            place = token.end  # with all that is in it
        elif token.kind == "open" and token.local in ("trans-unit", "unit", "segment"):
            name = token.attributes.get("id", "") if token.local != "segment" else name
            holder = place
        elif token.kind == "open" and token.local == "source":
            segments, target, after = place, -1, token.end + 1
            while tokens[after].kind != "close" and tokens[after].local not in {"source", *_KEPT}:
                if tokens[after].kind == "open":
                    segments = after if tokens[after].local == "seg-source" else segments
                    target = after if tokens[after].local == "target" else target
                    after = tokens[after].end
                after += 1
            unit = _Unit(place, segments, target, (name, document.content(place)), holder, place < preserved)
            yield unit
            if segments != place and _is_translated(document, unit):
                yield from _empty_segments(document, unit)
            place = token.end
        place += 1


def _empty_segments(document: XMLDocument, unit: _Unit) -> Iterator[_Unit]:
    """The segments that a translated target lacks, as that of a file that somebody has begun to translate does."""
    sources = _segments(document, unit.segments)
    for name, target in _segments(document, unit.target).items():
        source = sources.get(name, target)
        if _has_words(document, source) and not document.content(target).strip():
            key = f"{unit.key[0]} {name}", document.content(source)
            yield replace(unit, source=source, segments=source, target=target, key=key)


def _segments(document: XMLDocument, element: int) -> dict[str, int]:
    tokens = document.tokens
    places = (place for place in range(element, tokens[element].end) if tokens[place].kind == "open")
    return {tokens[place].attributes.get("mid", ""): place for place in places if _RULES.is_apart(tokens[place])}


def _is_translated(document: XMLDocument, unit: _Unit) -> bool:
    if unit.target < 0 or not document.content(unit.target).strip():
        return False
    if _has_words(document, unit.source) and not _has_words(document, unit.target):  # but the marks of segments, say
        return False
    return all(document.tokens[place].attributes.get("state") not in _WAITING for place in (unit.target, unit.holder))


def _has_words(document: XMLDocument, element: int) -> bool:
    within = document.tokens[element : document.tokens[element].end]
    return any(token.kind == "text" and token.markup.strip() for token in within)
