"""A translated sentence → the same with the source's tags, each once, moved along the alignment.

As in Bergamot, the translator in Firefox, a word of the target belongs to the elements of the source word that it
translates. Unlike there an element is never doubled: it goes to the longest run of its words.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace

from heed.apps.documents.text.items import CUE, Item, Tag
from heed.apps.documents.text.placed_items import write_items
from heed.apps.documents.text.sentences import Span, strip_span
from heed.apps.documents.text.tagged_text import Element, Place, TaggedText
from heed.apps.documents.text.target_words import (
    WITHIN_WORD,
    TargetWord,
    set_sources,
    source_words,
    split_within_words,
    target_words,
)
from heed.text.alignment import Translated

_COMMAS = frozenset(",;:–—、，；：")
_NOT_FIRST = frozenset(".,;:!?…)]}%。、，；：！？）」』】")


def place_tags(sentence: TaggedText, result: Translated | None) -> list[Item] | None:
    """The translation with the sentence's tags; the sentence as it was for the result None.

    None if a text that must stay, such as code, is not there exactly as often as in the sentence.
    """
    if result is None:
        return list(sentence.items())
    spellings = [place for place in sentence.tags if place.tag.kind == "spelling"]
    if spellings:
        sentence = replace(sentence, tags=[place for place in sentence.tags if place.tag.kind != "spelling"])
    if not sentence.tags:
        return _restore_spellings([result.text], spellings, sentence)
    kept = [place for place in sentence.tags if place.tag.text and not place.bare]
    tokens = target_words(result.text, kept)
    if tokens is None:
        return None
    set_sources(tokens, result, source_words(sentence.text, kept))
    tokens = split_within_words(tokens, sentence, result.text)
    line_ends = _line_ends_between_words(sentence)
    root = _tree(sentence, tokens, {id(place) for place in (*kept, *line_ends)})
    breaks = _break_places(sentence, line_ends, tokens, result.text, kept=kept)
    written = write_items(_order(root, tokens), tokens, (sentence.text, result.text), breaks)
    start, end = strip_span(sentence.text, 0, len(sentence.text))
    bare = [place.offset for place in sentence.tags if place.bare]  # white space behind the first is written with it
    items = [sentence.text[: min([start, *bare])], *written, sentence.text[max([end, *bare]) :]]
    return _restore_spellings(_without_empty_lines(items), spellings, sentence)


def _without_empty_lines(items: list[Item]) -> list[Item]:
    """The items without line ends that have nothing before or behind them: an empty line would end a paragraph."""
    kept: list[Item] = []
    line_end: Tag | None = None
    is_empty = True
    for item in items:
        if isinstance(item, Tag) and item.kind == "break":
            line_end, is_empty = line_end or (None if is_empty else item), True
        elif isinstance(item, str) and is_empty and not item.strip():
            kept += [] if line_end else [item]
        else:
            kept += [line_end, item] if line_end else [item]
            line_end, is_empty = None, False
    return kept


def _line_ends_between_words(sentence: TaggedText) -> list[Place]:
    """The first line end between any two words. Further ones there are next to a thing, and stay there."""
    places: list[Place] = []
    start, end = strip_span(sentence.text, 0, len(sentence.text))
    for place in sentence.tags:
        is_within = place.tag.kind == "break" and start <= place.offset < end
        if is_within and (not places or sentence.text[places[-1].offset : place.offset].strip()):
            places.append(place)
    return places


def _restore_spellings(items: list[Item], spellings: list[Place], sentence: TaggedText) -> list[Item]:
    """The translation with the sentence's spellings of what it has as often as the sentence, in the same order."""
    # Of each text, the spelling of every occurrence in the sentence, in order; None where it is spelled plainly.
    if not spellings:
        return items
    pattern = re.compile("|".join(sorted({re.escape(place.tag.text) for place in spellings}, key=len, reverse=True)))
    tags = {place.offset: place.tag for place in spellings}
    spelled_as: dict[str, list[Tag | None]] = {}
    last = 0
    for place in [
        *(tag for tag in sentence.tags if tag.tag.text and not tag.bare),
        Place(len(sentence.text), Tag("cut", "")),
    ]:
        for match in pattern.finditer(sentence.text, last, place.offset):
            spelled_as.setdefault(match[0], []).append(tags.get(match.start()))
        last = place.offset + place.length

    # If the translation has a text as often, its occurrences get the spellings in the same order.
    counts = Counter(match[0] for item in items if isinstance(item, str) for match in pattern.finditer(item))
    waiting = {text: iter(ways) for text, ways in spelled_as.items() if len(ways) == counts[text]}
    output: list[Item] = []
    for item in items:
        if isinstance(item, str):
            last = 0
            for match in pattern.finditer(item):
                tag = next(waiting[match[0]], None) if match[0] in waiting else None
                if tag is not None:
                    output += [item[last : match.start()], tag]
                    last = match.end()
            item = item[last:]
        output.append(item)
    return [item for item in output if item != ""]


def _tree(sentence: TaggedText, tokens: list[TargetWord], others: set[int]) -> Element:
    """The sentence's elements but for others, which are among the words; sets those that each word belongs to."""
    root = Element(Place(0, Tag("open", None)))
    path, offsets, paths = [root], [0], [[root][1:]]
    for place in sentence.tags:
        if id(place) in others:
            continue
        if place.tag.kind == "close":
            path[-1].close = place
            path[-1].has_words = bool(sentence.text[path[-1].open.offset : place.offset].strip())
            path = path[:-1]
        else:
            element = Element(replace(place, follows=place.tag.kind == "atom" and _follows(place, sentence.text)))
            path[-1].parts.append(element)
            if place.tag.kind == "open":
                path = [*path, element]
        offsets.append(place.offset)
        paths.append(path[1:])
    for token in tokens:
        middle = (token.source[0] + token.source[1] - 1) // 2
        token.elements = paths[bisect_right(offsets, middle) - 1]
    return root


def _follows(place: Place, text: str) -> bool:
    """Whether a thing stands directly behind a word, or within one, and not before one."""
    before, after = text[place.offset - 1 : place.offset], text[place.offset : place.offset + 1]
    return bool(before.strip()) and (before.isalnum() or not after.isalnum())


def _order(root: Element, tokens: list[TargetWord]) -> list[Tag | int | Place]:
    """Tags and the numbers of the words in their final order; a Place is a thing between words, or a tag of one."""
    # An element's words are one run, so that a recursion along the tree writes each element once.
    output: list[Tag | int | Place] = []

    def write(element: Element, first: int, last: int, depth: int) -> None:
        """All within an element whose words are first to last − 1."""
        runs = _runs(tokens, first, last, depth)
        _give_words(element, runs, tokens, (first, last))
        spans = sorted((span, i) for i, part in enumerate(element.parts) if (span := runs.get(id(part))) is not None)
        empties = _empty_places(element, runs, tokens, (first, last))
        e, position = 0, first
        for (start, end), i in [*spans, ((last, last), -1)]:
            while e < len(empties) and empties[e][0] <= start:
                output.extend(range(position, empties[e][0]))
                position = empties[e][0]
                write_empty(element.parts[empties[e][1]])
                e += 1
            output.extend(range(position, start))
            position = end
            if i >= 0:
                part = element.parts[i]
                assert part.close is not None
                output.append(part.open.tag)
                write(part, start, end, depth + 1)
                output.append(part.close.tag)

    # Without words an element keeps its parts, in the order of the source.
    def write_empty(element: Element) -> None:
        if element.close is None:
            output.append(element.open)
            return
        output.append(element.open)
        for part in element.parts:
            write_empty(part)
        output.append(element.close)

    # The root is not part of the document; only its parts are written.
    write(root, 0, len(tokens), 0)
    return output


def _runs(tokens: list[TargetWord], first: int, last: int, depth: int) -> dict[int, Span]:
    """The longest run of words of each element at this depth, by the element's id; a foreign word may be in it."""
    longest: dict[int, tuple[int, Span]] = {}
    current: Element | None = None
    start = end = n_words = 0
    for i in range(first, last + 1):
        elements = tokens[i].elements if i < last else []
        element = elements[depth] if len(elements) > depth else None
        if element is not None and element is current and i - end <= 1:
            end, n_words = i + 1, n_words + 1
        elif element is not None or i == last:
            if current is not None and n_words > longest.get(id(current), (0, (0, 0)))[0]:
                longest[id(current)] = (n_words, (start, end))
            current, start, end, n_words = element, i, i + 1, 1
    return {key: span for key, (_, span) in longest.items()}


def _give_words(element: Element, runs: dict[int, Span], tokens: list[TargetWord], words: Span) -> None:
    """An element that marked words and has none left gets the nearest free one: an empty link leads nowhere."""
    taken = {i for first, last in runs.values() for i in range(first, last)}
    for place, i in _empty_places(element, runs, tokens, words):
        part = element.parts[i]
        if not part.has_words:
            continue
        within = [j for j in range(*words) if tokens[j].source[0] < part.open.offset < tokens[j].source[1]]
        near = (j for j in (*within, place, place - 1, place + 1) if words[0] <= j < words[1] and j not in taken)
        free = next((j for j in near if tokens[j].kept is None), None)
        if free is not None:
            runs[id(part)] = (free, free + 1)
            taken.add(free)


def _empty_places(
    element: Element, runs: dict[int, Span], tokens: list[TargetWord], words: Span
) -> list[tuple[int, int]]:
    """Before which word each part without words goes, and its number. Sorted; never within another part's words.

    It stays with the word that translates its neighbour in the source.
    """
    empty = [i for i, part in enumerate(element.parts) if id(part) not in runs]
    if not empty:
        return []
    by_source = sorted((tokens[i].source[0], i) for i in range(*words))
    spans = sorted(runs.values())
    places = []
    for i in empty:
        part = element.parts[i].open
        following = bisect_left(by_source, (part.offset, -1))
        if part.follows and following > 0:
            place = by_source[following - 1][1] + 1
        else:
            place = by_source[following][1] if following < len(by_source) else words[1]
        before = bisect_left(spans, (place, -1)) - 1
        places.append((max(place, spans[before][1]) if before >= 0 else place, i))
    return sorted(places)


def _break_places(
    sentence: TaggedText, breaks: list[Place], tokens: list[TargetWord], text: str, *, kept: list[Place]
) -> dict[int, Place]:
    """Before which word each line end goes: at spaces, each as far into the sentence as it was."""
    # Punctuation begins no line, unless it does in the source.
    if not breaks:
        return {}
    first_in_source = {sentence.text[place.offset + place.length :][:1] for place in breaks}
    not_first = _NOT_FIRST - first_in_source
    first = [i for i in range(1, len(tokens)) if text[tokens[i].start] not in not_first]

    # A line ends at a space; in scripts that have none, between any two words.
    gaps = [i for i in first if tokens[i - 1].end < tokens[i].start]
    if len(gaps) < len(breaks):
        gaps = [i for i in first if not WITHIN_WORD.match(text, tokens[i].start - 1)]

    # Ideally behind as many words as in the sentence, if both have the same number; else as far into the text.
    ends = [tokens[i - 1].end for i in gaps]
    starts = [word for word, _ in source_words(sentence.text, kept)]
    ratio = len(text) / len(sentence.text)

    # Each takes the gap nearest to that, in order, and leaves one for every later line end. A subtitle rather begins
    # behind a comma or the like that is not far.
    if len(gaps) < len(breaks):
        breaks = [place for place in breaks if place.tag.name == CUE] or breaks
    places: dict[int, Place] = {}
    lowest = 0
    for n, place in enumerate(breaks):
        highest = len(gaps) - (len(breaks) - n)  # the later ones need a gap each
        if highest < lowest:
            break  # a word for two lines
        wish = place.offset * ratio
        if len(starts) == len(tokens):  # a word for a word
            wish = tokens[max(0, bisect_left(starts, place.offset) - 1)].end
        i = min(max(bisect_left(ends, wish), lowest), highest)
        if i > lowest and wish - ends[i - 1] < ends[i] - wish:
            i -= 1
        if place.tag.name == CUE:
            has_comma = sentence.text[place.offset - 1] in _COMMAS
            reach = len(text) / (2 * len(breaks) + (2 if has_comma else 4))
            near = range(
                max(lowest, bisect_left(ends, wish - reach)), min(highest + 1, bisect_left(ends, wish + reach))
            )
            signs = (j for j in near if text[ends[j] - 1] in _COMMAS)
            i = min(signs, key=lambda j: abs(ends[j] - wish), default=i)
        places[gaps[i]] = replace(place, tag=replace(place.tag, hyphen=None))
        lowest = i + 1
    return places
