"""Treebanks on disk → lines of words and of symbols, which the rest of Heed trains on like any parallel text."""

import os
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from heed.config import shown
from heed.data.corpora.download import Corpora
from heed.data.mix import Tests
from heed.data.reading.text_files import TextFiles
from heed.errors import HeedError
from heed.parsing.lexicon import Lexicon
from heed.parsing.trees import ROOT, LinearisationSettings, Tree, linearise, read_trees, sentence
from heed.runtime.files import remove_unfinished, whole_file

EXCHANGED = 0.15  # probability that a constituent outside exchanged ones is exchanged
LEXICON = "lexicon.json"
SHOWN_FAULTS = 10  # of the trees of a set that cannot be used
SECTIONS = re.compile(r"(\d\d)(?:-(\d\d))?")
TREES = re.compile(r"([^.].*\.mrg)(\.gz|)", re.IGNORECASE)  # a section's files; hidden ones are not


class ParsingSettings(LinearisationSettings):
    """The treebank of a parser. A list names files (globs) or sections in the LDC's layout: 02-21 is wsj/02 to 21."""

    treebank: str = Field(min_length=1, description="folder of the trees; also searched for in --mirror and --dir")
    train: list[str] = Field(min_length=1, description="trees to learn from")
    dev: list[str] = Field(min_length=1, description="trees to validate by")
    tests: Tests = Field(default_factory=dict, description="name = trees to score")
    fragments: int = Field(
        default=0, ge=0, le=10_000, description="also learn from constituents of 2 to this many words, as sentences"
    )
    substituted: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="also learn from this many variants of each gold tree, in which constituents are replaced by "
        "others with the same label",
    )
    parsed: list[str] = Field(
        default_factory=list,
        description="also learn from these trees, which a parser wrote (heed parse --min-confidence)",
    )
    gold_weight: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="number of times each gold tree is repeated if there are substituted or parsed ones",
    )

    rare_words: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="replace a word that occurs fewer times in the gold trees with its class: capitals, digits, ending",
    )

    def linearisation(self) -> dict[str, Any]:
        """The settings that a trained parser needs, besides its lexicon: how trees are sequences of symbols."""
        return self.model_dump(include=set(LinearisationSettings.model_fields))


def treebank_folder(settings: ParsingSettings, corpora: Corpora) -> Path:
    """The folder that holds the trees. HeedError lists the places that were searched."""
    places = [Path(place) / settings.treebank for place in (corpora.mirror, corpora.folder, ".") if place is not None]
    for place in places:  # an absolute path is the same in each of them
        if place.is_dir():
            return place
    tried = ", ".join(dict.fromkeys(map(str, places)))
    raise HeedError(
        f"treebank {settings.treebank}: no folder {tried}; name the folder that holds it with --mirror, or itself "
        "as parsing.treebank."
    )


def files_of(folder: Path, entries: Sequence[str]) -> list[Path]:
    """The files of these sections and globs, in order, each once.

    HeedError names an entry without files, and a section that exists twice.
    """
    matches: list[Path] = []
    for entry in entries:
        # Sections of the Penn Treebank, as 02-21.
        if match := SECTIONS.fullmatch(entry):
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise HeedError(f"sections {entry}: the range runs backwards.")
            matches += _section_files(folder, [f"{number:02d}" for number in range(first, last + 1)])
            continue
        if Path(entry).is_absolute() and Path(entry).is_file():  # also if its name looks like a pattern
            matches.append(Path(entry))
            continue
        # Any other entry is a glob, below the folder or absolute.
        anchor = Path(entry).anchor  # of an absolute name
        pattern, base = (entry.removeprefix(anchor), Path(anchor)) if anchor else (entry, folder)
        if not Path(pattern).parts:
            raise HeedError(f"{shown(entry)} names no files: it is a folder or empty.")
        try:
            files = sorted(path for path in base.glob(pattern) if path.is_file())
        except ValueError as error:  # not a valid pattern
            raise HeedError(f"{shown(entry)} names no files: {error}.") from None
        except OSError as error:  # too long a name
            raise HeedError(f"{shown(entry)} names no files: {error.strerror}.") from None
        if not files:
            hint = " Sections have two digits: 02-21." if entry[:1].isdecimal() else ""
            raise HeedError(f"no file {entry}.{hint}" if anchor else f"{folder}: no file {entry}.{hint}")
        matches += files
    return list(dict.fromkeys(matches))


def _section_files(folder: Path, sections: Sequence[str]) -> list[Path]:
    """The sections' files of trees; the LDC also ships raw text, tags and other trees under the same numbers."""
    by_section: dict[str, dict[Path, list[Path]]] = defaultdict(dict)
    seen: set[tuple[str, Path]] = set()  # a link may give a section's folder another name
    for place, inner, names in os.walk(folder, followlinks=True):
        here = Path(place)
        known = (here.name, here.resolve())
        if known in seen:  # circular links, or two links to one place
            inner.clear()
            continue
        seen.add(known)
        matches = sorted(match.groups() for name in names if (match := TREES.fullmatch(name)))
        trees = {name: here / f"{name}{suffix}" for name, suffix in reversed(matches)}  # the plain one of both
        if trees:
            by_section[here.name][here] = sorted(trees.values())
    for section in sections:
        match list(by_section[section]):
            case []:
                raise HeedError(f"{folder}: no section {section} (files such as wsj/{section}/*.mrg).")
            case [one, other, *_]:
                raise HeedError(
                    f"{folder}: section {section} is in {one} and in {other}; name the folder of one treebank "
                    "as parsing.treebank."
                )
    return [path for section in sections for files in by_section[section].values() for path in files]


class LeftOut:
    """Counts the trees that cannot be used, and reports the first ones."""

    def __init__(self, report: Callable[[str], None]):
        self.first = ""
        self._n_trees = 0
        self._report = report

    def __call__(self, fault: str) -> None:
        self.first = self.first or fault
        self._n_trees += 1
        if self._n_trees <= SHOWN_FAULTS:
            self._report(f"{fault}; left out.")

    def __str__(self) -> str:
        """The clause for a report on the other trees, or an empty string."""
        return f"; left out: {self._n_trees:,}" if self._n_trees else ""


def trees_of(
    folder: Path, entries: Sequence[str], *, functions: bool, left_out: Callable[[str], None]
) -> Iterator[Tree]:
    """All trees of these sections and files that can be used, cleaned."""
    for path in files_of(folder, entries):
        yield from read_trees(path, functions=functions, left_out=left_out)


def write_lines(settings: ParsingSettings, out: Path, corpora: Corpora) -> TextFiles:
    """The treebank as parallel text: OUT/NAME.words and OUT/NAME.symbols, written for the sets that lack them.

    dev and the tests have OUT/NAME.trees too, which `gold_trees` reads, and all sets OUT/lexicon.json, which
    `read_lexicon` reads.
    """
    # The files of each set; those that a stopped call has written completely stay.
    sets = {"train": settings.train, "dev": settings.dev, **settings.tests}
    pairs = {name: (out / f"{name}.words", out / f"{name}.symbols") for name in sets}

    def complete(name: str) -> bool:
        more = trees_path(pairs[name][0])
        if name == "train":
            if settings.rare_words <= 1:  # runs of Heed 0.1 have no lexicon, and read words as they are
                return all(path.exists() for path in pairs[name])
            more = out / LEXICON
        return all(path.exists() for path in (*pairs[name], more))

    remove_unfinished(out)
    if missing := [name for name in sets if not complete(name)]:
        folder = treebank_folder(settings, corpora)
        # A mistake in the name of any set shows before hours are spent on another.
        for name in missing:
            files_of(folder, sets[name])
        if "train" in missing:
            files_of(folder, settings.parsed)
        for name in missing:
            # Training trees may be changed and multiplied; dev and tests keep the gold trees for the score.
            left_out = LeftOut(corpora.report)
            gold = _gold(settings, folder, name, sets[name], left_out=left_out)
            trees: Iterable[Tree] = gold
            if name == "train":
                trees = training_trees(settings, folder, gold, left_out=left_out)
                Lexicon.of(gold, leaves=settings.leaves, min_count=settings.rare_words).save(out / LEXICON)
            else:
                with whole_file(trees_path(pairs[name][0])) as temporary:
                    temporary.write_text("".join(f"{tree}\n" for tree in gold), encoding="utf-8")
            n_trees = _write(trees, *pairs[name], settings, form=read_lexicon(pairs[name][0]).form)
            origin = "" if n_trees == len(gold) else f" from {len(gold):,} gold ones"
            corpora.report(f"{name}: {n_trees:,} trees{origin}{left_out}.")
    return TextFiles(train=(pairs.pop("train"),), dev=pairs.pop("dev"), tests=pairs)


def gold_trees(words: Path) -> list[Tree]:
    """The trees of a set, by the path of its words that `write_lines` returned."""
    return list(read_trees(trees_path(words)))


def read_lexicon(words: Path) -> Lexicon:
    """The lexicon of the trees to learn from, by the path of any set's words that `write_lines` returned."""
    return Lexicon.load(words.parent / LEXICON)


def trees_path(words: Path) -> Path:
    """The file of the trees of a set, by the path of its words that `write_lines` returned."""
    return words.with_suffix(".trees")


def count_trees(settings: ParsingSettings, corpora: Corpora) -> int:
    """Number of training trees that `write_lines` would write. Reads all sets, so that their errors show."""
    folder = treebank_folder(settings, corpora)
    for name, entries in {"dev": settings.dev, **settings.tests}.items():
        left_out = LeftOut(corpora.report)
        n_trees = len(_gold(settings, folder, name, entries, left_out=left_out))
        corpora.report(f"{name}: {n_trees:,} trees{left_out}.")
    left_out = LeftOut(corpora.report)
    gold = _gold(settings, folder, "train", settings.train, left_out=left_out)
    n_trees = sum(1 for _ in training_trees(settings, folder, gold, left_out=left_out))
    corpora.report(f"{n_trees:,} training trees from {len(gold):,} gold ones in {folder}{left_out}.")
    return n_trees


def _gold(
    settings: ParsingSettings, folder: Path, name: str, entries: Sequence[str], *, left_out: LeftOut
) -> list[Tree]:
    """The trees of a set. HeedError if there are none."""
    trees = list(trees_of(folder, entries, functions=settings.functions, left_out=left_out))
    if not trees:
        setting = f"parsing.{name}" if name in ("train", "dev") else f"parsing.tests.{name}"
        first = f" The first that cannot be used: {left_out.first}." if left_out.first else ""
        raise HeedError(f"{folder}: there is no tree in {', '.join(entries)}, which {setting} names.{first}")
    return trees


def training_trees(
    settings: ParsingSettings, folder: Path, gold: Sequence[Tree], *, left_out: Callable[[str], None]
) -> Iterator[Tree]:
    """The gold trees, repeated `gold_weight` times if there are others; then fragments, substituted and parsed ones."""
    copies = settings.gold_weight if settings.parsed or settings.substituted else 1
    for _ in range(copies):
        yield from gold
    for tree in gold:
        yield from constituents(tree, settings.fragments)
    yield from substitute_constituents(gold, settings.substituted)
    yield from trees_of(folder, settings.parsed, functions=settings.functions, left_out=left_out)


def constituents(tree: Tree, n_words: int) -> Iterator[Tree]:
    """The constituents of 2 to n_words words below the root, each as a tree; one of those that span the same words."""
    for child in tree.children:
        if child.word is not None:
            continue
        length = sum(1 for _ in child.leaves())
        if 2 <= length <= n_words and len(tree.children) > 1:
            yield Tree(ROOT, (child,))
        yield from constituents(child, n_words)


def substitute_constituents(trees: Sequence[Tree], n_each: int) -> Iterator[Tree]:
    """n_each variants of each tree: constituents exchanged for random ones with the same label and parent's label.

    After Shi et al., "Substructure Substitution" (Findings of ACL 2021), who require only the same label. Constituents
    right below the root are whole sentences and stay; a variant that equals its tree is left out. Deterministic.
    """
    # Constituents that may replace each other, by the labels of parent and child.
    pool: dict[tuple[str, str], list[Tree]] = defaultdict(list)

    def gather(tree: Tree) -> None:
        for child in tree.children:
            if child.word is None:
                pool[tree.label, child.label].append(child)
                gather(child)

    # Top-down, so that a constituent that is exchanged is not looked into.
    draws = random.Random(1)

    def exchange(tree: Tree) -> Tree:
        if tree.word is not None:
            return tree
        children = (
            draws.choice(pool[tree.label, child.label])
            if child.word is None and tree.label != ROOT and draws.random() < EXCHANGED
            else exchange(child)
            for child in tree.children
        )
        return Tree(tree.label, tuple(children))

    # All trees are gathered before the first is changed.
    if n_each:
        for tree in trees:
            gather(tree)
        for tree in trees:
            yield from (variant for _ in range(n_each) if (variant := exchange(tree)) != tree)


def _write(
    trees: Iterable[Tree],
    words_path: Path,
    symbols_path: Path,
    settings: LinearisationSettings,
    *,
    form: Callable[[str], str],
) -> int:
    n_trees = 0
    with (
        whole_file(words_path) as words,
        whole_file(symbols_path) as symbols,
        words.open("w", encoding="utf-8") as words_file,
        symbols.open("w", encoding="utf-8") as symbols_file,
    ):
        for tree in trees:
            n_trees += 1
            words_file.write(f"{sentence(tree.words(), form)}\n")
            symbols_file.write(f"{' '.join(linearise(tree, settings.leaves, form, settings.order))}\n")
    return n_trees
