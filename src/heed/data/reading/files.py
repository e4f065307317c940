"""The files that the names in data.train stand for: files, patterns and folders.

Text holds one side, so it comes in twos, sources and targets, line by line. JSON Lines, Parquet and .tsv hold both; in
a pair of files, such a file stands twice.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from heed.config import shown
from heed.data.reading.columns import holds_both_sides
from heed.data.reading.pairs import FilePair
from heed.errors import HeedError
from heed.leases.storage import unpacked_name


def needs_shards(files: FilePair) -> bool:
    """Whether only the preparation in shards reads these files."""
    return holds_both_sides(files[0]) or any(side.suffix == ".zst" for side in files)


def refuse_shards_only(files: Iterable[FilePair], reader: str) -> None:
    """HeedError if a file is of a format that `reader`, such as "heed data check", does not read."""
    for pair in files:
        if needs_shards(pair):
            raise HeedError(f"{pair[0]}: {reader} reads text, plain or .gz; this format is for training, in shards.")


def refuse_both_sides(pair: FilePair, setting: str) -> None:
    """HeedError if a file of `setting`, which is two files of text, is of another format."""
    for side in pair:
        if needs_shards((side, side)):
            raise HeedError(f"{side}: {setting} takes two files of text, plain or .gz, [src, tgt].")


def stands_for_many(name: str) -> bool:
    """Whether a name is a folder's or a pattern, or holds both sides: then it needs no other name beside it."""
    return holds_both_sides(name) or os.path.isdir(name) or _is_pattern(name)


def training_files(names: Sequence[str], *, src: str, tgt: str) -> tuple[FilePair, ...]:
    """The pairs of files that data.train names, those of a folder or of a pattern sorted by their names.

    src, tgt: the languages, by which the text files of a folder are told: NAME.en, NAME.de.gz. HeedError names what is
    missing.
    """
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
            raise HeedError(f"data.train: {name} stands for text and for files that hold both sides; name them apart.")
        targets = _matching(left.pop(0)) if left else []
        if len(targets) != len(found):
            raise HeedError(
                f"data.train: {name} stands for {len(found):,} files of sources, and {len(targets):,} of targets "
                "follow; text comes in twos, [src, tgt]."
            )
        if any(map(holds_both_sides, targets)):
            raise HeedError(f"data.train: {targets[0]} holds both sides, so it is no target of {name}; name it alone.")
        pairs += zip(found, targets, strict=True)
    return tuple(pairs)


def _is_pattern(name: str) -> bool:
    return glob.has_magic(name) and not os.path.exists(name)


def _matching(name: str) -> list[Path]:
    if not _is_pattern(name):
        return [Path(name)]  # which may be missing: said when it is read
    found = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not found:
        raise HeedError(f"data.train: no file matches {shown(name)}.")
    return [_named(Path(path)) for path in found]


def _named(path: Path) -> Path:
    """The file. HeedError if its name is not UTF-8, which a run's own lists of its files are."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise HeedError(
            f"data.train: the file {shown(path.name)} in {shown(str(path.parent))}: its name is not UTF-8; rename it."
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
            raise HeedError(f"data.train: {by_name[name]} and {path} are one text, packed and not; remove one of them.")
        by_name[name] = path
    for path in map(_named, files):
        name = unpacked_name(path.name)
        if holds_both_sides(path):
            pairs.append((path, path))
        elif name.endswith(f".{src}"):
            other = by_name.get(f"{name.removesuffix(src)}{tgt}")
            if other is None:
                raise HeedError(f"data.train: {path} has no file of targets beside it, {name.removesuffix(src)}{tgt}.")
            pairs.append((path, other))
    if not pairs:
        raise HeedError(
            f"data.train: {folder} has no files NAME.{src} and NAME.{tgt}, and none of JSON Lines, Parquet or .tsv."
        )
    return pairs
