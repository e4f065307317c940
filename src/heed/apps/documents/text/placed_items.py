"""The words and tags of a translation in their final order → its items, with white space and line ends between them.

One rule: what separated two things in the source separates them in the translation, once. Between two words that is
the translation's own white space; a thing, such as an image or a placeholder, brings what stood on its sides. White
space stands behind closing tags and before opening ones, as Markdown's would not close or open else.
"""

from collections.abc import Sequence
from itertools import pairwise

from heed.apps.documents.text.atoms import ADDRESS
from heed.apps.documents.text.items import Item, Tag, item_of
from heed.apps.documents.text.tagged_text import Place
from heed.apps.documents.text.target_words import WITHIN_WORD, TargetWord

_OPENING, _CLOSING = frozenset("([{„“«‹¿¡"), frozenset(".,;:!?…)]}%»›”’、。，；：！？）」』】")
_WITHIN_ADDRESS = frozenset("-/#&=%+~@")  # with which it would go on
_Solid = TargetWord | Place | None  # a word, a thing between words, or an end of the sentence


def write_items(
    order: list[Tag | int | Place], tokens: list[TargetWord], texts: tuple[str, str], breaks: dict[int, Place]
) -> list[Item]:
    """The items of a sentence. texts: source and translation; breaks: the line end before a word."""
    output: list[Item] = []
    between: list[Tag | Place] = []  # tags and things since the last word
    before: TargetWord | None = None
    for entry in [*order, None]:
        if isinstance(entry, Tag | Place):
            between.append(entry)
            continue
        token = None if entry is None else tokens[entry]
        output += _spaced(before, between, token, texts, line_end=None if entry is None else breaks.get(entry))
        if token is not None:
            output.append(item_of(token.kept) if token.kept else texts[1][token.start : token.end])
        before, between = token, []
    return [item for item in output if item != ""]


def _spaced(
    before: TargetWord | None,
    between: list[Tag | Place],
    token: TargetWord | None,
    texts: tuple[str, str],
    *,
    line_end: Place | None,
) -> list[Item]:
    """What stands between two words, with white space where it belongs, or a line end in its place."""
    # A separator before and behind each thing.
    source, target = texts
    gap = target[before.end : token.start] if before and token else ""
    things = [i for i, entry in enumerate(between) if isinstance(entry, Place) and not _is_tag(entry)]
    solids: list[_Solid] = [before, *(entry for i in things if isinstance(entry := between[i], Place)), token]
    separators = [_separator(a, b, gap, source=source, target=target) for a, b in pairwise(solids)]
    if gap and not any(separators) and not any(_is_break(solid) for solid in solids):
        follows = (isinstance(solid, Place) and solid.follows for solid in solids[1:-1])
        separators[next((k for k, follow in enumerate(follows) if not follow), len(things))] = gap

    # The place of each among the tags, then that of a line end, which replaces the separator there.
    places: dict[int, Item] = {}
    for first, last, separator in zip([0, *(i + 1 for i in things)], [*things, len(between)], separators, strict=True):
        while first < last and _is_tag(between[first], "close"):
            first += 1
        places[first] = separator
    if line_end is not None:
        place = _place_of_line_end(between, line_end)
        slot = max(first for first in places if first <= place) if any(first <= place for first in places) else 0
        places.pop(slot, None)
        places[place] = line_end.tag
    written: list[Item] = []
    for i, entry in enumerate(between):
        written += [places[i]] if i in places else []
        written.append(item_of(entry.tag if isinstance(entry, Place) else entry))
    return [*written, places[len(between)]] if len(between) in places else written


def _separator(a: _Solid, b: _Solid, gap: str, *, source: str, target: str) -> str:
    """What separates two things or words that are neighbours in the translation; gap: between the words around."""
    if a is None or b is None or _is_break(a) or _is_break(b):
        return ""
    exact = [solid for solid in (a, b) if isinstance(solid, Place) or solid.kept]
    if not exact:
        return gap
    (_, a_end), (b_start, _) = _span(a), _span(b)
    separator = source[a_end:b_start]
    are_neighbours = a_end <= b_start and not separator.strip()
    if are_neighbours and (len(exact) == 2 or (separator and isinstance(exact[0], Place))):
        return separator

    # No neighbours: nothing that stays is glued to what it did not touch.
    sides = source[a_end : a_end + 1], source[max(b_start - 1, 0) : b_start]
    in_text = isinstance(a, TargetWord) and isinstance(b, TargetWord)
    if in_text and gap:
        return gap
    if len(exact) == 2:
        return " " if (_text(a) and _text(b)) or any(map(str.isspace, sides)) else ""
    if isinstance(b, Place) or (isinstance(b, TargetWord) and b.kept):
        sign, side, glued, close = _sign(a, target, -1), sides[1], _touches_before, _OPENING
    else:
        sign, side, glued, close = _sign(b, target, 0), sides[0], _touches_behind, _CLOSING
    if not in_text and side.isspace():
        return " " if gap or sign not in close else ""
    goes_on = glued is _touches_behind and sign in _WITHIN_ADDRESS and sign != side
    is_glued = glued(sign, side) or (goes_on and ADDRESS.fullmatch(_text(exact[0])) is not None)
    return " " if _text(exact[0]) and is_glued else ""


def _span(solid: TargetWord | Place) -> tuple[int, int]:
    """Where it stands in the source."""
    return solid.source if isinstance(solid, TargetWord) else (solid.offset, solid.offset + solid.length)


def _text(solid: _Solid) -> str:
    """What a thing stands for, "" if that is no text."""
    tag = solid.tag if isinstance(solid, Place) else solid.kept if solid else None
    return tag.text if tag else ""


def _sign(solid: TargetWord | Place, target: str, place: int) -> str:
    return target[solid.start : solid.end][place] if isinstance(solid, TargetWord) else ""


def _is_tag(entry: Tag | Place, kind: str = "") -> bool:
    """Whether it is a tag of an element, of this kind if one is given."""
    own = (entry.tag if isinstance(entry, Place) else entry).kind
    return own == kind if kind else own in ("open", "close")


def _is_break(solid: _Solid) -> bool:
    return isinstance(solid, Place) and solid.tag.kind == "break"


def _place_of_line_end(between: Sequence[Tag | Place], line_end: Place) -> int:
    """How many of these come before the line end: what closes or follows a word, and what stood before it."""
    place = 0
    while place < len(between) and (
        entry.follows if isinstance(entry := between[place], Place) else entry.kind == "close"
    ):
        place += 1
    while place < len(between):
        entry = between[place]
        is_behind = entry.offset > line_end.offset if isinstance(entry, Place) else entry.kind == "open"
        if is_behind and not _ends_paragraph(entry):
            break
        place += 1
    return place


def _ends_paragraph(tag: Tag | Place) -> bool:
    """Whether it would end a paragraph of Markdown if a line began with it, as a comment does."""
    return isinstance(tag, Place) and str(tag.tag.markup).startswith(("<!", "<?"))


def _touches(sign: str, source_sign: str) -> bool:
    """Whether a thing would be glued to a word: `sign`, next to it, is a word's, and `source_sign` was not.

    Scripts without spaces between words touch anything, and a sign what it touched in the source.
    """
    return bool(WITHIN_WORD.match(sign * 2)) and not source_sign.isalnum() and sign != source_sign


def _touches_before(sign: str, source_sign: str) -> bool:
    """`_touches` before what stands for words, and for punctuation, which is not glued to it: "end.https://…"."""
    return _touches(sign, source_sign) or (sign in ".,;:!?" and sign != source_sign)


def _touches_behind(sign: str, source_sign: str) -> bool:
    """`_touches` behind what stands for words, and for a bracket, with which an address would go on."""
    return _touches(sign, source_sign) or (sign in _OPENING and source_sign != sign)
