"""Treebanks on disk → lines of words and of symbols, which the rest of Heed trains on like any parallel text."""

import os
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from heed.data.prepare import Tests
from heed.errors import HeedError
from heed.parsing.trees import ROOT, Leaves, LinearisationSettings, Tree, linearised, read_trees, sentence
from heed.runtime.files import whole_file

EXCHANGED = 0.15  # of the constituents of a made tree, but for those within exchanged ones
SECTIONS = re.compile(r"(\d\d)(?:-(\d\d))?")


class ParsingSettings(LinearisationSettings):
    """What to train a parser on. A list names files (globs), or sections of the LDC's layout: 02-21 is wsj/02 to 21."""

    treebank: str = Field(min_length=1, description="folder of the trees, also looked for in --mirror and --dir")
    train: list[str] = Field(min_length=1, description="trees to learn from")
    dev: list[str] = Field(min_length=1, description="trees to watch the training with")
    tests: Tests = Field(default_factory=dict, description="name = trees to score")
    fragments: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="constituents of up to so many words are learned as sentences besides; 0: none",
    )
    substituted: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="made trees for each gold one: constituents exchanged for others of the same label; 0: none",
    )
    parsed: list[str] = Field(
        default_factory=list,
        description="trees that a parser made (heed parse --min-confidence), to learn from as well",
    )
    gold_weight: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="a tree of train counts as so many of those made or parsed, where there are any",
    )

    def linearisation(self) -> dict[str, Any]:
        """What a parser must know of it."""
        return self.model_dump(include=set(LinearisationSettings.model_fields))


def treebank_folder(settings: ParsingSettings, *, directory: Path, mirror: str | None) -> Path:
    """Where the trees lie. HeedError says where they were looked for."""
    places = [Path(place) / settings.treebank for place in (mirror, directory) if place is not None]
    for place in places:  # an absolute name stands for itself in each of them
        if place.is_dir():
            return place
    tried = ", ".join(dict.fromkeys(map(str, places)))
    raise HeedError(
        f"treebank {settings.treebank}: no folder {tried}; name the folder that holds it with --mirror, or itself with "
        "--set parsing.treebank=FOLDER."
    )


def files_of(folder: Path, entries: Sequence[str]) -> list[Path]:
    """The files of these sections and globs, in order, each once.

    HeedError names an entry that has none, and a section that is there twice.
    """
    found: list[Path] = []
    for entry in entries:
        if match := SECTIONS.fullmatch(entry):
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise HeedError(f"sections {entry}: the range runs backwards.")
            found += _section_files(folder, [f"{number:02d}" for number in range(first, last + 1)])
            continue
        pattern, base = (Path(entry).name, Path(entry).parent) if Path(entry).is_absolute() else (entry, folder)
        try:
            files = sorted(path for path in base.glob(pattern) if path.is_file())
        except ValueError as error:  # of a pattern that is none
            raise HeedError(f"{entry!r} names no files: {error}.") from None
        if not files:
            hint = " Sections have two digits: 02-21." if entry[:1].isdecimal() else ""
            raise HeedError(f"{base}: no file {pattern}.{hint}")
        found += files
    return list(dict.fromkeys(found))


def _section_files(folder: Path, sections: Sequence[str]) -> list[Path]:
    """Their files of trees: beside these the LDC ships raw text, tags and other trees under the same numbers."""
    by_section: dict[str, dict[Path, list[Path]]] = defaultdict(dict)
    seen: set[Path] = set()
    for place, inner, names in os.walk(folder, followlinks=True):
        here = Path(place)
        if (real := here.resolve()) in seen:  # links that run in circles, or lead to one place twice
            inner.clear()
            continue
        seen.add(real)
        trees = sorted(here / name for name in names if ".mrg" in map(str.lower, Path(name).suffixes))
        if trees:
            by_section[here.name][here] = trees
    for section in sections:
        match list(by_section[section]):
            case []:
                raise HeedError(f"{folder}: no section {section} (files such as wsj/{section}/*.mrg).")
            case [one, other, *_]:
                raise HeedError(
                    f"{folder}: section {section} is in {one} and in {other}; name the folder of one treebank with "
                    "--set parsing.treebank=FOLDER."
                )
    return [path for section in sections for files in by_section[section].values() for path in files]


def trees_of(folder: Path, entries: Sequence[str], *, functions: bool) -> Iterator[Tree]:
    """All trees of these sections and files, cleaned."""
    for path in files_of(folder, entries):
        yield from read_trees(path, functions=functions)


def write_lines(
    settings: ParsingSettings, out: Path, *, directory: Path, mirror: str | None, report: Callable[[str], None]
) -> dict[str, tuple[Path, Path]]:
    """Writes OUT/NAME.words and OUT/NAME.symbols for train, dev and each test unless they are there.

    Beside dev and the tests come OUT/NAME.trees, which `gold_trees` reads.
    """
    sets = {"train": settings.train, "dev": settings.dev, **settings.tests}
    written = {name: (out / f"{name}.words", out / f"{name}.symbols") for name in sets}

    def complete(name: str) -> bool:
        trees = [] if name == "train" else [_beside(written[name][0])]
        return all(path.exists() for path in (*written[name], *trees))

    missing = [name for name in sets if not complete(name)]
    if not missing:
        return written
    folder = treebank_folder(settings, directory=directory, mirror=mirror)
    for name in missing:
        files_of(folder, sets[name])  # before hours are spent on the others
    for name in missing:
        gold = list(trees_of(folder, sets[name], functions=settings.functions))
        trees: Iterable[Tree] = gold
        if name == "train":
            trees = training_trees(settings, folder, gold)
        else:
            with whole_file(_beside(written[name][0])) as temporary:
                temporary.write_text("".join(f"{tree}\n" for tree in gold), encoding="utf-8")
        n_trees = _write(trees, *written[name], leaves=settings.leaves)
        beside = "" if n_trees == len(gold) else f" from {len(gold):,} gold ones"
        report(f"{name}: {n_trees:,} trees{beside}.")
    return written


def gold_trees(words: Path) -> list[Tree]:
    """The trees of a set whose words `write_lines` wrote."""
    return list(read_trees(_beside(words)))


def _beside(words: Path) -> Path:
    return words.with_suffix(".trees")


def training_trees(settings: ParsingSettings, folder: Path, gold: Sequence[Tree]) -> Iterator[Tree]:
    """The gold trees, as often as they count, and what is learned besides: fragments, made and parsed trees."""
    copies = settings.gold_weight if settings.parsed or settings.substituted else 1
    for _ in range(copies):
        yield from gold
    for tree in gold:
        yield from constituents(tree, settings.fragments)
    yield from substituted(gold, settings.substituted)
    yield from trees_of(folder, settings.parsed, functions=settings.functions)


def constituents(tree: Tree, n_words: int) -> Iterator[Tree]:
    """Its constituents of 2 to n_words words, but for itself, each as a tree; of a chain over the same words one."""
    for child in tree.children:
        if child.word is not None:
            continue
        length = sum(1 for _ in child.leaves())
        if 2 <= length <= n_words and len(tree.children) > 1:
            yield Tree(ROOT, (child,))
        yield from constituents(child, n_words)


def substituted(trees: Sequence[Tree], n_each: int) -> Iterator[Tree]:
    """Each tree n_each times, some constituents exchanged for random ones of the same label below the same label.

    After Shi et al., "Substructure Substitution" (Findings of ACL 2021), who ask for the same label alone. Whole
    sentences, right below the root, stay; what equals its own tree is left out. The same trees give the same result.
    """
    pool: dict[tuple[str, str], list[Tree]] = defaultdict(list)

    def gather(tree: Tree) -> None:
        for child in tree.children:
            if child.word is None:
                pool[tree.label, child.label].append(child)
                gather(child)

    draws = random.Random(1)

    def exchanged(tree: Tree) -> Tree:
        if tree.word is not None:
            return tree
        children = (
            draws.choice(pool[tree.label, child.label])
            if child.word is None and tree.label != ROOT and draws.random() < EXCHANGED
            else exchanged(child)
            for child in tree.children
        )
        return Tree(tree.label, tuple(children))

    if n_each:
        for tree in trees:
            gather(tree)
        for tree in trees:
            yield from (made for _ in range(n_each) if (made := exchanged(tree)) != tree)


def _write(trees: Iterable[Tree], words_path: Path, symbols_path: Path, *, leaves: Leaves) -> int:
    n_trees = 0
    with (
        whole_file(words_path) as words,
        whole_file(symbols_path) as symbols,
        words.open("w", encoding="utf-8") as words_file,
        symbols.open("w", encoding="utf-8") as symbols_file,
    ):
        for tree in trees:
            n_trees += 1
            words_file.write(f"{sentence(tree.words())}\n")
            symbols_file.write(f"{' '.join(linearised(tree, leaves))}\n")
    return n_trees
