"""The words and tags of a translation in their final order → its items, with white space and line ends between them."""

from heed.apps.documents.items import Item, Tag, item_of
from heed.apps.documents.tagged_text import Place
from heed.apps.documents.target_words import WITHIN_WORD, TargetWord


def write_items(
    order: list[Tag | int | Place], tokens: list[TargetWord], texts: tuple[str, str], breaks: dict[int, Place]
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
                is_behind = tag.offset > line_end.offset if isinstance(tag, Place) else tag.kind == "open"
                if is_behind and not _ends_paragraph(tag):
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
    before: TargetWord | None = None  # what stands for words and comes directly before
    for entry in order:
        if not isinstance(entry, int):
            if isinstance(entry, Place) and entry.tag.text:
                before = TargetWord(last, last, (entry.offset, entry.offset))
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


def _ends_paragraph(tag: Tag | Place) -> bool:
    """Whether it would end a paragraph of Markdown if a line began with it, as a comment does."""
    return isinstance(tag, Place) and str(tag.tag.markup).startswith(("<!", "<?"))


def _touches(sign: str, source_sign: str) -> bool:
    """Whether a thing would be glued to a word: `sign`, next to it, is a word's, and `source_sign` was not.

    Scripts without spaces between words touch anything, and a sign what it touched in the source.
    """
    return bool(WITHIN_WORD.match(sign * 2)) and not source_sign.isalnum() and sign != source_sign


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
