"""`heed data add`: corpora that a user adds, described by TOML files or by the names of text files."""

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from heed.config import cut, read_toml, shown, toml_text, validated
from heed.data.corpora.catalogue import CORPUS_NAME, AddedSettings, Corpus, added_folder, check_added, names_of_heed
from heed.data.corpora.download import local_file
from heed.data.corpora.own_recipe import LANGUAGE
from heed.errors import HeedError
from heed.runtime.files import whole_file

TEXT_NAME = re.compile(rf"(?P<split>.+)\.(?P<language>{LANGUAGE.pattern})(?:\.gz)?")


def add_corpora(given: Path) -> list[Corpus]:
    """Adds the corpus of a TOML file, all those of the TOML files in a folder, or the text files of a folder.

    HeedError if one cannot be added; then none is. Nothing is downloaded.
    """
    if not os.path.isdir(given):  # Path.is_dir raises for a name that is too long
        described = {given: read_toml(given)}
    elif files := sorted(path for path in given.iterdir() if path.name.endswith(".toml")):
        described = {file: read_toml(file) for file in files}
    else:
        folder = Path(os.path.realpath(given))
        described = {folder / f"{folder.name}.toml": _describe(folder)}
    corpora = [_checked(file, values, where=file if file.is_file() else given) for file, values in described.items()]
    for corpus in corpora:
        assert corpus.file is not None  # _checked gives each its own
        with whole_file(corpus.file) as temporary:
            temporary.write_text(toml_text(corpus.settings.model_dump(exclude_unset=True)), encoding="utf-8")
    return corpora


def _checked(file: Path, values: dict[str, Any], *, where: Path) -> Corpus:
    """The corpus as it will be kept. HeedError if anything in it is wrong or its name is taken.

    file: NAME.toml, if there is one; it lies where the paths in it begin.
    """
    # Its name becomes that of a folder and of a file.
    name = file.name.removesuffix(".toml")
    if not CORPUS_NAME.fullmatch(name) or file.suffix != ".toml":
        raise HeedError(
            f"{where}: {shown(name)} cannot be the name of a corpus; rename it: letters, digits and . _ -, 64 at most, "
            "beginning with a letter or digit, with the suffix .toml if it is a file."
        )
    if name.casefold() in map(str.casefold, names_of_heed()):
        raise HeedError(f"{where}: a corpus called {name} comes with Heed; rename it.")
    kept = added_folder() / f"{name}.toml"
    if os.path.lexists(kept):
        raise HeedError(
            f"{where}: a corpus called {name} was added before; to add it anew, first delete {kept} and what was "
            f"downloaded (corpora/{name})."
        )

    # Its texts must be there, or it must be known what a download has to be.
    if "folder" in values:
        raise HeedError(f"{where}: unknown setting folder; a path is relative to the folder of this file.")
    folder = os.path.realpath(file.parent)
    settings = validated(AddedSettings, {**values, "folder": folder}, where=str(where))
    check_added(settings, where=where)
    for _, text in settings.texts():
        if text.path is not None:
            local_file(Path(folder), text)
    return Corpus(name, settings, kept)


def _describe(folder: Path) -> dict[str, Any]:
    """The content of a TOML file for a folder with train.en, train.de, dev.en, dev.de, and test sets likewise."""
    # Which files are texts follows from the languages of train.
    files: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(os.listdir(folder)):
        if match := TEXT_NAME.fullmatch(name):
            split, language = match["split"], match["language"]
            if language in files[split] and split in ("train", "dev"):
                raise HeedError(f"{folder}: holds both {files[split][language]} and {name}; keep one of them.")
            files[split][language] = name
    languages = sorted(files["train"])
    if len(languages) != 2:
        listed = f"text in {cut(', '.join(languages))}" if languages else "none"
        raise HeedError(
            f"{folder}: expected TOML files, or text files such as train.en, train.de, dev.en, dev.de; of train there "
            f"is {listed}. Name two languages, or describe the corpus in a TOML file."
        )

    splits = {name: {code: sides[code] for code in languages if code in sides} for name, sides in files.items()}
    if len(splits.get("dev", {})) != 2:
        src, tgt = (folder / splits["train"][language] for language in languages)
        raise HeedError(
            f"{folder}: has no {' and '.join(f'dev.{language}' for language in languages)}; add them, or split dev "
            f"off the training text: heed train --src {src} --tgt {tgt}."
        )

    def sides(name: str) -> dict[str, Any]:
        return {language: {"path": file} for language, file in splits[name].items()}

    return {
        "title": f"text files in {cut(str(folder))}",
        "licence": "not stated",
        "languages": [languages],
        "train": [sides("train")],
        "dev": sides("dev"),
        "tests": {name: sides(name) for name in splits if name not in ("train", "dev") and len(splits[name]) == 2},
    }
