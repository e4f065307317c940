"""Items → items with translated texts: sentences are found, translated in one call, and their tags put in place.

What translates them is not known here. A generator yields the sentences and is sent their translations, so that it may
wait for them in any way: `run_job` calls a function, a server lets its event loop go on.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeVar

from heed.apps.documents.text.atoms import CONTROL, kept_patterns
from heed.apps.documents.text.blocks import text_of_block
from heed.apps.documents.text.items import EVERY_LINE, Cases, Item, Tag, Verbatim, as_cut, cut_at, item_of, match_tags
from heed.apps.documents.text.placement import place_tags
from heed.apps.documents.text.sentences import WHITE_SPACE, Span, Splitter, splitter
from heed.apps.documents.text.tagged_text import Place, TaggedText, has_words
from heed.apps.documents.text.terms import Terms
from heed.text.alignment import Link, Translated
from heed.text.line_rules import is_blank

Translate = Callable[[Sequence[str]], Sequence[Translated]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """How a document is translated, whatever its format.

    language: the source's code, whose rules find the sentences. target: what a document's own mark of its language
    becomes where that names the source. keep: expressions of what stays, as for `kept_patterns`. terms: words, and what
    stands for them in the translation, as for `Terms`. attributes: whether words in the markup, such as a picture's
    description, are translated. cues: whether a sentence over several subtitles is one, or each is translated alone.
    earlier: an earlier translation of a file of keys and texts, whose texts stay.
    columns: of a table, by name or number from 1 on; none for all.
    """

    language: str
    target: str = ""
    keep: tuple[str, ...] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    attributes: bool = True
    cues: Literal["joined", "alone"] = "joined"
    earlier: bytes | None = None
    columns: tuple[str, ...] = ()


class Sentence(NamedTuple):
    """A text to translate, on one line. has_tags: whether its alignment matters; without tags nobody looks at it."""

    text: str
    has_tags: bool


# Yields sentences, is sent a translation of each, and returns the result, such as a document.
TranslationJob = Generator[list[Sentence], Sequence[Translated], T]
DocumentJob = TranslationJob[bytes]  # of a whole file

# The model reads a space, and nothing where a word may be divided. Few corpora have no-break spaces, and to a model
# that has seen none a word behind one is another word.
_UNBROKEN = "\xa0\u2007\u202f"
_RUN = re.compile(f"[{WHITE_SPACE}{_UNBROKEN}\xad]+")
_OTHER_SPACES = re.compile(f"[{WHITE_SPACE[1:]}{_UNBROKEN}\xad]|^ |  | $")  # than one between two words
_WORD = re.compile(r"\w++|[^\w\s]")
# An element that begins or ends within a sentence joins the sentences that it touches, up to this many characters.
MAX_JOINED = 2_000


def run_job(job: TranslationJob[T], translate: Translate) -> T:
    """The result of a job, whose sentences `translate` translates."""
    try:
        sentences = next(job)
        while True:
            sentences = job.send(translate([sentence.text for sentence in sentences]))
    except StopIteration as stop:
        result: T = stop.value
        return result


@dataclass(frozen=True, eq=False)
class Question:
    """What the model is asked for a sentence: its words on one line, with single spaces and no soft hyphens."""

    sentence: TaggedText
    text: str

    @classmethod
    def of(cls, sentence: TaggedText) -> "Question":
        text = sentence.text
        if _OTHER_SPACES.search(text):
            text = "".join(piece for piece, _ in _on_one_line(text))
        return cls(sentence, text)

    @cached_property
    def _words(self) -> tuple[list[int], list[int]]:
        """Where its words begin in the line and in the sentence; looked at if there are tags."""
        starts, original_starts, length = [], [], 0
        for piece, place in _on_one_line(self.sentence.text):
            if place >= 0:
                starts.append(length)
                original_starts.append(place)
            length += len(piece)
        return starts, original_starts

    @property
    def has_tags(self) -> bool:
        """Whether its alignment matters."""
        return any(place.tag.kind != "spelling" for place in self.sentence.tags)

    def nested(self) -> "Iterator[Question]":
        """The questions of the messages in it."""
        for place in self.sentence.tags:
            if isinstance(place.tag.markup, Verbatim):
                for item in place.tag.markup.items:
                    if isinstance(item, Question):
                        yield item
                        yield from item.nested()

    def without_texts(self) -> "Question":
        """The question without code and addresses, for which things between words stand."""
        return Question.of(_without_texts(self.sentence))

    def answer(self, result: Translated) -> list[Item] | None:
        """The translated sentence with its tags; as it was for its own text or none. None as for `place_tags`."""
        if result.text == self.text or is_blank(result.text):
            return list(self.sentence.items())
        # A translation is one line without spaces around it, whatever the model writes.
        text = result.text.strip()
        links, cut = result.alignment, len(result.text) - len(result.text.lstrip())
        if links is not None:
            links = [
                Link(max(start - cut, 0), end - cut, self._original(first), self._original(last - 1) + 1)
                for start, end, first, last in links
                if 0 <= first < last <= len(self.text) and start < end and cut < end <= cut + len(text)
            ]
        made = _with_unbroken_spaces(Translated(text.translate(LINE_ENDS_AS_SPACES), links), self.sentence.text)
        items = place_tags(self.sentence, made)
        return None if items is None else [*items, *_lost_line_ends(self.sentence, items)]

    def _original(self, place: int) -> int:
        """Where a character of the line is in the sentence."""
        starts, original_starts = self._words
        word = bisect_right(starts, place) - 1
        return original_starts[word] + place - starts[word]


def _on_one_line(text: str) -> Iterator[tuple[str, int]]:
    """The words of a text, each with the place where it begins, and the spaces between them, which have −1."""
    last, gap, is_first = 0, "", True
    for run in [*_RUN.finditer(text), None]:
        if word := text[last : run.start() if run else None]:
            if gap:
                yield gap, -1
            yield word, last
            gap, is_first = "", False
        if run:
            last = run.end()
            gap = "" if is_first or not run[0].strip("\xad") else " "


def _with_unbroken_spaces(result: Translated, source: str) -> Translated:
    """The translation with the source's no-break spaces: between the same two words, or beside the same number."""
    if all(space not in source for space in _UNBROKEN):
        return result
    gaps: dict[tuple[str, str], deque[int]] = {}
    for place, space, keys in _spaces(result.text):
        for key in keys if space == " " else ():
            gaps.setdefault(key, deque()).append(place)
    spaces: dict[int, str] = {}
    for _, space, keys in _spaces(source):
        if free := next((gaps[key] for key in keys if gaps.get(key)), None):
            spaces.setdefault(free.popleft(), space)

    # Several may stand in the place of one, so that what is behind them moves.
    places = sorted(spaces)
    moves = list(accumulate((len(spaces[place]) - 1 for place in places), initial=0))
    bounds = [0, *(end for place in places for end in (place, place + 1)), len(result.text)]
    parts = [result.text[start:end] for start, end in pairwise(bounds)]
    parts[1::2] = [spaces[place] for place in places]
    links = [
        Link(start + moves[bisect_left(places, start)], end + moves[bisect_left(places, end)], first, last)
        for start, end, first, last in result.alignment or ()
    ]
    return Translated("".join(parts), None if result.alignment is None else links)


def _spaces(text: str) -> Iterator[tuple[int, str, list[tuple[str, str]]]]:
    """White space between two words: where it begins, and its keys: the words, or a number and a side."""
    for a, b in pairwise(_WORD.finditer(text)):
        if space := text[a.end() : b.start()]:
            before, after = a[0].casefold(), b[0].casefold()
            numbers = [(before, "")] * before.isdecimal() + [("", after)] * after.isdecimal()
            yield a.end(), space, [(before, after), *numbers]


Answers = Mapping[Question, Sequence[Item]]


def _lost_line_ends(sentence: TaggedText, items: list[Item]) -> list[Tag]:
    """The line ends that the translation has no words for, in a format that must have as many as before."""
    written = Counter(item.markup for item in items if isinstance(item, Tag) and item.kind == "break")
    lost: list[Tag] = []
    for place in sentence.tags:
        if place.tag.kind == "break" and place.tag.name == EVERY_LINE:
            if written[place.tag.markup]:
                written[place.tag.markup] -= 1
            else:
                lost.append(replace(place.tag, hyphen=None))
    return lost


class Draft:
    """Items as questions to the model, and what stands between them.

    nested: questions for the words of messages that stand in a sentence, so that its answer holds theirs.
    """

    def __init__(self, items: Sequence[Item], *, split: Splitter, keep: tuple[str, ...] = ()):
        self.parts = list(_Cutter(split, keep).parts(match_tags(cut_at(items, CONTROL))))
        self.questions = [part for part in self.parts if isinstance(part, Question)]
        self.nested = [inner for question in self.questions for inner in question.nested()]

    def items(self, answers: Answers) -> list[Item]:
        """The items with the answers in the places of the questions; a question without one as it was."""
        items: list[Item] = []
        for part in self.parts:
            ends_line = bool(items) and isinstance(items[-1], Tag) and items[-1].kind == "break"
            if not isinstance(part, str) or part.strip(WHITE_SPACE) or not ends_line:
                items += expanded([part], answers)  # no space begins a line that a sentence too short has ended
        return _merge_texts(items)


class Unanswered:
    """Questions that are asked until each is answered: if its code or addresses are lost, once more without them.

    asked: what is to be asked next in the place of each question that has no answer.
    """

    def __init__(self, questions: Iterable[Question]):
        self.answers: dict[Question, list[Item]] = {}
        self.asked = {question: question for question in questions}

    def take(self, results: Iterable[Translated]) -> None:
        """Takes the translations of what is asked."""
        lost: dict[Question, Question] = {}
        for (whole, question), result in zip(self.asked.items(), results, strict=True):
            if (answer := question.answer(result)) is not None:
                self.answers[whole] = answer
            elif has_words((bare := question.without_texts()).sentence):
                lost[whole] = bare
        self.asked = lost


def expanded(parts: "Iterable[Item | Question]", answers: Answers) -> Iterator[Item]:
    """The parts with the answers to the questions among them and within their tags; those without one as they were."""
    for part in parts:
        if isinstance(part, Question):
            yield from expanded(answers.get(part) or part.sentence.items(), answers)
        elif isinstance(part, Tag) and isinstance(part.markup, Verbatim):
            yield from expanded(part.markup.items, answers)
        else:
            yield part if isinstance(part, str) else item_of(part)


def items_job(items: Sequence[Item], options: DocumentOptions) -> TranslationJob[list[Item]]:
    """The items in the other language. Asks for all sentences at once.

    It asks again for sentences whose inline code or addresses did not survive: without these.
    """
    if options.terms:
        items = Terms(options.terms).mark(items)
    draft = Draft(items, split=splitter(options.language), keep=options.keep)
    unanswered = Unanswered((*draft.questions, *draft.nested))
    while unanswered.asked:
        unanswered.take((yield [Sentence(one.text, one.has_tags) for one in unanswered.asked.values()]))
    return draft.items(unanswered.answers)


def _merge_texts(items: Iterable[Item]) -> list[Item]:
    """The items with neighbouring texts as one."""
    merged: list[Item] = []
    texts: list[str] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            continue
        merged += ["".join(texts), item] if texts else [item]
        texts = []
    return [*merged, "".join(texts)] if texts else merged


LINE_ENDS_AS_SPACES = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def _without_texts(sentence: TaggedText) -> TaggedText:
    """The sentence whose code and addresses are things between words, no words themselves."""
    texts, tags, last, n_cut = [], [], 0, 0
    for place in sentence.tags:
        bare = bool(place.tag.text) and place.tag.kind != "spelling"
        tags.append(replace(place, offset=place.offset - n_cut, bare=bare))
        if bare:
            texts.append(sentence.text[last : place.offset])
            last = place.offset + place.length
            n_cut += place.length
    return TaggedText("".join(texts) + sentence.text[last:], tags)


class _Cutter:
    """Cuts items into sentences. in_cases: they are words of an ICU message."""

    def __init__(self, split: Splitter, keep: tuple[str, ...], *, in_cases: bool = False):
        self._split, self._keep = split, keep
        self._kept = kept_patterns(keep, in_cases=in_cases)

    def parts(self, items: Sequence[Item]) -> "Iterator[Item | Question]":
        """Cuts, tags and white space between sentences as they are; sentences with their tags."""
        block: list[Item] = []
        for item in items:
            if isinstance(item, Tag) and item.kind == "cut":
                yield from self._sentences(block)
                yield item
                block = []
            else:
                block.append(item)
        yield from self._sentences(block)

    def _sentences(self, block: list[Item]) -> "Iterator[Item | Question]":
        # Tags between words that need no translation stay where they are.
        whole = self._with_cut_cases(text_of_block(block, self._kept))
        if not has_words(whole):
            yield from _flat(whole.items())
            return

        # Where tags had to move beside an atom, the block is one sentence, which is as it was if nothing changes.
        if whole.source and len(whole.text) <= MAX_JOINED:
            yield Question.of(whole)
            return

        # Elements too long to join sentences become cuts; what is between them is split again.
        spans, too_long = _join_sentences(self._split(whole.text), whole)
        if too_long:
            cut = {whole.tags[place].item for place in too_long}
            opened = [as_cut(item) if i in cut and isinstance(item, Tag) else item for i, item in enumerate(block)]
            yield from self.parts(opened)
            return

        # Every tag before place k is written; the others belong to this sentence or to later ones.
        tags, k, last = whole.tags, 0, 0
        for n, (start, end) in enumerate(spans):
            next_start = spans[n + 1][0] if n + 1 < len(spans) else len(whole.text)

            # What stands before the sentence, then what belongs to it, by its place and its partner's.
            first = k
            while first < len(tags) and tags[first].offset <= start and not _begins_within(whole, first, start, end):
                first += 1
            after = max(first, bisect_left(tags, end, key=lambda place: place.offset))
            begun = range(first, after)
            for place in range(after, len(tags)):
                if tags[place].offset > next_start:
                    break
                if tags[place].partner in begun:
                    after = place + 1
            if first < after:  # white space within an element stays there if nothing changes
                start, end = min(start, tags[first].offset), max(end, tags[after - 1].offset)
            yield from _flat(whole.items((last, start), tags[k:first]))
            inside = [replace(place, offset=place.offset - start) for place in tags[first:after]]
            sentence = TaggedText(whole.text[start:end], inside)
            yield from [Question.of(sentence)] if has_words(sentence) else _flat(sentence.items())
            k, last = after, end
        yield from _flat(whole.items((last, len(whole.text)), tags[k:]))

    def _with_cut_cases(self, whole: TaggedText) -> TaggedText:
        """The text, where the words of messages' cases are questions."""
        if not any(isinstance(place.tag.markup, Cases) for place in whole.tags):
            return whole
        cutter = _Cutter(self._split, self._keep, in_cases=True)
        tags: list[Place] = []
        for place in whole.tags:
            if isinstance(place.tag.markup, Cases):
                made: list[Item | Question] = []
                for part in place.tag.markup.items:
                    made += cutter.parts(match_tags(part)) if isinstance(part, list) else [part]
                place = replace(place, tag=replace(place.tag, markup=Verbatim(made)))
            tags.append(place)
        return replace(whole, tags=tags)


def _flat(items: Iterable[Item]) -> "Iterator[Item | Question]":
    """The items, with those of messages and divided addresses in their places."""
    for item in items:
        if isinstance(item, Tag) and isinstance(item.markup, Verbatim):
            yield from item.markup.items
        else:
            yield item


def _begins_within(whole: TaggedText, place: int, start: int, end: int) -> bool:
    """Whether a tag before a sentence belongs to it: it marks some of its words and not all, or stands for words."""
    tag = whole.tags[place]
    if tag.tag.kind == "open":
        return start < whole.tags[tag.partner].offset < end
    return tag.offset == start and bool(tag.tag.text)


def _join_sentences(spans: list[Span], whole: TaggedText) -> tuple[list[Span], list[int]]:
    """Sentences joined where an element, or what stands for words, begins in one and ends in another.

    The tags of an element that would join too many characters are listed instead.
    """
    # Each element marks a stretch of sentences; those that overlap become one in a single pass afterwards.
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    joins = [0] * len(spans)  # +1 where a stretch of sentences to join begins, −1 where it ends
    too_long: list[int] = []
    for number, place in enumerate(whole.tags):
        if place.tag.kind == "open":
            start, end = place.offset, whole.tags[place.partner].offset
        elif place.tag.text:
            start, end = place.offset, place.offset + place.length
        else:
            continue
        first, last = bisect_right(ends, start), bisect_left(starts, end) - 1  # the sentences that it touches
        if first >= last:
            continue
        if place.tag.kind == "open" and start <= starts[first] and ends[last] <= end:
            continue
        # Tags that are text are close to each other.
        if place.tag.kind == "open" and place.item >= 0 and ends[last] - starts[first] > MAX_JOINED:
            too_long += [number, place.partner]
            continue
        joins[first] += 1
        joins[last] -= 1

    # `depth` is how many stretches go on behind the sentence.
    joined: list[Span] = []
    depth = 0
    for (start, end), change in zip(spans, joins, strict=True):
        if depth:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
        depth += change
    return joined, too_long
