"""A folder of documents → the same folder in another language: documents are translated, all other files copied.

Several documents are translated together, so that a search is filled. A report in the new folder lists what is
done, so the same command, run again, translates only what is missing or has changed.
"""

import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from heed.apps.documents.formats import MAX_BYTES, SUFFIXES, UPDATED, Format, most_bytes
from heed.apps.documents.formats.jobs import document_job
from heed.apps.documents.text.translation import DocumentOptions, Sentence, Translate, TranslationJob, run_job
from heed.errors import HeedError
from heed.runtime.files import whole_file
from heed.runtime.reading import read_bounded
from heed.text.alignment import Translated

REPORT = "translation.report.json"
HEAD_BYTES = 2**12  # of a file of XML, in which its root stands
TOGETHER_BYTES = 2**18  # of documents whose sentences are translated at once
# The name of a file or folder that names a language: the code at its end, or all of it.
_LANGUAGE = r"(?:^|(?<=[._-])){}(?:[-_][A-Za-z]{{2,4}})?$"


class FolderFile(NamedTuple):
    """A file of the folder, what it becomes, and its format; None if it is copied."""

    source: Path
    out: Path
    format: Format | None


class _Waiting(NamedTuple):
    """A document that waits to be translated with others: its name in the new folder, and its entry in the report."""

    name: str
    out: Path
    entry: dict[str, Any]
    job: TranslationJob[bytes]


def plan_folder(folder: Path, out: Path, *, only: Sequence[str], languages: tuple[str, str]) -> list[FolderFile]:
    """What becomes of each file; hidden files and links are left out.

    only: patterns of the documents that are translated; then nothing is copied. Names that end in the source's code,
    such as en.json and app_en.properties, end in the target's then, and those of other languages beside them are
    copied. HeedError if the new folder holds the old one.
    """
    old, new = folder.resolve(), out.resolve()
    if old.is_relative_to(new):
        raise HeedError(f"{out}: is {folder} or holds it; choose another folder.")
    files: list[FolderFile] = []
    for path in _files(folder, new):
        name = path.relative_to(folder)
        if only and not any(fnmatch.fnmatch(name.as_posix(), p) or fnmatch.fnmatch(name.name, p) for p in only):
            continue
        named = _renamed(name, *languages)
        format = _format_of(path, languages[0], is_named=named != name)
        if format is not None and named == name and _is_translation(folder, name, languages[0], format in UPDATED):
            format = None
        if format is not None or not only:
            files.append(FolderFile(path, out / (name if format is None else named), format))
    made = {file.out for file in files if file.format is not None}
    return [file for file in files if file.format is not None or file.out not in made]


def _files(folder: Path, left_out: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and (Path(root) / f).resolve() != left_out)
        for path in (Path(root) / name for name in sorted(names) if not name.startswith(".")):
            if path.is_file() and not path.is_symlink():
                yield path


def _format_of(path: Path, language: str, *, is_named: bool) -> Format | None:
    """The format that the suffix names; None for XML and YAML that hold no texts of a program, as most do not.

    is_named: the file's name says its language.
    """
    format = SUFFIXES.get(path.suffix.lower())
    if format not in ("android", "yaml") or (format == "yaml" and is_named):
        return format
    root = (
        rb"<resources"
        if format == "android"
        else rb"(?m)^[\"']?%b[\"']?:[ \t]*(?:#|\r?$)" % re.escape(language).encode()
    )
    try:
        with path.open("rb") as file:
            return format if re.search(root, file.read(HEAD_BYTES)) else None
    except OSError:
        return format  # which is said when it is read


def _parts(name: Path) -> Iterator[tuple[str, str]]:
    """Each part of a path as what may end in a language's code, and what stands behind."""
    *folders, file = name.parts
    for part in folders:
        stem = part.removesuffix(".lproj")
        yield stem, part[len(stem) :]
    stem, dot, suffix = file.rpartition(".")
    yield (stem, dot + suffix) if dot else (file, "")


def _renamed(name: Path, source: str, target: str) -> Path:
    pattern = re.compile(_LANGUAGE.format(re.escape(source)), re.IGNORECASE)
    return Path(*(pattern.sub(lambda _: target, stem) + rest for stem, rest in _parts(name)))


def _is_translation(folder: Path, name: Path, source: str, has_default: bool) -> bool:
    """Whether a file is named by a language, and the same file of the source's stands beside it.

    has_default: that may be one without a language, as in Texts.resx and Texts.de.resx.
    """
    pattern = re.compile(_LANGUAGE.format("[a-z]{2,3}"))
    parts = list(_parts(name))
    for place, (stem, rest) in enumerate(parts):
        if pattern.search(stem) and pattern.sub(source, stem) != stem:
            names = [own + behind for own, behind in parts]
            default = pattern.sub("", stem).rstrip("._-")
            for other in [pattern.sub(source, stem), *[default] * bool(has_default and default)]:
                names[place] = other + rest
                if folder.joinpath(*names).exists():
                    return True
    return False


def translate_folder(
    files: Sequence[FolderFile],
    out: Path,
    translate: Translate,
    options: DocumentOptions,
    *,
    made_by: str,
    update: bool,
    done: Callable[[int], object],
) -> dict[str, str]:
    """What is wrong, by file; the others are translated or copied, and the report says so.

    made_by: what of the model and the options decides a translation; with another one all is translated again. update:
    files of keys and texts that are there keep their texts. done: told how many files are finished.
    """
    report = _read_report(out / REPORT, made_by)
    faults: dict[str, str] = {}
    waiting: list[_Waiting] = []
    n_bytes = 0

    def finish() -> None:
        results = run_job(_together([one.job for one in waiting]), translate)
        for one, result in zip(waiting, results, strict=True):
            if isinstance(result, HeedError):
                faults[one.entry["source"]] = str(result)
                continue
            with whole_file(one.out) as temporary:
                temporary.write_bytes(result)
            report[one.name] = one.entry
        with whole_file(out / REPORT) as temporary:
            text = json.dumps({"made_by": made_by, "files": report, "faults": faults}, indent=1, ensure_ascii=False)
            temporary.write_text(f"{text}\n", encoding="utf-8")
        done(len(waiting))
        waiting.clear()

    for file in files:
        name = file.out.relative_to(out).as_posix()
        try:
            stat = file.source.stat()
            content = b"" if file.format is None else read_bounded(file.source, most_bytes(file.format))
            version = hashlib.sha256(content).hexdigest() if file.format else f"{stat.st_size} {stat.st_mtime_ns}"
            entry, is_there = report.get(name), file.out.exists()
            is_updated = update and file.format in UPDATED
            if is_there and not entry and not is_updated:
                raise HeedError(f"{file.out}: is there and was not made from this folder; remove it first.")
            if is_there and entry and entry["version"] == version:
                done(1)
                continue
            if file.format is None:
                with whole_file(file.out) as temporary:
                    shutil.copyfile(file.source, temporary)
                report[name] = {"source": str(file.source), "format": None, "version": version}
                done(1)
                continue
            earlier = read_bounded(file.out, MAX_BYTES) if is_there and is_updated else None
        except (HeedError, OSError) as error:
            faults[str(file.source)] = str(error)
            done(1)
            continue
        own = replace(options, earlier=earlier)
        entry = {"source": str(file.source), "format": file.format, "version": version}
        waiting.append(_Waiting(name, file.out, entry, document_job(content, file.format, own, name=str(file.source))))
        n_bytes += len(content)
        if n_bytes >= TOGETHER_BYTES:
            finish()
            n_bytes = 0
    finish()
    return faults


def _read_report(path: Path, made_by: str) -> dict[str, Any]:
    """The entries of an earlier run. HeedError if the report is damaged."""
    if not path.exists():
        return {}
    try:
        report = json.loads(read_bounded(path, MAX_BYTES))
        files: dict[str, Any] = report["files"]
        for entry in files.values():
            entry["version"] = str(entry["version"]) if report["made_by"] == made_by else ""
    except (ValueError, TypeError, KeyError, AttributeError):
        raise HeedError(f"{path}: is not a report of Heed's; remove it, and what it lists.") from None
    return files


def _together(jobs: Sequence[TranslationJob[bytes]]) -> TranslationJob[list[bytes | HeedError]]:
    """The result or the error of each job; what several of them ask at a time is asked for at once."""
    results: list[bytes | HeedError] = [b""] * len(jobs)
    asked: dict[int, list[Sentence]] = {}

    def step(number: int, answers: Sequence[Translated] | None) -> None:
        try:
            asked[number] = next(jobs[number]) if answers is None else jobs[number].send(answers)
        except StopIteration as stop:
            results[number] = stop.value
        except HeedError as error:
            results[number] = error

    for number in range(len(jobs)):
        step(number, None)
    while asked:
        answers = yield [sentence for sentences in asked.values() for sentence in sentences]
        place, before = 0, dict(asked)
        asked.clear()
        for number, sentences in before.items():
            step(number, answers[place : place + len(sentences)])
            place += len(sentences)
    return results
