"""A translated sentence → the same with the source's tags, each once, moved along the alignment.

As in Bergamot, the translator in Firefox, a word of the target belongs to the elements of the source word that it
translates. Unlike there an element is never doubled: it goes to the longest run of
its words.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from heed.apps.documents.items import Item, Tag, item_of
from heed.apps.documents.sentences import Span, strip_span
from heed.text.alignment import Link, Translated

# Scripts that put no spaces between words: each character is one (Thai, Lao, Khmer; kana, Han and their neighbours).
_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LATIN = "[0-9A-Za-zÀ-ɏ]"
_NOT_FIRST = frozenset(".,;:!?…)]}%。、，；：！？）」』】")
_WITHIN_WORD = re.compile(rf"[^\W{_UNSPACED}]{{2}}")
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


@dataclass(frozen=True)
class Place:
    """A tag before a character of a text; partner: the place of its other half in the list, −1 if it has none.

    item: its place in the block that it comes from, −1 for what is text there. bare: its own text is not in the
    sentence. follows: it belongs to the word before it, as a footnote's number does.
    """

    offset: int
    tag: Tag
    partner: int = -1
    item: int = -1
    bare: bool = False
    follows: bool = False

    @property
    def length(self) -> int:
        """The characters that stand for it in the text."""
        if self.tag.kind == "break":
            return 1 if self.tag.hyphen is None else 0
        return 0 if self.bare else len(self.tag.text)


@dataclass(frozen=True)
class TaggedText:
    """A text and the tags in it, in order."""

    text: str
    tags: list[Place]

    def items(self, span: Span | None = None, tags: Sequence[Place] | None = None) -> Iterator[Item]:
        """A span of the text with these tags, as they stood in the document."""
        last, end = span or (0, len(self.text))
        for place in self.tags if tags is None else tags:
            if place.offset > last:
                yield self.text[last : place.offset]
            yield item_of(place.tag)
            last = max(last, place.offset + place.length)
        if end > last:
            yield self.text[last:end]


@dataclass
class _Token:
    """A word of the target, the source characters that it translates, and the elements that it belongs to."""

    start: int
    end: int
    source: Span = (0, 0)
    elements: list["_Element"] = field(default_factory=list)  # outermost first
    kept: Tag | None = None  # what stands in place of the word


@dataclass(eq=False)
class _Element:
    """An element, or a thing between words if `close` is None, with all that it contains."""

    open: Place
    close: Place | None = None
    parts: list["_Element"] = field(default_factory=list)
    has_words: bool = False


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
    tokens = _tokens(result.text, kept)
    if tokens is None:
        return None
    _set_sources(tokens, result, _source_words(sentence.text, kept))
    tokens = _split_within_words(tokens, sentence, result.text)
    line_ends = _line_ends_between_words(sentence)
    root = _tree(sentence, tokens, {id(place) for place in (*kept, *line_ends)})
    breaks = _break_places(sentence, line_ends, kept, tokens, result.text)
    written = _write(_order(root, tokens), tokens, (sentence.text, result.text), breaks)
    start, end = strip_span(sentence.text, 0, len(sentence.text))
    bare = [place.offset for place in sentence.tags if place.bare]  # white space behind the first is written with it
    items = [sentence.text[: min([start, *bare])], *written, sentence.text[max([end, *bare]) :]]
    return _restore_spellings(_without_empty_lines(items), spellings, sentence)


def _without_empty_lines(items: list[Item]) -> list[Item]:
    """The items without line ends that have nothing before or behind them: an empty line would end a paragraph."""
    found: list[Item] = []
    line_end: Tag | None = None
    is_empty = True
    for item in items:
        if isinstance(item, Tag) and item.kind == "break":
            line_end, is_empty = line_end or (None if is_empty else item), True
        elif isinstance(item, str) and is_empty and not item.strip():
            found += [] if line_end else [item]
        else:
            found += [line_end, item] if line_end else [item]
            line_end, is_empty = None, False
    return found


def _line_ends_between_words(sentence: TaggedText) -> list[Place]:
    """The first line end between any two words. Further ones there are next to a thing, and stay there."""
    found: list[Place] = []
    start, end = strip_span(sentence.text, 0, len(sentence.text))
    for place in sentence.tags:
        is_within = place.tag.kind == "break" and start <= place.offset < end
        if is_within and (not found or sentence.text[found[-1].offset : place.offset].strip()):
            found.append(place)
    return found


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
    waiting = {text: iter(found) for text, found in spelled_as.items() if len(found) == counts[text]}
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


def _tokens(text: str, kept: list[Place]) -> list[_Token] | None:
    """The words of a translation; a text that must stay is one word. None if one is missing or there too often."""
    wanted: dict[str, list[Place]] = {}
    for place in kept:
        wanted.setdefault(place.tag.text, []).append(place)
    spans: list[tuple[int, int, Place]] = []
    if wanted:
        # The longest first: a text may contain another.
        pattern = "|".join(_whole(text) for text in sorted(wanted, key=len, reverse=True))
        for match in re.finditer(pattern, text):
            if not wanted[match[0]]:
                return None
            spans.append((match.start(), match.end(), wanted[match[0]].pop(0)))
    if any(wanted.values()):
        return None
    tokens, last = [], 0
    for start, end, place in spans:
        tokens += [_Token(*match.span()) for match in _WORDS.finditer(text, last, start)]
        tokens.append(_Token(start, end, (place.offset, place.offset + place.length), kept=place.tag))
        last = end
    return tokens + [_Token(*match.span()) for match in _WORDS.finditer(text, last)]


def _whole(text: str) -> str:
    """A pattern for the text where it is not part of a longer word."""
    before, after = (f"(?<!{_LATIN})", f"(?!{_LATIN})")
    return before * text[0].isalnum() + re.escape(text) + after * text[-1].isalnum()


def _source_words(source: str, kept: list[Place]) -> list[Span]:
    words: list[Span] = []
    last = 0
    for place in kept:
        words += [match.span() for match in _WORDS.finditer(source, last, place.offset)]
        last = place.offset + place.length
        words.append((place.offset, last))
    words += [match.span() for match in _WORDS.finditer(source, last)]
    return words or [(0, len(source))]


def _set_sources(tokens: list[_Token], result: Translated, words: list[Span]) -> None:
    """Gives each word the source word that it translates: its longest link's, or without links the one at its place."""
    starts = [start for start, _ in words]
    links: Sequence[Link] = result.alignment or ()
    first, ratio = 0, len(words) / max(1, len(tokens))
    before: Span | None = None
    for number, token in enumerate(tokens):
        while first < len(links) and links[first].tgt_end <= token.start:
            first += 1
        best, longest, place = None, 0, first
        while place < len(links) and links[place].tgt_start < token.end:
            overlap = min(token.end, links[place].tgt_end) - max(token.start, links[place].tgt_start)
            if overlap > longest:
                best, longest = links[place], overlap
            place += 1
        if token.kept is None:
            if best is not None:
                middle = (best.src_start + best.src_end - 1) // 2
            elif links and before is not None:
                middle = before[0]
            else:
                middle = words[int(number * ratio)][0]
            token.source = words[max(0, bisect_right(starts, middle) - 1)]
        before = token.source


def _split_within_words(tokens: list[_Token], sentence: TaggedText, text: str) -> list[_Token]:
    """The words, cut where the source's are by a tag within them, as in m<sup>2</sup>, if they have the same parts.

    A word that is the same in both texts is cut as in the source; else its last or its first part is cut off, but not
    at a thing, which stays behind the word.
    """
    # Things are cut off from words that are the same only: within another word no place for them is known.
    elements = [place.offset for place in sentence.tags if place.tag.kind in ("open", "close")]
    every = [place.offset for place in sentence.tags if place.tag.kind != "break" and not place.length]
    if not every:
        return tokens

    # The bounds of the parts, in the source (cuts) and in the target (places).
    found: list[_Token] = []
    for token in tokens:
        start, end = token.source
        word = text[token.start : token.end]
        is_same = len(word) == end - start and word.casefold() == sentence.text[start:end].casefold()
        offsets = every if is_same else elements
        bounds = [start, *sorted(set(offsets[bisect_right(offsets, start) : bisect_left(offsets, end)])), end]
        if token.kept is not None or len(bounds) == 2:
            found.append(token)
            continue
        first, last = sentence.text[start : bounds[1]], sentence.text[bounds[-2] : end]
        if is_same:
            cuts, places = bounds, [token.start + cut - start for cut in bounds]
        elif word.endswith(last) and word != last:
            cuts, places = [start, bounds[-2], end], [token.start, token.end - len(last), token.end]
        elif word.startswith(first) and word != first:
            cuts, places = [start, bounds[1], end], [token.start, token.start + len(first), token.end]
        else:
            found.append(token)
            continue
        found += [_Token(*span, source) for span, source in zip(pairwise(places), pairwise(cuts), strict=True)]
    return found


def _tree(sentence: TaggedText, tokens: list[_Token], others: set[int]) -> _Element:
    """The sentence's elements but for others, which are among the words; sets those that each word belongs to."""
    root = _Element(Place(0, Tag("open", None)))
    path, offsets, paths = [root], [0], [[root][1:]]
    for place in sentence.tags:
        if id(place) in others:
            continue
        if place.tag.kind == "close":
            path[-1].close = place
            path[-1].has_words = bool(sentence.text[path[-1].open.offset : place.offset].strip())
            path = path[:-1]
        else:
            element = _Element(replace(place, follows=place.tag.kind == "atom" and _follows(place, sentence.text)))
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


def _order(root: _Element, tokens: list[_Token]) -> list[Tag | int | Place]:
    """Tags and the numbers of the words in their final order; a Place is a thing between words, or a tag of one."""
    # An element's words are one run, so that a recursion along the tree writes each element once.
    output: list[Tag | int | Place] = []

    def write(element: _Element, first: int, last: int, depth: int) -> None:
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
    def write_empty(element: _Element) -> None:
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


def _runs(tokens: list[_Token], first: int, last: int, depth: int) -> dict[int, Span]:
    """The longest run of words of each element at this depth, by the element's id; a foreign word may be in it."""
    longest: dict[int, tuple[int, Span]] = {}
    current: _Element | None = None
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


def _give_words(element: _Element, runs: dict[int, Span], tokens: list[_Token], words: Span) -> None:
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


def _empty_places(element: _Element, runs: dict[int, Span], tokens: list[_Token], words: Span) -> list[tuple[int, int]]:
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
    sentence: TaggedText, breaks: list[Place], kept: list[Place], tokens: list[_Token], text: str
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
        gaps = [i for i in first if not _WITHIN_WORD.match(text, tokens[i].start - 1)]

    # Ideally behind as many words as in the sentence, if both have the same number; else as far into the text.
    ends = [tokens[i - 1].end for i in gaps]
    starts = [word for word, _ in _source_words(sentence.text, kept)]
    ratio = len(text) / len(sentence.text)

    # Each takes the gap nearest to that, in order, and leaves one for every later line end.
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
        places[gaps[i]] = replace(place, tag=replace(place.tag, hyphen=None))
        lowest = i + 1
    return places


def _write(
    order: list[Tag | int | Place], tokens: list[_Token], texts: tuple[str, str], breaks: dict[int, Place]
) -> list[Item]:
    """The items: between two words first what closes or follows, then the white space or line end, then the rest.

    Things that stand before the line end in the source stand before it here.
    """
    # waiting: tags and things behind the last word; whose side of the white space they take is known at the next word.
    source, target = texts
    output: list[Item] = []
    waiting: list[Tag | Place] = []
    last = 0

    def write_thing(place: Place) -> None:
        """A thing with a text, such as an address, is never glued to a word that it did not touch in the source."""
        if place.tag.text and _touches_before(_last_sign(output), source[place.offset - 1 : place.offset]):
            output.append(" ")
        output.append(item_of(place.tag))

    # What waits, around the white space or line end before the next word: first what touches the word before.
    def flush(gap: str, line_end: Place | None) -> None:
        behind = (
            i for i, tag in enumerate(waiting) if not (tag.follows if isinstance(tag, Place) else tag.kind == "close")
        )
        n_closing = next(behind, len(waiting))
        for tag in waiting[:n_closing]:
            if isinstance(tag, Place):
                write_thing(tag)
            else:
                output.append(item_of(tag))

        # A line end takes the place of the white space; what stood before it in the source comes before it.
        if line_end is None:
            write_spaced(waiting[n_closing:], [gap] if gap else [])
        else:
            n_before = n_closing
            for tag in waiting[n_closing:]:
                if tag.offset > line_end.offset if isinstance(tag, Place) else tag.kind == "open":
                    break
                n_before += 1
            if n_closing < n_before:
                write_spaced(waiting[n_closing:n_before], [gap] if gap else [])
                if output[-1] == " ":
                    output.pop()
            write_spaced(waiting[n_before:], [line_end.tag])
        waiting.clear()

    # Tags behind the white space, which may stand before, among or behind them, as in the source.
    def write_spaced(tags: list[Tag | Place], gap: list[Item]) -> None:
        space = bool(gap) or not output
        output.extend(gap)
        owed = False  # white space that follows a thing, but no closing tag: Markdown's would not close there

        # White space stands on the sides where it stood, but behind no opening tag: Markdown's would not open there.
        wanted = [False] * (len(tags) + 1)
        for i in reversed(range(len(tags))):
            tag = tags[i]
            if isinstance(tag, Place):
                wanted[i] = source[tag.offset - 1 : tag.offset].isspace()
            elif tag.kind == "open":
                wanted[i] = wanted[i + 1]

        # Two things that touch in the source touch here; white space behind the last one is written at the end.
        before: Tag | Place | None = None
        for i, tag in enumerate(tags):
            touches = isinstance(tag, Place) and isinstance(before, Place) and before.offset == tag.offset
            before = tag
            if isinstance(tag, Tag) and tag.kind == "close":
                output.append(item_of(tag))
                continue
            kind = tag.tag.kind if isinstance(tag, Place) else tag.kind
            if kind not in ("break", "close") and not touches and (owed or (wanted[i] and not space)):
                output.append(" ")
                space = True
            if kind != "close":
                owed = False
            if isinstance(tag, Tag):
                output.append(item_of(tag))
            else:
                write_thing(tag)
                space = kind in ("break", "open")
                owed = owed or (not space and source[tag.offset : tag.offset + 1].isspace())
        output.extend([" "] * owed)

    # Word by word: what waits before it, then the word, or the text that stays in its place.
    before: _Token | None = None  # what stands for words and comes directly before
    for entry in order:
        if not isinstance(entry, int):
            if isinstance(entry, Place) and entry.tag.text:
                before = _Token(last, last, (entry.offset, entry.offset))
            waiting.append(entry)
            continue
        token = tokens[entry]
        gap, line_end = target[last : token.start], breaks.get(entry)
        flush(gap, line_end)
        text = target[token.start : token.end]
        # As in `write_thing`, of two words in a row of which one stands for itself.
        if not gap and line_end is None and not (output and _last_sign(output).isspace()):
            first, last_sign = token.source[0], _last_sign(output)
            if token.kept:
                glued = _touches_before(last_sign, source[first - 1 : first])
            else:
                glued = before is not None and _touches(text[0], source[before.source[1] : before.source[1] + 1])
            output.extend([" "] * glued)
        output.append(item_of(token.kept) if token.kept else text)
        last, before = token.end, token if token.kept else None
    flush(target[last:], None)
    return output


def _touches(sign: str, source_sign: str) -> bool:
    """Whether a thing would be glued to a word: `sign`, next to it, is a word's, and `source_sign` was not.

    Scripts without spaces between words touch anything, and a sign what it touched in the source.
    """
    return bool(_WITHIN_WORD.match(sign * 2)) and not source_sign.isalnum() and sign != source_sign


def _touches_before(sign: str, source_sign: str) -> bool:
    """As `_touches`, before what stands for words, where punctuation is not glued to it either: "end.https://…"."""
    return _touches(sign, source_sign) or (sign in ".,;:!?" and source_sign in " ([")


def _last_sign(output: list[Item]) -> str:
    """The character that the items end with, tags of elements aside; a space if there is none."""
    for item in reversed(output):
        if isinstance(item, str):
            if item:
                return item[-1]
        elif item.kind == "atom":
            return item.text[-1:] or " "
        elif item.kind not in ("open", "close"):
            return " "
    return " "
