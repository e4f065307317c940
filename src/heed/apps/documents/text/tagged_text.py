"""A sentence of a document: its text, and the tags that stand in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heed.apps.documents.text.items import Item, Tag, item_of
from heed.apps.documents.text.sentences import Span


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
    """A text and the tags in it, in order. source: the items that it comes from if their tags stood elsewhere."""

    text: str
    tags: list[Place]
    source: tuple[Item, ...] = ()

    def items(self, span: Span | None = None, tags: Sequence[Place] | None = None) -> Iterator[Item]:
        """A span of the text with these tags, as they stood in the document."""
        if span is None and tags is None and self.source:
            yield from self.source
            return
        last, end = span or (0, len(self.text))
        for place in self.tags if tags is None else tags:
            if place.offset > last:
                yield self.text[last : place.offset]
            yield item_of(place.tag)
            last = max(last, place.offset + place.length)
        if end > last:
            yield self.text[last:end]


def has_words(tagged: TaggedText) -> bool:
    """Whether there is a letter outside of what stays as it is; numbers and punctuation need no translation."""
    last = 0
    for place in tagged.tags:
        if place.tag.kind == "atom":
            if any(map(str.isalpha, tagged.text[last : place.offset])):
                return True
            last = place.offset + place.length
    return any(map(str.isalpha, tagged.text[last:]))


@dataclass(eq=False)
class Element:
    """An element, or a thing between words if `close` is None, with all that it contains."""

    open: Place
    close: Place | None = None
    parts: list["Element"] = field(default_factory=list)
    has_words: bool = False
