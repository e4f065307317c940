"""Texts at places of a document: each is translated as a text of its own, and all other bytes of the document stay."""

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from heed.apps.documents.formats.directives import FORMAT, has_the_same, in_order
from heed.apps.documents.formats.plain_text import read_text, write_text
from heed.apps.documents.formats.plurals import has_form_for_one, plural_rule
from heed.apps.documents.text.atoms import KEPT, find_messages
from heed.apps.documents.text.items import Item, Tag, cut_at, with_read
from heed.apps.documents.text.translation import DocumentOptions, TranslationJob, items_job

_BETWEEN_FORMS = re.compile(r" ?\|(?![^{}]{0,200}\}) ?")
_RANGE = re.compile(r"[\[\]](?:-?Inf|\d{1,9}),(?:\d{1,9}|\*|\+?Inf)[\[\]]")  # of the numbers that a form is for


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a text among those of its document."""


class Edit(NamedTuple):
    """What stands in a document from `start` to `end` afterwards."""

    start: int
    end: int
    text: str


class Span(NamedTuple):
    """A stretch of a document as the markup of a tag: it is written with what has changed in it."""

    start: int
    end: int


class Edits:
    """What becomes of a document whose texts may stand within each other: inner ones are added before outer ones."""

    def __init__(self, document: str):
        self.document = document
        self._edits: list[Edit] = []  # the last one first

    def add(self, edit: Edit) -> None:
        """Adds an edit, which has been written with those within it."""
        del self._edits[self._within(Span(edit.start, edit.end))]
        insort(self._edits, edit, key=lambda edit: -edit.start)

    def _within(self, span: Span) -> slice:
        """The place of the edits in a span."""
        return slice(*(bisect_right(self._edits, -place, key=lambda edit: -edit.start) for place in reversed(span)))

    def changed(self, span: Span) -> str:
        parts, last = [], span.start
        for edit in reversed(self._edits[self._within(span)]):
            parts += [self.document[last : edit.start], edit.text]
            last = edit.end
        return "".join([*parts, self.document[last : span.end]])

    def written(self) -> str:
        return self.changed(Span(0, len(self.document)))


Key = tuple[str | int, ...]  # the keys of a text in its file, outermost first


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of a document: where it stands, what it says, and how other words are written there.

    key: of a text in a file of keys and texts. raw: as it stands there. sibling: writes another text behind it, given
    its last key and what it says; None where a text has no siblings. can_number: programs know directives with numbers.
    """

    start: int
    end: int
    items: list[Item]
    write: Callable[[list[Item]], str]
    key: Key = ()
    raw: str = ""
    sibling: Callable[[str, str], Edit] | None = None
    can_number: bool = True

    def edit(self, items: list[Item]) -> Edit:
        """The document's change that writes these items; none if they are those that stand there."""
        return Edit(self.start, self.end, self.raw if flat(items) == flat(self.items) else self.write(items))

    def put(self, items: list[Item], edits: Edits) -> None:
        """Puts these items in the place of the text, with what has changed within them."""
        if flat(items) == flat(self.items):
            edits.add(Edit(self.start, self.end, edits.changed(Span(self.start, self.end))))
            return
        whole = [
            replace(item, markup=edits.changed(item.markup)) if isinstance(item, Tag) and isinstance(item.markup, Span)
            else item
            for item in items
        ]  # fmt: skip
        edits.add(Edit(self.start, self.end, self.write(whole)))


def edited(document: str, edits: Iterable[Edit]) -> str:
    """The document with these edits, none of which overlap; those at one place in their order."""
    parts, last = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [document[last : edit.start], edit.text]
        last = edit.end
    return "".join([*parts, document[last:]])


def flat(items: list[Item]) -> list[object]:
    """The items with neighbouring texts as one, by which texts are compared."""
    steps: list[object] = []
    for item in items:
        part = item if isinstance(item, str) else item.markup
        if isinstance(part, str) and steps and isinstance(steps[-1], str):
            steps[-1] += part
        else:
            steps.append(part)
    return steps


def texts_job(texts: Sequence[Sequence[Item]], options: DocumentOptions) -> TranslationJob[list[list[Item]]]:
    """The items of each text in the other language; all sentences are asked for at once."""
    marked = [item for text in texts for item in (*text, Tag("cut", _End()))]
    translated: list[list[Item]] = []
    own: list[Item] = []
    for item in (yield from items_job(marked, options)):
        if isinstance(item, Tag) and isinstance(item.markup, _End):
            translated.append(own)
            own = []
        else:
            own.append(item)
    return translated


def read_string(string: str, kept: re.Pattern[str] | None = None) -> list[Item]:
    """The items of a plain text. kept: what stays in it, besides all atoms."""
    items = read_text(string)
    return with_read(items, kept, lambda match: Tag("atom", match[0], text=match[0])) if kept else items


def read_forms(string: str, kept: re.Pattern[str]) -> list[Item]:
    """The items of a text that may hold plural forms with bars between them, as Symfony, Laravel and Vue write them."""
    items = read_string(string, kept)
    if "|" not in string or find_messages(string):
        return items
    return cut_at(with_read(items, _RANGE, lambda match: Tag("atom", match[0])), _BETWEEN_FORMS)


def strings_job(
    strings: Sequence[str], options: DocumentOptions, *, patterns: Sequence[re.Pattern[str] | None] = ()
) -> TranslationJob[list[str]]:
    """Each string in the other language, read as plain text. patterns: of what stays in each, besides all atoms."""
    every = [*patterns, *[None] * (len(strings) - len(patterns))]
    texts = [read_string(text, kept) for text, kept in zip(strings, every, strict=True)]
    return [write_text(text) for text in (yield from texts_job(texts, options))]


def keyed_texts_job(
    texts: Sequence[Text], options: DocumentOptions, read: Callable[[bytes, str], Iterable[Text]]
) -> TranslationJob[list[Edit]]:
    """What becomes of a file of keys and texts: texts of an earlier translation stay, all others are translated.

    read: the texts of a file, given its content and what an error calls it. Directives that a program fills by
    position keep their order or get numbers; where they cannot, the text stays. Plurals get the forms of the target.
    """
    earlier = () if options.earlier is None else read(options.earlier, "the earlier file")
    known = {text.key: text.items for text in earlier if flat(text.items)}
    asked = [text for text in _as_translated(texts, options) if text.key not in known]
    # A key may stand in a file twice.
    made: dict[int, str] = {}
    for text, items in zip(asked, (yield from texts_job([text.items for text in asked], options)), strict=True):
        made[text.start] = _with_directives(text, items)
    edits: list[Edit] = []
    for text in texts:
        earlier_items = known.get(text.key)
        own = Edit(text.start, text.end, made[text.start]) if earlier_items is None else text.edit(earlier_items)
        edits.append(own)
    for text, key in _missing_forms(texts, options):
        assert text.sibling and isinstance(key[-1], str)
        earlier_items = known.get(key) or known.get(text.key)
        edits.append(text.sibling(key[-1], made[text.start] if earlier_items is None else text.write(earlier_items)))
    return edits


def _with_directives(text: Text, items: list[Item]) -> str:
    """What stands in the place of a text, given its translation."""
    words = write_text(items)
    ordered = in_order(write_text(text.items), words, FORMAT, can_number=text.can_number)
    written = text.raw if ordered is None else text.edit(items).text
    return written if ordered in (None, words) else in_order(text.raw, written, FORMAT) or text.raw


# The last key of the form of a plural: i18next's file_one, or one in what Rails and Android have for a plural.
_FORM = re.compile(r"(.*_|)(one|other)", re.DOTALL)


def _as_translated(texts: Sequence[Text], options: DocumentOptions) -> list[Text]:
    """The texts, in which a singular without a number has the words of the plural if 21 has its form too."""
    if not options.target or has_form_for_one(plural_rule(options.target).expression):
        return list(texts)
    by_key = {text.key: text for text in texts}
    results: list[Text] = []
    for text in texts:
        form = _FORM.fullmatch(str(text.key[-1])) if text.key else None
        other = by_key.get((*text.key[:-1], f"{form[1]}other")) if form and form[2] == "one" else None
        is_same = other is None or has_the_same(KEPT, text.raw, other.raw)
        results.append(text if other is None or is_same else replace(text, items=other.items, raw=other.raw))
    return results


def _missing_forms(texts: Sequence[Text], options: DocumentOptions) -> Iterator[tuple[Text, Key]]:
    """Plurals: the text for other numbers, and the key of each form that the target needs."""
    keys = {text.key for text in texts}
    for text in texts if options.target else ():
        form = _FORM.fullmatch(str(text.key[-1])) if text.key else None
        if text.sibling is None or form is None or form[2] != "other" or not text.items:
            continue
        base = form[1]
        if (*text.key[:-1], f"{base}one") in keys and not base.endswith("_ordinal_"):
            for category in plural_rule(options.target).categories:
                if (key := (*text.key[:-1], f"{base}{category}")) not in keys:
                    yield text, key
