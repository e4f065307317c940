"""The files that the names in data.train stand for: files, patterns and folders.

Text holds one side, so it comes in twos, sources and targets, line by line. JSON Lines, Parquet and .tsv hold both; in
a pair of files, such a file stands twice.
"""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from heed.config import shown
from heed.data.reading.columns import holds_both_sides
from heed.data.reading.pairs import FilePair
from heed.errors import HeedError
from heed.leases.storage import unpacked_name


def refuse_both_sides(pair: FilePair, setting: str) -> None:
    """HeedError if a file of `setting`, which is two files of text, is of another format."""
    for side in pair:
        if holds_both_sides(side):
            raise HeedError(f"{side}: {setting} takes two files of text, [src, tgt].")


def stands_for_many(name: str) -> bool:
    """Whether a name is a folder's or a pattern, or holds both sides: then it needs no other name beside it."""
    return holds_both_sides(name) or os.path.isdir(name) or _is_pattern(name)


def training_files(names: Sequence[str], *, src: str, tgt: str, setting: str = "data.train") -> tuple[FilePair, ...]:
    """The pairs of files that a setting names, those of a folder or of a pattern sorted by their names.

    src, tgt: the languages, by which the text files of a folder are told: NAME.en, NAME.de.gz. HeedError names what is
    missing.
    """
    if len(names) == 2 and names[0] == names[1] and holds_both_sides(names[0]):
        names = names[:1]  # named for each of its sides
    try:
        return tuple(_pairs_of(names, src, tgt))
    except HeedError as error:
        raise HeedError(f"{setting}: {error}") from None


def _pairs_of(names: Sequence[str], src: str, tgt: str) -> list[FilePair]:
    pairs: list[FilePair] = []
    left = list(names)
    while left:
        name = left.pop(0)
        if os.path.isdir(name):
            pairs += _of_folder(Path(name), src, tgt)
            continue
        found = _matching(name)
        if all(map(holds_both_sides, found)):
            pairs += [(file, file) for file in found]
            continue
        # Files of sources: the name after it stands for their targets.
        if any(map(holds_both_sides, found)):
            raise HeedError(f"{name} stands for text and for files that hold both sides; name them apart.")
        targets = _matching(left.pop(0)) if left else []
        if len(targets) != len(found):
            raise HeedError(
                f"{name} stands for {len(found):,} files of sources, and {len(targets):,} of targets "
                "follow; text comes in twos, [src, tgt]."
            )
        if any(map(holds_both_sides, targets)):
            raise HeedError(f"{targets[0]} holds both sides, so it is no target of {name}; name it alone.")
        pairs += zip(found, targets, strict=True)
    return pairs


def _is_pattern(name: str) -> bool:
    return glob.has_magic(name) and not os.path.exists(name)


def _matching(name: str) -> list[Path]:
    if not _is_pattern(name):
        return [Path(name)]  # which may be missing: said when it is read
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        raise HeedError(f"no file matches {shown(name)}.")
    return [_named(Path(path)) for path in found]


def _named(path: Path) -> Path:
    """The file. HeedError if its name is not UTF-8, which a run's own lists of its files are."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise HeedError(
            f"the file {shown(path.name)} in {shown(str(path.parent))}: its name is not UTF-8; rename it."
        ) from None
    return path


def _of_folder(folder: Path, src: str, tgt: str) -> list[FilePair]:
    """Its files of both sides, and its text files of both languages."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    pairs: list[FilePair] = []
    by_name: dict[str, Path] = {}
    for path in files:
        name = unpacked_name(path.name)
        if name in by_name and name.endswith((f".{src}", f".{tgt}")):
            raise HeedError(f"{by_name[name]} and {path} are one text, packed and not; remove one of them.")
        by_name[name] = path
    for path in map(_named, files):
        name = unpacked_name(path.name)
        if holds_both_sides(path):
            pairs.append((path, path))
        elif name.endswith(f".{src}"):
            other = by_name.get(f"{name.removesuffix(src)}{tgt}")
            if other is None:
                raise HeedError(f"{path} has no file of targets beside it, {name.removesuffix(src)}{tgt}.")
            pairs.append((path, other))
    if not pairs:
        raise HeedError(f"{folder} has no files NAME.{src} and NAME.{tgt}, and none of JSON Lines, Parquet or .tsv.")
    return pairs
