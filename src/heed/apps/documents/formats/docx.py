"""Word's .docx: the paragraphs of text, headers, footers, notes and comments are translated; all else keeps its bytes.

A run of the commonest format of a paragraph is plain text, any other run is an element that its words take along. A
sentence ends where Word shows an end: at a paragraph's end, a line break, a tab.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from heed.apps.documents.formats import docx_elements as word
from heed.apps.documents.formats.docx_elements import (
    ALTERNATIVES,
    HYPHENS,
    Copier,
    Joint,
    Piece,
    all_pieces,
    is_word,
    pieces_of,
    string_of,
)
from heed.apps.documents.formats.docx_items import (
    Holder,
    Hyphen,
    ItemWriter,
    Level,
    Node,
    Thing,
    Tree,
    Words,
    Written,
    flat,
    in_order,
    with_ranges,
)
from heed.apps.documents.formats.docx_package import WORD, read_package
from heed.apps.documents.formats.packages import MAX_UNPACKED
from heed.apps.documents.formats.plain_text import COLUMNS
from heed.apps.documents.text.items import Item, Tag
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions, items_job

MAX_FIELDS = 8  # fields within each other; the words of deeper ones stay as they are
MAX_REFERENCE = 200  # characters of a reference or a citation that the model reads
MAX_NUMBER = 20  # characters of a field's number, such as a page's, that the model reads
_ENDS = (".", "!", "?", ",", ";", ":", ")", '"', "”")  # before the number of a note
_WORD_WITH_HYPHENS = re.compile(r"[\w-]+")


def docx_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The document in the other language. HeedError, which calls it `name`, if it is damaged, too large or hostile.

    max_text: bytes of the parts with text, which take many times as much memory.
    """
    package = read_package(content, name=name, max_xml=MAX_UNPACKED if max_text is None else max_text)
    copier = Copier(package.n_xml, name)
    texts: list[_Text] = []
    items: list[Item] = []
    changed: set[str] = set()
    # All at once, which a search translates faster than one after the other.
    for part, root in package.parts.items():
        for text in _texts(root, copier):
            changed.add(part)
            texts.append(text)
            items += [*text.items, Tag("cut", text)]
        for element, key, words in word.descriptions(root) if options.attributes else ():
            if needs_translation(words):
                changed.add(part)
                items += [words, Tag("cut", _Description(element, key))]
    own: list[Item] = []
    for item in (yield from items_job(items, options)):
        if isinstance(item, Tag) and isinstance(item.markup, _Text):
            item.markup.translated = own
            own = []
        elif isinstance(item, Tag) and isinstance(item.markup, _Description):
            item.markup.element.set(item.markup.key, "".join(map(str, own)))
            own = []
        else:
            own.append(item)
    for text in reversed(texts):  # those within others first
        text.write()
    for part in changed:
        word.unbind(package.parts[part])
        word.set_language(package.parts[part], options.language, options.target)
    return package.write(changed)


def _texts(root: Any, copier: Copier) -> Iterator["_Text"]:
    """The paragraphs of a part that have words, each followed by the texts within it, such as a field's."""
    done: set[Any] = set()
    for paragraph in list(root.iter(WORD + "p")):
        if paragraph in done or word.is_code(paragraph):
            continue
        cap, first = None, paragraph
        if (
            word.is_dropped_cap(paragraph)
            and (following := word.next_paragraph(paragraph)) is not None
            and word.is_text_first(following)
        ):
            # The words are those of the paragraph behind it, and its first letter goes back into this one.
            cap, first = paragraph, following
            done.add(first)
        joined, last = [], first
        while (
            word.is_end_deleted(last)
            and (following := word.next_paragraph(last)) is not None
            and word.text_of(following).strip()
        ):
            joined.append(following)
            last = following
        done.update(joined)
        waiting = deque([_Text(first, copier, cap=cap, joined=joined)])
        while waiting:
            text = waiting.popleft()
            if text.has_words:
                text.read()
                yield text
                waiting.extend(text.within)


class _Description(NamedTuple):
    """A picture's description: the element and its attribute."""

    element: Any
    key: str


class _Text:
    """Words that are one text: a paragraph, or what a field in it shows. Read into items, and written from them."""

    def __init__(self, container: Any, copier: Copier, *, pieces: list[Piece] | None = None, depth: int = 0,
                 cap: Any = None, joined: Sequence[Any] = ()):  # fmt: skip
        """container: the element of the text; None for `pieces` of the text around it. cap: the paragraph before it
        whose large letter is its first one. joined: the paragraphs behind it that go on with its text. depth: fields
        that it is in.
        """
        self._container, self._copier, self._depth, self._cap = container, copier, depth, cap
        self._joined = joined
        self._pieces = list(pieces_of(container)) if pieces is None else pieces
        for paragraph in joined:
            self._pieces += [(None, Joint(paragraph)), *pieces_of(paragraph)]
        words = [(run, child) for run, child in all_pieces(self._pieces) if is_word(run, child)]
        # The words of alternatives are texts within this one.
        others = ("".join(child.itertext()) for run, child in self._pieces if run is None and child.tag == ALTERNATIVES)
        self.has_words = needs_translation(" ".join([*(string_of(child) for _, child in words), *others]))
        self._with_words = word.containers_of_words(self._pieces)
        self._n_left: dict[Any, int] = {}  # elements that are still in a run, besides its properties
        self._formats: dict[Any, bytes] = {}
        weights = Counter[bytes]()
        for run, child in words:
            weights[self._format(run)] += len(string_of(child))
        self._plain = max(weights, key=lambda key: weights[key]) if weights else b""
        self._model = next((run for run, _ in words if self._format(run) == self._plain), None)
        self._hyphens: dict[str, deque[list[tuple[int, str]]]] = {}
        self.items: list[Item] = []
        self.translated: list[Item] = []
        self.within: list[_Text] = []
        self.written = Written()
        self._cap_is_joined = False  # its letter and the first ones of the text are one word

    def _format(self, run: Any) -> bytes:
        if run not in self._formats:
            self._formats[run] = word.format_of(run)
        return self._formats[run]

    def read(self) -> None:
        """Sets its items, which are taken out of the document, and the texts within it."""
        nodes = self._nodes(self._pieces, self._depth)
        self._find_hyphens(nodes)
        if self._cap is not None:
            first = next(node for node in nodes if isinstance(node, Words) and node.text)
            self._cap_is_joined = first.text[:1].isalnum()
            first.text = word.text_of(self._cap) + first.text
        writer = ItemWriter(self._format, self._plain)
        writer.add(nodes, None)
        self.items = with_ranges(writer.finish())

    # Reading

    def _nodes(self, pieces: list[Piece], depth: int) -> list[Node]:
        ends = word.ends_of_fields(pieces)
        nodes: list[Node] = []
        place = 0
        while place < len(pieces):
            run, child = pieces[place]
            if place in ends:
                separator, end = ends[place]
                nodes.append(self._field(pieces[place : end + 1], separator - place, depth))
                place = end + 1
                continue
            if isinstance(child, Joint):
                nodes.append(Thing([], joint=child))
            elif run is not None and child.tag == WORD + "t" and not is_word(run, child):
                nodes.append(Thing(self._runs([pieces[place]]), number=string_of(child) if word.is_code(run) else ""))
            elif (
                run is not None
                and child.tag == WORD + "t"
                and word.is_raised(run)
                and _is_note(string_of(child), nodes)
            ):
                nodes.append(Thing(self._runs([pieces[place]])))
            elif run is not None and child.tag == WORD + "t":
                # Runs of spaces align columns, which are texts of their own.
                for part in filter(None, COLUMNS.split(string_of(child))):
                    is_gap = COLUMNS.fullmatch(part)
                    nodes.append(Thing([self._run(run, part)], is_end=True) if is_gap else Words(run, part))
            else:
                nodes.append(self._node(run, child, depth))
            place += 1
        return nodes

    def _node(self, run: Any, child: Any, depth: int) -> Node:
        if run is not None:
            if child.tag in HYPHENS and not word.is_code(run) and not word.is_hidden(run):
                return Hyphen(run, HYPHENS[child.tag], child.tag)
            if (base := word.container_of(child)) is not None:  # ruby's
                return self._holder(self._runs([(run, child)]), list(pieces_of(base)), base, depth)
            # A part of a field that is not whole here, such as a table of contents, is an end too.
            return Thing(self._runs([(run, child)]), word.is_end(run, child) or child.tag in word.PARTS_OF_FIELDS)
        if child.tag == ALTERNATIVES and depth < MAX_FIELDS:
            for alternative in child:
                self.within.append(_Text(alternative, self._copier, depth=depth + 1))
            return Thing([child])
        if child.tag not in word.HOLDERS:
            return Thing([child], word.is_end(run, child))
        if word.is_checkbox(child):
            return Thing([child], is_end=True)  # it stands before another choice, as a list's marker does
        container = word.container_of(child)
        if container is None:
            return Thing([child])
        pieces = list(pieces_of(container))
        if child.tag == WORD + "fldSimple" and not self._is_read(code := child.get(WORD + "instr", ""), pieces):
            return self._result([child], pieces, child, depth, is_kept=word.is_citation(code))
        return self._holder([child], pieces, container, depth)

    def _holder(self, head: list[Any], pieces: list[Piece], container: Any, depth: int,
                tail: Sequence[Any] = ()) -> Node:  # fmt: skip
        """A Holder; a Thing between words if it holds none itself."""
        if any(is_word(run, child) or word.container_of(child) in self._with_words for run, child in pieces):
            holder = Holder(head, self._nodes(pieces, depth), container, list(tail))
            if any(isinstance(node, Holder) or (isinstance(node, Words) and node.text) for node in holder.content):
                return holder
            return Thing([Level.of(holder)], holder.has_end)  # its words are texts within this one
        every = list(all_pieces(pieces))
        content = [] if container is not None else self._runs(pieces)
        return Thing(
            [*head, *content, *tail], any(word.is_end(*piece) for piece in every) or word.has_part_of_field(every)
        )

    def _field(self, pieces: list[Piece], separator: int, depth: int) -> Node:
        """A complex field: its code, a separator (0: none), what it shows, its end."""
        if not separator:
            code = word.code_of(pieces)
            return Thing(self._runs(pieces), is_end=code.split()[:1] == ["FORMCHECKBOX"])
        head, shown, tail = pieces[: separator + 1], pieces[separator + 1 : -1], pieces[-1:]
        if self._is_read(code := word.code_of(head), shown) and depth < MAX_FIELDS:
            return self._holder(self._runs(head), shown, None, depth + 1, self._runs(tail))
        return self._result(self._runs(head), shown, None, depth, self._runs(tail), is_kept=word.is_citation(code))

    def _is_read(self, code: str, shown: list[Piece]) -> bool:
        """Whether what a field shows is read with the sentence around it: a link, or a short reference."""
        text = _shown_words(shown)
        return word.is_link(code) or (
            word.is_reference(code) and len(text) <= MAX_REFERENCE and needs_translation(text)
        )

    def _result(self, head: list[Any], shown: list[Piece], container: Any, depth: int,
                tail: Sequence[Any] = (), *, is_kept: bool = False) -> Thing:  # fmt: skip
        """A field. Its result is translated separately: Word computes it again, as another text or part of one.

        is_kept: it stays as it is, and the model reads it with its sentence.
        """
        text = _shown_words(shown)
        has_end = any(word.is_end(*piece) for piece in all_pieces(shown))
        is_kept = is_kept and len(text) <= MAX_REFERENCE and not has_end
        if needs_translation(text) and depth < MAX_FIELDS and not is_kept:
            self.within.append(_Text(container, self._copier, pieces=shown, depth=depth + 1))
            return Thing([*head, *([self.within[-1].written] if container is None else []), *tail], has_end)
        is_number = len(text) <= MAX_NUMBER and not has_end and not needs_translation(text)
        number = text.strip() if is_number or is_kept else ""
        return Thing([*head, *([] if container is not None else self._runs(shown)), *tail], has_end, number)

    def _runs(self, pieces: list[Piece]) -> list[Any]:
        """The elements that pieces are in; of a run that has others too, one with these."""
        elements: list[Any] = []
        for run, group in groupby(pieces, key=lambda piece: piece[0]):
            children = [child for _, child in group]
            if run is None:
                elements += children
                continue
            if run not in self._n_left:
                self._n_left[run] = sum(child.tag != WORD + "rPr" for child in run)
            if len(children) == self._n_left[run]:
                elements.append(run)
            else:
                elements.append(self._copier.run_with(run, children))
                self._n_left[run] -= len(children)
        return elements

    def _find_hyphens(self, nodes: list[Node]) -> None:
        """Remembers the words with hyphens of Word's own, so that a word that stays keeps them."""
        text: list[str] = []
        marks: deque[tuple[int, str]] = deque()
        length = 0
        for node in flat(nodes):
            if isinstance(node, Hyphen):
                marks.append((length, node.tag))
            text.append(node.text if isinstance(node, Words) else "\n" if node.is_end or node.joint else "")
            length += len(text[-1])
        if not marks:
            return
        for match in _WORD_WITH_HYPHENS.finditer("".join(text)):
            own = []
            while marks and marks[0][0] < match.end():
                place, tag = marks.popleft()
                own += [(place - match.start(), tag)] if place >= match.start() else []
            if own:
                self._hyphens.setdefault(match[0].casefold(), deque()).append(own)

    # Writing

    def write(self) -> None:
        """Puts the translated items in the place of its content."""
        tree = Tree(self._model, self._run)
        for item in in_order(self.translated):
            tree.add(item)
        paragraphs = tree.finish(self._copier)
        self.written.elements = paragraphs[None]
        if self._container is not None:
            word.set_children(self._container, self.written.elements)
        for paragraph in self._joined:
            word.set_children(paragraph, paragraphs.get(paragraph, []))
        if self._cap is not None:
            self._give_back_cap()

    def _run(self, model: Any, text: str) -> Any:
        """A run in the format of another with this text."""
        last, children = 0, []
        for match in _WORD_WITH_HYPHENS.finditer(text) if self._hyphens else ():
            own = self._hyphens.get(match[0].casefold())
            for place, tag in own.popleft() if own else ():
                place += match.start()
                children += [word.text_element(model, text[last:place]), model.makeelement(tag)]
                last = place + len(HYPHENS[tag])
        children.append(word.text_element(model, text[last:]))
        return self._copier.run_with(model, [child for child in children if child.tag in HYPHENS or child.text])

    def _give_back_cap(self) -> None:
        """The first letter goes into the paragraph of the large one."""
        before = word.text_of(self._cap).strip()
        # As many letters as there were, or a word if there was one; with the punctuation before them.
        n_letters = str(len(before)) if len(before) == 1 or self._cap_is_joined else ""
        letters = re.compile(rf"\W*+\w{{1,{n_letters}}}")
        taken = ""
        for element in self._container.iter(WORD + "t"):
            text = string_of(element)
            match = letters.match(text)
            taken += match[0] if match else text
            element.text = text[match.end() :] if match else ""
            if match:
                break
        places = [child for run, child in all_pieces(pieces_of(self._cap)) if is_word(run, child)]
        for i, element in enumerate(places):
            element.text = taken.strip() if i == 0 else ""


def _is_note(text: str, before: list[Node]) -> bool:
    """Whether raised signs behind these are the number of a note, not an exponent."""
    last = before[-1] if before else None
    number = text.strip("[]()")
    return (
        isinstance(last, Words) and last.text[-1:] in _ENDS and len(number) < 5 and (number.isalnum() or number == "*")
    )


def _shown_words(shown: list[Piece]) -> str:
    return "".join(string_of(child) for run, child in all_pieces(shown) if is_word(run, child))
