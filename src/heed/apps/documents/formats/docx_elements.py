"""The elements of a .docx's text (ECMA-376, part 1: WordprocessingML), and runs in the format of others."""

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from heed.apps.documents.formats.docx_package import WORD
from heed.errors import HeedError

MAX_COPIED = 2**20  # bytes of formats that are copied, besides four times those of the text
MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"
ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"


def _word(names: str) -> frozenset[str]:
    return frozenset(WORD + name for name in names.split())


# What may be within a paragraph and holds runs. What is not here stands between words.
HOLDERS = _word("hyperlink smartTag ins moveTo sdt customXml dir bdo fldSimple")
BLOCKS = _word("p tbl sdt sectPr")
PROPERTIES = _word("pPr sdtPr sdtEndPr customXmlPr smartTagPr")  # of what holds runs
# What ends a sentence, in a run and outside of it. The marks of notes and comments stay before their first word.
ENDS = _word("br cr tab ptab footnoteRef endnoteRef annotationRef separator continuationSeparator") | {
    MATH + "oMathPara"
}
PARTS_OF_FIELDS = _word("fldChar instrText")
HYPHENS = {WORD + "noBreakHyphen": "-", WORD + "softHyphen": ""}  # part of a word


_CODE = re.compile(
    r"(?:html|source|inline)?[ _-]?(?:code|verbatim|preformatted|keyboard|sample|typewriter|macro)"
    r"[ _-]?(?:char|text|block|inline)?",
    re.IGNORECASE,
)


@dataclass(eq=False)
class Joint:
    """The place where a text continues in another paragraph, like an element that has no tag."""

    paragraph: Any
    tag: str = ""


Piece = tuple[Any, Any]  # a run and an element in it; None and an element that is in no run


def pieces_of(container: Any) -> Iterator[Piece]:
    """The pieces of an element's content, run by run."""
    for child in container:
        if child.tag == WORD + "r":
            yield from ((child, inner) for inner in child if inner.tag != WORD + "rPr")
        elif child.tag not in PROPERTIES:
            yield None, child


def all_pieces(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Pieces and those within them that belong to the same text."""
    # No recursion: a generator within others would pass each piece through all of them.
    levels = [iter(pieces)]
    while levels:
        for run, child in levels[-1]:
            inner = container_of(child)
            if inner is not None:
                levels.append(pieces_of(inner))
                break
            yield run, child
        else:
            levels.pop()


def containers_of_words(pieces: Iterable[Piece]) -> set[Any]:
    """The elements within pieces, as `container_of` gives them, that hold words of the same text."""
    with_words: set[Any] = set()
    levels, containers = [iter(pieces)], [None]
    while levels:
        for run, child in levels[-1]:
            inner = container_of(child)
            if inner is not None:
                levels.append(pieces_of(inner))
                containers.append(inner)
                break
            if is_word(run, child):
                place = len(containers) - 1
                while place and containers[place] not in with_words:
                    with_words.add(containers[place])
                    place -= 1
        else:
            levels.pop()
            containers.pop()
    return with_words


def container_of(element: Any) -> Any:
    """The element that holds runs of the paragraph's text: this one, or one within it; None if there is none."""
    if element.tag == WORD + "ruby":
        return element.find(WORD + "rubyBase")
    if element.tag == WORD + "sdt":
        return None if is_checkbox(element) else element.find(WORD + "sdtContent")
    return element if element.tag in HOLDERS else None


def is_checkbox(element: Any) -> bool:
    return element.tag == WORD + "sdt" and element.find(WORD + "sdtPr/{*}checkbox") is not None


def is_word(run: Any, child: Any) -> bool:
    return (
        run is not None and child.tag == WORD + "t" and bool(string_of(child)) and not (is_code(run) or is_hidden(run))
    )


def is_code(element: Any) -> bool:
    """Whether a run or a paragraph has a style for code, such as HTMLCode or VerbatimChar."""
    kind = "p" if element.tag == WORD + "p" else "r"
    style = element.find(f"{WORD}{kind}Pr/{WORD}{kind}Style")
    return style is not None and _CODE.fullmatch(style.get(WORD + "val", "")) is not None


def is_hidden(run: Any) -> bool:
    mark = run.find(f"{WORD}rPr/{WORD}vanish")
    return mark is not None and mark.get(WORD + "val", "true") not in ("0", "false", "off")


def is_raised(run: Any) -> bool:
    mark = run.find(f"{WORD}rPr/{WORD}vertAlign")
    return mark is not None and mark.get(WORD + "val") == "superscript"


def unbind(root: Any) -> None:
    """Removes what binds controls to properties of the document: Word would show these, in the source language."""
    for binding in list(root.iter("{*}dataBinding")):
        control = binding.getparent().getparent()
        if control is not None and any(text.text for text in control.iter(WORD + "t")):
            binding.getparent().remove(binding)


def set_language(root: Any, source: str, target: str) -> None:
    """Names the target for the spelling checker where the source is named."""
    code = re.split("[-_]", source)[0].lower()
    for element in root.iter(WORD + "lang") if code and target else ():
        for key, value in element.attrib.items():
            if value.lower().split("-")[0] == code:
                element.set(key, target)


def descriptions(root: Any) -> Iterator[tuple[Any, str, str]]:
    """The descriptions of pictures: an element, the name of its attribute, and the words."""
    for element in root.iter("{*}docPr", "{*}cNvPr", "{urn:schemas-microsoft-com:vml}shape"):
        for key in ("descr", "title", "alt"):
            if words := element.get(key):
                yield element, key, words


def is_end(run: Any, child: Any) -> bool:
    return child.tag in ENDS or (run is None and is_checkbox(child))


def is_dropped_cap(paragraph: Any) -> bool:
    """Whether it holds nothing but the large first letter of the next one."""
    frame = paragraph.find(f"{WORD}pPr/{WORD}framePr")
    return frame is not None and frame.get(WORD + "dropCap", "none") != "none" and bool(text_of(paragraph).strip())


def is_end_deleted(paragraph: Any) -> bool:
    """Whether its end is deleted or moved away, with changes tracked, so that Word joins it with the next one."""
    properties = paragraph.find(f"{WORD}pPr/{WORD}rPr")
    marks = () if properties is None else (WORD + "del", WORD + "moveFrom")
    return any(properties.find(mark) is not None for mark in marks) and bool(text_of(paragraph).strip())


def next_paragraph(paragraph: Any) -> Any:
    """The paragraph behind it, if no table or other block is; marks such as a bookmark's may be between."""
    following = paragraph.getnext()
    while following is not None and following.tag not in BLOCKS:
        following = following.getnext()
    return following if following is not None and following.tag == WORD + "p" else None


def is_text_first(paragraph: Any) -> bool:
    """Whether its first words are in no holder, so that a letter may go before them."""
    first = next((child for run, child in all_pieces(pieces_of(paragraph)) if is_word(run, child)), None)
    return first is not None and any(child is first for _, child in pieces_of(paragraph))


def ends_of_fields(pieces: list[Piece]) -> dict[int, tuple[int, int]]:
    """Where each whole field begins, its separator (its begin if it has none) and its end."""
    ends: dict[int, tuple[int, int]] = {}
    begun: list[list[int]] = []
    for place, (run, child) in enumerate(pieces):
        if isinstance(child, Joint):
            begun.clear()
        if run is None or child.tag != WORD + "fldChar":
            continue
        kind = child.get(WORD + "fldCharType")
        if kind == "begin":
            begun.append([place, place])
        elif kind == "separate" and begun:
            begun[-1][1] = place
        elif kind == "end" and begun:
            begin, separator = begun.pop()
            ends[begin] = (separator, place)
    return ends


def has_part_of_field(pieces: list[Piece]) -> bool:
    """Whether there is a part of a field whose other parts are elsewhere."""
    depth = 0
    for run, child in pieces:
        if run is not None and child.tag == WORD + "fldChar":
            depth += {"begin": 1, "end": -1}.get(child.get(WORD + "fldCharType"), 0)
            if depth < 0:
                return True
        if run is not None and child.tag in PARTS_OF_FIELDS and depth == 0 and child.get(WORD + "fldCharType") != "end":
            return True
    return depth != 0


def code_of(pieces: list[Piece]) -> str:
    return "".join(string_of(child) for _, child in pieces if child.tag == WORD + "instrText")


def is_reference(code: str) -> bool:
    """Whether a field shows words of its document, such as the number of a figure."""
    return code.split()[:1] in (["REF"], ["PAGEREF"], ["NOTEREF"], ["STYLEREF"])


def is_citation(code: str) -> bool:
    """Whether a field names other works, as Word, EndNote, Zotero and Mendeley write it."""
    words = code.split()[:2]
    return words[:1] == ["CITATION"] or (
        words[:1] == ["ADDIN"] and words[1:] in (["EN.CITE"], ["ZOTERO_ITEM"], ["CSL_CITATION"], ["Mendeley"])
    )


def is_link(code: str) -> bool:
    return code.upper().split()[:1] == ["HYPERLINK"]


def set_children(element: Any, children: list[Any]) -> None:
    """Puts these in the place of all but its properties."""
    # What is in its place stays there: lxml goes through all that is within an element that is moved.
    kept = set(children)
    for child in list(element):
        if child.tag not in PROPERTIES and child not in kept:
            element.remove(child)
    following = _not_properties(next(iter(element), None))
    for child in children:
        if child is following:
            following = _not_properties(child.getnext())
        elif following is not None:
            following.addprevious(child)
        else:
            element.append(child)


def _not_properties(element: Any) -> Any:
    """This element, or the first one behind it that is no properties; None if there is none."""
    while element is not None and element.tag in PROPERTIES:
        element = element.getnext()
    return element


def string_of(element: Any) -> str:
    """Its words, also those behind a comment."""
    return "".join(element.xpath("text()"))


def text_of(paragraph: Any) -> str:
    return "".join(string_of(child) for run, child in all_pieces(pieces_of(paragraph)) if is_word(run, child))


def format_of(run: Any) -> bytes:
    """A run's properties as bytes, by which formats are compared."""
    from lxml import etree

    properties = run.find(WORD + "rPr")
    if properties is None:
        return b""
    kept = deepcopy(properties)
    for child in list(kept):
        if child.tag in (WORD + "lang", WORD + "noProof"):  # of spelling, not of how it looks
            kept.remove(child)
    data: bytes = b"".join(etree.tostring(child) for child in kept)
    return data


def text_element(run: Any, text: str) -> Any:
    element = run.makeelement(WORD + "t", {SPACE: "preserve"})
    element.text = "".join(c for c in text if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff"))  # all that XML has
    return element


class Copier:
    """Makes runs in the format of others. HeedError once the copies would take far more than the document."""

    def __init__(self, n_bytes: int, name: str):
        """n_bytes: of the document's text."""
        self._left, self._name = MAX_COPIED + 4 * n_bytes, name

    def run_with(self, run: Any, children: Sequence[Any]) -> Any:
        """A run of the same format with other content."""
        properties = run.find(WORD + "rPr")
        self._pay(run, [] if properties is None else [properties])
        copy = _empty_copy(run)
        if properties is not None:
            copy.append(deepcopy(properties))
        copy.extend(children)
        return copy

    def copy(self, element: Any, children: Sequence[Any]) -> Any:
        """The element once more, with copies of these of its children."""
        self._pay(element, children)
        copy = _empty_copy(element)
        copy.extend(deepcopy(child) for child in children)
        return copy

    def _pay(self, element: Any, children: Sequence[Any]) -> None:
        self._left -= sum(len(key) + len(value) for key, value in element.attrib.items())
        self._left -= sum(_size(part) for child in children for part in child.iter())
        if self._left < 0:
            raise HeedError(f"{self._name}: its runs have too many properties.")


def _size(element: Any) -> int:
    """About how many characters it has without what is in it and without the namespaces, which are written once."""
    name = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
    attributes = sum(len(key) + len(value) for key, value in element.attrib.items())
    return 2 * len(name) + 5 + attributes + len(element.text or "") + len(element.tail or "")


def _empty_copy(element: Any) -> Any:
    return element.makeelement(element.tag, dict(element.attrib), nsmap={element.prefix: WORD[1:-1]})
