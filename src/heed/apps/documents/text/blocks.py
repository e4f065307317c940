"""The texts and tags between two cuts → one text, in which atoms are whole wherever tags divide them."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heed.apps.documents.text.atoms import Message, Patterns, find_kept, find_messages, pair_tags
from heed.apps.documents.text.items import Cases, Item, Kind, LiteralMarkup, Tag, Verbatim
from heed.apps.documents.text.tagged_text import Place, TaggedText

MAX_KEPT = 200  # characters of inline code that the model reads; of longer code it sees nothing


@dataclass(eq=False)
class _Atom:
    """A stretch of a block's text that stays as it is; the tags first to last − 1 of the block stand within it.

    partner: of a tag that is written as text, the one that opens or closes its element.
    """

    start: int
    end: int
    match: re.Match[str] | None
    message: Message | None = None
    first: int = 0
    last: int = 0
    partner: "_Atom | None" = None


def text_of_block(block: Sequence[Item], patterns: Patterns) -> TaggedText:
    """The block as one text; addresses and placeholders are atoms, tags that are written as text are tags."""
    whole = _joined(block)
    offsets = [place.offset for place in whole.tags]
    atoms = [atom for atom in _atoms(whole.text, patterns) if _surround(atom, whole, offsets)]
    if not atoms:
        return whole
    _pair_literal_tags(atoms, whole)
    block_text, has_moved = _with_atoms(whole, atoms)
    return replace(block_text, source=tuple(block)) if has_moved else block_text


def _joined(block: Sequence[Item]) -> TaggedText:
    """The texts of the block, with what the model reads of its tags between them."""
    # Places count characters of the text, partners count tags of the block.
    texts: list[str] = []
    tags: list[Place] = []
    opened: list[int] = []
    length = 0
    for i, item in enumerate(block):
        if isinstance(item, str):
            words = item
        else:
            # The model reads short code and a spelling as words, of longer code and of other tags nothing.
            if item.kind == "break":
                words = " " if item.hyphen is None else ""
            else:
                words = item.text if item.kind == "spelling" else " ".join(item.text.split())
            if len(words) > MAX_KEPT:
                words = ""

            # Opening and closing tags learn of each other when the closing one comes.
            place = Place(length, replace(item, text=words if item.kind in ("atom", "spelling") else ""), item=i)
            tags.append(place)
            if item.kind == "open":
                opened.append(len(tags) - 1)
            elif item.kind == "close":
                partner = opened.pop()
                tags[-1] = replace(place, partner=partner)
                tags[partner] = replace(tags[partner], partner=len(tags) - 1)
        texts.append(words)
        length += len(words)
    return TaggedText("".join(texts), tags)


def _atoms(text: str, patterns: Patterns) -> list[_Atom]:
    messages = find_messages(text)
    between = zip([0, *(one.end for one in messages)], [*(one.start for one in messages), len(text)], strict=True)
    atoms = [_Atom(*match.span(), match) for match in find_kept(text, patterns, between)]
    atoms += [_Atom(message.start, message.end, None, message) for message in messages]
    return sorted(atoms, key=lambda atom: atom.start)


def _surround(atom: _Atom, whole: TaggedText, offsets: list[int]) -> bool:
    """Finds the tags within an atom, those of elements that end or begin with it too.

    False if code or the like, which stays as it is anyway, is the same text or reaches over its ends.
    """
    tags = whole.tags
    first, last = bisect_left(offsets, atom.start), bisect_left(offsets, atom.end)
    if first > 0 and tags[first - 1].offset + tags[first - 1].length > atom.start:
        return False
    while first < last and tags[first].offset == atom.start and not tags[first].length:
        first += 1
    if first < last:
        code = tags[first]
        is_whole = code.tag.kind == "atom" and (code.offset, code.length) == (atom.start, atom.end - atom.start)
        if is_whole or tags[last - 1].offset + tags[last - 1].length > atom.end:
            return False
    partners = [tags[i].partner for i in range(first, last) if tags[i].partner >= 0]
    atom.first = min([first, *(i for i in partners if i < first and tags[i].offset == atom.start)])
    atom.last = max([last, *(i + 1 for i in partners if i >= last and tags[i].offset == atom.end)])
    return True


def _pair_literal_tags(atoms: list[_Atom], whole: TaggedText) -> None:
    """Pairs the tags that are written as text, if they cross no element of the document."""
    matches = [(atom, atom.match) for atom in atoms if atom.match is not None and _is_tag(atom.match)]
    partners = pair_tags([match for _, match in matches])
    if not partners:
        return
    # The element of the document that each of them stands in; tags within atoms are beside these.
    innermost: list[int] = []
    opened: list[int] = []
    place = 0
    for atom, _ in matches:
        while place < atom.last:
            tag = whole.tags[place]
            if tag.tag.kind == "open":
                opened.append(place)
            elif tag.tag.kind == "close":
                opened.pop()
            place += 1
        innermost.append(opened[-1] if opened else -1)
    for number, partner in partners.items():
        if innermost[number] == innermost[partner]:
            matches[number][0].partner = matches[partner][0]


def _is_tag(match: re.Match[str]) -> bool:
    return bool(match.groupdict().get("name"))  # a user's expressions have no groups


def _with_atoms(whole: TaggedText, atoms: list[_Atom]) -> tuple[TaggedText, bool]:
    """The text with its atoms, and whether there are elements that begin or end within one: they do so beside it."""
    texts: list[str] = []
    places: list[Place] = []
    numbers: dict[int, int] = {}  # the places of the block's tags among the new ones
    of_atoms: dict[_Atom, int] = {}
    last = n_cut = done = n_moved = 0

    def add(i: int, offset: int) -> None:
        numbers[i] = len(places)
        places.append(replace(whole.tags[i], offset=offset - n_cut))

    for atom in atoms:
        for i in range(done, atom.first):
            add(i, whole.tags[i].offset)
        within, before, behind = _divide(whole, atom)
        n_moved += len(before) + len(behind)
        for i in before:
            add(i, atom.start)
        of_atoms[atom] = len(places)
        markup, text = _markup(whole, atom, within), whole.text[atom.start : atom.end]
        match = atom.match
        if match is not None and atom.partner is None:
            places.append(Place(atom.start - n_cut, Tag("atom", markup, text=text)))
        else:
            # The model sees nothing of elements' tags and of messages.
            kind: Kind = "atom" if match is None else "close" if match["end"] else "open"
            places.append(Place(atom.start - n_cut, Tag(kind, markup, match["name"] if match else "")))
            texts.append(whole.text[last : atom.start])
            last = atom.end
            n_cut += len(text)
        for i in behind:
            add(i, atom.end)
        done = atom.last
    for i in range(done, len(whole.tags)):
        add(i, whole.tags[i].offset)

    # Partners by their new numbers.
    for i, number in numbers.items():
        if whole.tags[i].partner >= 0:
            places[number] = replace(places[number], partner=numbers[whole.tags[i].partner])
    for atom, number in of_atoms.items():
        if atom.partner is not None:
            places[number] = replace(places[number], partner=of_atoms[atom.partner])
    return TaggedText("".join(texts) + whole.text[last:], places), n_moved > 0


def _divide(whole: TaggedText, atom: _Atom) -> tuple[list[Place], list[int], list[int]]:
    """The tags that stay within an atom, and those that go before and behind it: to the side of most of it."""
    within: list[Place] = []
    before: list[int] = []
    behind: list[int] = []
    for i in range(atom.first, atom.last):
        place = whole.tags[i]
        if place.partner < 0 or atom.first <= place.partner < atom.last:
            within.append(place)
        elif 2 * place.offset > atom.start + atom.end - (place.tag.kind == "open"):
            behind.append(i)
        else:
            before.append(i)
    return within, before, behind


def _markup(whole: TaggedText, atom: _Atom, within: list[Place]) -> LiteralMarkup | Verbatim | Cases:
    if atom.message is not None:
        return _cases(whole, atom.message, within)
    if not within:
        return LiteralMarkup(whole.text[atom.start : atom.end])
    return Verbatim(list(whole.items((atom.start, atom.end), within)))


def _cases(whole: TaggedText, message: Message, within: list[Place]) -> Cases:
    """The message's items, those of the words of a case as a list of their own."""
    parts: list[Item | list[Item]] = []
    last, k = message.start, 0
    for number, bound in enumerate([bound for case in message.cases for bound in case] + [message.end]):
        first = k
        while k < len(within) and (within[k].offset < bound or number == 2 * len(message.cases)):
            k += 1
        items = list(whole.items((last, bound), within[first:k]))
        parts += [items] if number % 2 else items
        last = bound
    return Cases(parts)
