"""The files that the names in data.train stand for: files, patterns and folders.

Text holds one side, so it comes in twos, sources and targets, line by line. JSON Lines, Parquet and .tsv hold both; in
a pair of files, such a file stands twice.
"""

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from heed.config import shown
from heed.data.reading.columns import holds_both_sides
from heed.data.reading.pairs import FilePair
from heed.errors import HeedError
from heed.leases.storage import unpacked_name

SHOWN_FILES = 10  # in a message

Report = Callable[[str], None]


def refuse_both_sides(pair: FilePair, setting: str) -> None:
    """HeedError if one of two files of `setting` holds both sides, so that it is none of them."""
    for side in pair:
        if pair[0] != pair[1] and holds_both_sides(side):
            raise HeedError(f"{side}: holds both sides; {setting} takes it alone, or two files of text, [src, tgt].")


def stands_for_many(name: str) -> bool:
    """Whether a name may be a folder's or a pattern, or holds both sides: then it needs no other name beside it.

    What is not there may be a folder of a run that was moved.
    """
    return holds_both_sides(name) or not os.path.isfile(name)


def training_files(
    names: Sequence[str], *, src: str, tgt: str, setting: str = "data.train", report: Report = lambda _: None
) -> tuple[FilePair, ...]:
    """The pairs of files that a setting names, those of a folder or of a pattern sorted by their names.

    src, tgt: the languages, by which the text files of a folder are told: NAME.en, NAME.de.gz. What a folder holds and
    is not read is reported. HeedError names what is missing, and files without a partner.
    """
    if len(names) == 2 and names[0] == names[1] and holds_both_sides(names[0]):
        names = names[:1]  # named for each of its sides
    try:
        return tuple(_pairs_of(names, src, tgt, lambda line: report(f"{setting}: {line}")))
    except HeedError as error:
        raise HeedError(f"{setting}: {error}") from None


def _pairs_of(names: Sequence[str], src: str, tgt: str, report: Report) -> list[FilePair]:
    pairs: list[FilePair] = []
    left = list(names)
    while left:
        name = left.pop(0)
        if os.path.isdir(name):
            pairs += _of_folder(Path(name), src, tgt, report)
            continue
        sources = _matching(name)
        if all(map(holds_both_sides, sources)):
            pairs += [(file, file) for file in sources]
            continue
        # Files of sources: the name after it stands for their targets.
        if any(map(holds_both_sides, sources)):
            raise HeedError(f"{name} stands for text and for files that hold both sides; name them apart.")
        if not (left or os.path.exists(name)):
            raise HeedError(f"{name}: no such file or folder.")
        if not left:
            raise HeedError(f"{name} holds sources, and no targets follow; text comes in twos, [src, tgt].")
        targets = _matching(of_targets := left.pop(0))
        if any(map(holds_both_sides, targets)):
            raise HeedError(f"{targets[0]} holds both sides, so it is no target of {name}; name it alone.")
        if len(sources) == len(targets) == 1 and not (_is_pattern(name) and _is_pattern(of_targets)):
            pairs.append((sources[0], targets[0]))
        else:
            pairs += _paired(_by_wildcards(sources, name), _by_wildcards(targets, of_targets), src, tgt)
    return pairs


def _by_wildcards(files: Sequence[Path], pattern: str) -> dict[str, Path]:
    """The files of a pattern by what its wildcards stand for in their names."""
    parts = re.split(r"(\*\*/|\*+|\?|\[!?[][]?[^][]*])", pattern) if _is_pattern(pattern) else [pattern]
    wildcards = {"**/": "((?:.*/)?)", "**": "(.*)", "*": "([^/]*)", "?": "([^/])"}
    regex = "".join(
        (wildcards.get(part) or f"({fnmatch.translate(part)[:-2]})") if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    by_wildcards: dict[str, Path] = {}
    for file in files:
        match = re.fullmatch(regex, str(file)) or re.fullmatch(regex, os.path.join(".", file))
        key = unpacked_name("\0".join(match.groups() if match else ())).rstrip("\0")
        if key in by_wildcards:
            raise HeedError(f"{by_wildcards[key]} and {file} are one text, packed and not; remove one of them.")
        by_wildcards[key] = file
    return by_wildcards


def _paired(sources: dict[str, Path], targets: dict[str, Path], src: str, tgt: str) -> list[FilePair]:
    """The pairs whose wildcards stand for the same, but for the languages. HeedError names files without a partner."""
    fewest_alone = [*sources.values(), *targets.values()]
    for codes in (slice(0), slice(-1, None), slice(None)):  # that may differ: none, the last one, as in en/*, or all
        sides = (src, sources), (tgt, targets)
        of_src, of_tgt = (
            {_without(language, codes, key): file for key, file in files.items()} for language, files in sides
        )
        pairs = [(file, of_tgt[key]) for key, file in of_src.items() if key in of_tgt]
        paired = {file for pair in pairs for file in pair}
        alone = [file for _, files in sides for file in files.values() if file not in paired]
        if not alone:
            return pairs
        fewest_alone = min(fewest_alone, alone, key=len)
    names = _listed(list(map(str, fewest_alone)))
    raise HeedError(
        f"the wildcards of both sides must stand for the same; without a partner: {names}. Add what is missing, or "
        "name the files apart."
    )


def _without(language: str, codes: slice, key: str) -> str:
    """What wildcards stand for without these of the language's codes in it."""
    matches = list(re.finditer(rf"(?<![^\W_]){re.escape(language)}(?![^\W_])", key))
    for code in reversed(matches[codes]):
        key = key[: code.start()] + key[code.end() :]
    return key


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_FILES:,} more" if len(names) > SHOWN_FILES else ""
    return ", ".join(names[:SHOWN_FILES]) + more


def _is_pattern(name: str) -> bool:
    return glob.has_magic(name) and not os.path.exists(name)


def _matching(name: str) -> list[Path]:
    if not _is_pattern(name):
        return [Path(name)]  # which may be missing: said when it is read
    paths = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not paths:
        raise HeedError(f"no file matches {shown(name)}.")
    return [_named(Path(path)) for path in paths]


def _named(path: Path) -> Path:
    """The file. HeedError if its name is not UTF-8, which a run's own lists of its files are."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise HeedError(
            f"the file {shown(path.name)} in {shown(str(path.parent))}: its name is not UTF-8; rename it."
        ) from None
    return path


def _of_folder(folder: Path, src: str, tgt: str, report: Report) -> list[FilePair]:
    """Its files of both sides, and its text files of both languages."""
    there = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    pairs: list[FilePair] = []
    by_name: dict[str, Path] = {}
    for path in filter(Path.is_file, there):
        name = unpacked_name(path.name)
        if name in by_name and name.endswith((f".{src}", f".{tgt}")):
            raise HeedError(f"{by_name[name]} and {path} are one text, packed and not; remove one of them.")
        if holds_both_sides(path):
            pairs.append((_named(path), path))
        by_name[name] = path
    for own, other in ((src, tgt), (tgt, src)):
        for name, path in by_name.items():
            if name.endswith(f".{own}"):
                partner = f"{name.removesuffix(own)}{other}"
                if partner not in by_name:
                    raise HeedError(f"{path} has no partner beside it, {partner}.")
                if own == src:
                    pairs.append((_named(path), _named(by_name[partner])))
    read = {file for pair in pairs for file in pair}
    unread = [shown(path.name) + "/" * path.is_dir() for path in there if path not in read]
    if not pairs:
        raise HeedError(
            f"{folder} has no files NAME.{src} and NAME.{tgt}, and none of JSON Lines, Parquet, .csv or .tsv"
            f"{f'; it has {_listed(unread)}' if unread else ''}."
        )
    if unread:
        report(f"{folder}: not read: {_listed(unread)}.")
    return sorted(pairs)
