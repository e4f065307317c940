"""Elements that an end within them divides: closed before it and opened again behind it, joined if that is needless.

The end of a sentence, such as a line break, may stand within bold words or a link, which then belong to two sentences.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.apps.documents.text.items import Item, Tag, match_tags

IsEnd = Callable[[Tag], bool]


@dataclass(eq=False)
class Half:
    """What the two tags have in common that close and open an element around an end: the markup of both."""

    close: Any
    open: Any


def divided(items: Sequence[Item], is_end: IsEnd, half_of: Callable[[Tag], Half]) -> list[Item]:
    """The items, with the elements around each end closed before it and opened again behind it.

    half_of: an element's tags to close and to open it again, given its opening tag.
    """
    if not any(isinstance(item, Tag) and is_end(item) for item in items):
        return list(items)
    as_atoms = [replace(item, kind="atom") if isinstance(item, Tag) and is_end(item) else item for item in items]
    whole: list[Item] = []
    opened: list[Tag] = []
    for item, matched in zip(items, match_tags(as_atoms), strict=True):
        if isinstance(item, Tag) and is_end(item):
            halves = [(tag.name, half_of(tag)) for tag in opened]
            whole += [Tag("close", half.close, name, half=half) for name, half in reversed(halves)]
            whole.append(item)
            whole += [Tag("open", half.open, name, half=half) for name, half in halves]
            continue
        if isinstance(matched, Tag) and matched.kind == "open":
            opened.append(matched)
        elif isinstance(matched, Tag) and matched.kind == "close":
            opened.pop()
        elif isinstance(matched, Tag) and matched.kind == "cut":
            opened.clear()
        whole.append(item)
    return whole


def rejoined(items: Sequence[Item], is_end: IsEnd) -> list[Item]:
    """The items without the tags of `divided` that are needless, and without halves whose words all moved away."""
    return _without_empty_halves(_without_needless_halves(items, is_end))


def _without_needless_halves(items: Sequence[Item], is_end: IsEnd) -> list[Item]:
    """The items without the tags that close and open an element with nothing but white space and ends between them."""
    kept: list[Item] = []
    run: list[Item] = []

    def end_run() -> None:
        tags = Counter(item.half for item in run if isinstance(item, Tag) and item.half)
        kept.extend(item for item in run if isinstance(item, str) or tags[item.half] < 2)
        run.clear()

    for item in items:
        if not item.strip() if isinstance(item, str) else item.half or is_end(item):
            run.append(item)
        else:
            end_run()
            kept.append(item)
    end_run()
    return kept


def _without_empty_halves(items: Sequence[Item]) -> list[Item]:
    """The items without the half of an element, before or behind an end, whose words all moved to the other side."""
    kept: list[Item] = []
    first_tags: dict[Half, Tag] = {}  # the tag that opened the half before, which is dropped
    for item in items:
        if isinstance(item, Tag) and item.kind == "open" and item.half in first_tags:
            item = first_tags.pop(item.half)
        elif isinstance(item, Tag) and item.kind == "close":
            is_spaced = bool(kept) and isinstance(kept[-1], str) and not kept[-1].strip()
            at = len(kept) - 1 - is_spaced
            before = kept[at] if at >= 0 else ""
            if isinstance(before, Tag) and before.kind == "open" and (item.half or before.half):
                del kept[at]
                if item.half:
                    first_tags[item.half] = before
                continue
        kept.append(item)
    return kept
