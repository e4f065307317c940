"""Sentences over several subtitles: joined for translation, and divided again by the subtitles' shares of the words.

A sentence goes on if its subtitle ends without a full stop or the like, and nobody else speaks in the next one. If the
translation cannot be divided, as with fewer words than subtitles, each of these is translated alone.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from heed.apps.documents.formats.subtitles import LINE_CODES, TIMES, TIMES_BEFORE, stamp_of
from heed.apps.documents.formats.texts import texts_job
from heed.apps.documents.text.items import CUE, Item, Tag
from heed.apps.documents.text.translation import DocumentOptions, TranslationJob

MAX_CUES = 8  # of a sentence
MAX_PAUSE = 3.0  # seconds between two subtitles of a sentence
_LINE_END = re.compile(r"\r\n|\n|\r")
_CLOCK = re.compile(r"(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?")
_ENDS = re.compile(r"[.!?…。！？؟।♪♫#][\"'”’»«›)\]}]*(?=\s|$)")
_ENDS_CUE = re.compile(r"[.!?…。！？؟।:;♪♫#)\]][\"'”’»«›)\]}]*\s*$")
_COMMA = re.compile(r"[,、，،]\s*$")
_OPENING = "\"'“„‘«‹¿¡… ."


class _Between(str):
    """The markup between two subtitles of a sentence; items: what it stands for."""

    items: list[Item]


class _Run(NamedTuple):
    """Neighbouring cuts, or the words and tags between them."""

    is_cut: bool
    items: list[Item]

    @property
    def text(self) -> str:
        if self.is_cut:
            return "".join(str(item if isinstance(item, str) else item.markup) for item in self.items)
        return "".join(
            item if isinstance(item, str) else " " if item.kind == "break" else item.text for item in self.items
        )


def cues_job(items: list[Item], options: DocumentOptions) -> TranslationJob[list[Item]]:
    """Returns `items_job` for subtitles."""
    parts = list(_parts(list(_runs(items))))
    translated = yield from texts_job([[*joined] for _, joined in parts], options)
    undivided = [
        i for i, (cues, joined) in enumerate(parts) if cues is not joined and not _is_divided(cues, translated[i])
    ]
    for i, alone in zip(undivided, (yield from texts_job([parts[i][0] for i in undivided], options)), strict=True):
        translated[i] = alone
    return [item for own in translated for item in _restored(own)]


def _parts(runs: list[_Run]) -> Iterator[tuple[list[Item], list[Item]]]:
    """Subtitles of one sentence, alone and joined; and the items between these, twice."""
    joined = _joined(runs)
    between: list[Item] = []
    place = 0
    while place < len(runs):
        stop = place + 1
        while stop in joined:
            stop += 2
        if stop > place + 1:
            yield between, between
            yield [item for run in runs[place:stop] for item in run.items], _join(runs[place:stop])
            between = []
        else:
            between += runs[place].items
        place = stop
    yield between, between


def _runs(items: Iterable[Item]) -> Iterator[_Run]:
    run = _Run(True, [])
    for item in items:
        if (isinstance(item, Tag) and item.kind == "cut") != run.is_cut:
            yield run
            run = _Run(not run.is_cut, [])
        run.items.append(item)
    yield run


def _joined(runs: list[_Run]) -> set[int]:
    """The places of the cuts within a sentence: those since its beginning, once its end is found."""
    joined: set[int] = set()
    open_ones: list[int] = []
    for place in range(1, len(runs), 2):
        text = runs[place].text
        if _ENDS.search(text):
            joined.update(open_ones if len(open_ones) < MAX_CUES else ())
            open_ones = []
        if place + 2 < len(runs) and _goes_on(runs[place - 1 : place + 3], text):
            open_ones.append(place + 1)
        else:
            open_ones = []
    return joined


def _goes_on(runs: list[_Run], text: str) -> bool:
    """Whether the words of the second run go on in the fourth: the others are what stands before them."""
    times, words, between, after = runs
    first = after.text.lstrip(_OPENING)[:1]
    if not first.isalnum() or not _has_words(words) or _ENDS_CUE.search(text):
        return False
    # Names and numbers go on too, but not behind a title in capitals; where there are no capitals, only a comma tells.
    continues = (
        first.islower()
        or _COMMA.search(text)
        or ((not first.isalpha() or first.isupper()) and any(map(str.islower, text)))
    )
    if not continues or not all(_is_balanced(run.items) for run in (words, after)):
        return False
    if any(stamp_of(item) for item in (*words.items, *after.items)):  # a time in one subtitle is none in another
        return False
    return _is_next(between.text) and _pause(times.text, between.text) <= MAX_PAUSE


def _is_next(markup: str) -> bool:
    """Whether nothing but a subtitle's number, its times and codes stand here, not a note or another speaker's dash."""
    lines = _LINE_END.split(markup)
    times = [i for i, line in enumerate(lines) if TIMES.fullmatch(line) or TIMES_BEFORE.match(line)]
    if len(times) != 1:
        return False
    before = TIMES_BEFORE.match(lines[times[0]])
    codes = lines[times[0]][before.end() :] if before else "".join(lines[times[0] + 1 :])
    return not any(line.strip() for line in lines[: max(0, times[0] - 1)]) and LINE_CODES.fullmatch(codes) is not None


def _pause(before: str, between: str) -> float:
    """The seconds from the end of one subtitle to the beginning of the next; 0 if their times are frames."""
    ended, begun = ([*_CLOCK.finditer(markup)][-2:] for markup in (before, between))
    return _seconds(begun[0]) - _seconds(ended[1]) if len(ended) == len(begun) == 2 else 0.0


def _seconds(clock: re.Match[str]) -> float:
    hours, minutes, seconds, fraction = clock.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes) + float(f"{seconds}.{fraction or 0}")


def _join(runs: list[_Run]) -> list[Item]:
    """Subtitles of one sentence, with a break for the markup between two of them.

    An element around all words of each, such as <i>, is one around all.
    """
    items = [*runs[0].items]
    are_within = (
        _element_around(runs[0].items) is not None and len({_element_around(run.items) for run in runs[::2]}) == 1
    )
    for between, after in zip(runs[1::2], runs[2::2], strict=True):
        within, own = [*between.items], [*after.items]
        if are_within:
            within, own = [items.pop(), *within, own[0]], own[1:]
        markup = _Between("".join(str(item if isinstance(item, str) else item.markup) for item in within))
        markup.items = within
        items += [Tag("break", markup, CUE), *own]
    return items


def _element_around(items: list[Item]) -> str | None:
    """The opening tag of an element around all of the items, if there is one."""
    opening = items[0]
    is_one = isinstance(opening, Tag) and opening.kind == "open" and _is_balanced(items) and _is_balanced(items[1:-1])
    return opening.markup if isinstance(opening, Tag) and is_one else None


def _is_balanced(items: Iterable[Item]) -> bool:
    opened: list[str] = []
    for item in items:
        if isinstance(item, Tag) and item.kind == "open":
            opened.append(item.name)
        elif isinstance(item, Tag) and item.kind == "close" and (not opened or opened.pop() != item.name):
            return False
    return not opened


def _has_words(run: _Run) -> bool:
    return any(map(str.isalnum, run.text))


def _restored(items: list[Item]) -> list[Item]:
    """The items with what stood between the subtitles."""
    parts = (
        item.markup.items if isinstance(item, Tag) and isinstance(item.markup, _Between) else [item] for item in items
    )
    return [item for part in parts for item in part]


def _is_divided(cues: list[Item], items: list[Item]) -> bool:
    """Whether each subtitle has words, its elements begin and end in it, and all are in their order."""
    before, after = ([run for run in _runs(part)][1:] for part in (cues, _restored(items)))
    if [run.text for run in before if run.is_cut] != [run.text for run in after if run.is_cut]:
        return False
    return all(run.is_cut or (_has_words(run) and _is_balanced(run.items)) for run in after)
