"""Named corpora, those of Heed and those that a user added: addresses, hashes, licences, splits.

Each is a TOML file, `NAME.toml`, beside this module or in `added_folder()`. A stranger may have written what a user
adds, so every name in it that becomes the name of a file is checked, and its files must be in its own folder.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from heed.config import Settings, read_toml, shown, toml_tables, validated
from heed.data.mix import Language
from heed.data.reading.text_files import check_test_names
from heed.errors import HeedError
from heed.runtime.files import base_folder
from heed.suggestions import did_you_mean

RAW = "raw"  # the variant that a corpus always has: as published
ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")  # of a file: no path, not hidden
RESERVED_SUFFIXES = (".part", ".sha256")  # of the files that a download keeps beside a text
CORPUS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _plain_name(name: str, *, of: str) -> str:
    if not PLAIN_NAME.fullmatch(name) or name.endswith(RESERVED_SUFFIXES):
        raise ValueError(
            f"{shown(of)} must end in the name of a file: letters, digits and . _ - +, 128 at most, not beginning with "
            f"a dot or ending in {' or '.join(RESERVED_SUFFIXES)}"
        )
    return name


def file_of_url(url: str) -> str:
    """The name of the file that an address ends in."""
    return urlsplit(url).path.rpartition("/")[2]


def file_of_member(member: str) -> str:
    """The name that a text of an archive has once it is unpacked: SGM becomes plain lines, .gz is unzipped."""
    return PurePosixPath(member).name.removesuffix(".gz").removesuffix(".sgm")


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number, brackets that are not closed
        good = False
    if not good or not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError(f"{shown(url)} is not an address that begins with https:// or http://")
    if "?" in url or "#" in url:
        raise ValueError(f"{shown(url)} has a query or a fragment; name the file's own address")
    _plain_name(file_of_url(url), of=url)
    return url


def _check_member(member: str) -> str:
    _plain_name(file_of_member(member), of=member)
    return member


def _check_path(path: str) -> str:
    if not path.isprintable() or "\\" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(f"{shown(path)} leads out of the corpus's folder; name a file in it")
    return path


def _check_hash(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError(f"{shown(text)} is not a SHA-256: 64 of the characters 0-9 and a-f, as sha256sum prints it")
    return text


def _as_list(train: Any) -> Any:
    return [train] if isinstance(train, Mapping) else train


def _check_variants(variants: dict[str, Any]) -> dict[str, Any]:
    for name in variants:
        if name == RAW:
            raise ValueError(f"{RAW} is what stands outside variants; take another name")
        if not name.isprintable() or not 0 < len(name) <= 64:
            raise ValueError(f"{shown(name)} cannot be the name of a variant: 64 printable characters at most")
    return variants


Url = Annotated[str, AfterValidator(_check_url)]
Sha256 = Annotated[str, AfterValidator(_check_hash)]


class Archive(Settings):
    """A tar or zip archive to fetch. sha256: of its bytes; None if none was published."""

    url: Url
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _is_an_archive(self) -> Self:
        if not self.url.endswith(ARCHIVE_SUFFIXES):
            raise ValueError(f"{shown(self.url)} is not an archive that Heed reads: {', '.join(ARCHIVE_SUFFIXES)}")
        return self


class Text(Settings):
    """Where one side of a text is: at an address, in an archive, or in the corpus's folder.

    sha256: of its lines, unzipped. Of an archive's member the archive has it.
    """

    url: Url | None = None
    path: Annotated[str, Field(min_length=1), AfterValidator(_check_path)] | None = None
    archive: str | None = None
    member: Annotated[str, AfterValidator(_check_member)] | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _in_one_place(self) -> Self:
        given = tuple(name for name in ("url", "path", "archive", "member") if getattr(self, name) is not None)
        if given not in (("url",), ("path",), ("archive", "member")):
            places = " and ".join(given) or "none of them"
            raise ValueError(f"expected url, or path, or archive with member; found {places}")
        if self.archive is not None and self.sha256 is not None:
            raise ValueError("the sha256 of a text in an archive has no effect; give that of the archive")
        return self


Sides = dict[Language, Text]


class Splits(Settings):
    """The texts to learn from, choose by and test on; of each the text in every language."""

    train: Annotated[list[Sides], Field(min_length=1), BeforeValidator(_as_list)]
    dev: Sides
    tests: Annotated[dict[str, Sides], AfterValidator(check_test_names)] = Field(default={})

    def named(self) -> Iterator[tuple[str, Sides]]:
        """All of them, by their names in the file."""
        for number, sides in enumerate(self.train):
            yield f"train.{number}", sides
        yield "dev", self.dev
        for name, sides in self.tests.items():
            yield f"tests.{name}", sides


class CorpusSettings(Splits):
    """The content of a corpus's TOML file. The splits outside `variants` are those of the variant raw."""

    title: str = Field(min_length=1, max_length=500)
    licence: str = Field(min_length=1, max_length=500)
    languages: list[Annotated[list[Language], Field(min_length=2, max_length=2)]] = Field(min_length=1)
    download_bytes: int | None = Field(default=None, ge=1, le=10**15)
    archives: dict[str, Archive] = Field(default={})
    variants: Annotated[dict[str, Splits], AfterValidator(_check_variants)] = Field(default={})

    def splits(self) -> dict[str, Splits]:
        """By variant, raw first."""
        return {RAW: self, **self.variants}

    def texts(self) -> Iterator[tuple[str, Text]]:
        """All texts, by their names in the file."""
        for variant, splits in self.splits().items():
            prefix = "" if variant == RAW else f"variants.{variant}."
            for name, sides in splits.named():
                for language, text in sides.items():
                    yield f"{prefix}{name}.{language}", text

    @model_validator(mode="after")
    def _pairs_have_both_sides(self) -> Self:
        for src, tgt in self.languages:
            if src == tgt:
                raise ValueError(f"languages: {src}-{tgt} is not a pair of languages")
            for splits in self.splits().values():
                for name, sides in splits.named():
                    for language in (src, tgt):
                        if language not in sides:
                            raise ValueError(f"{name} has no text in {shown(language)}, which languages names")
        return self

    @model_validator(mode="after")
    def _archives_are_used(self) -> Self:
        used = {text.archive: name for name, text in self.texts() if text.archive is not None}
        for archive, name in used.items():
            if archive not in self.archives:
                raise ValueError(f"{name}.archive: there is no archives.{archive}")
        for archive in self.archives:
            if archive not in used:
                raise ValueError(f"archives.{archive} has no effect: no text is in it")
        return self

    @model_validator(mode="after")
    def _every_file_has_its_own_name(self) -> Self:
        """All files of a corpus lie in one folder."""
        kept: dict[str, object] = {}
        for archive in self.archives.values():
            self._keep(kept, file_of_url(archive.url), archive.url)
        for _, text in self.texts():
            if text.url is not None:
                self._keep(kept, file_of_url(text.url), text.url)
            elif text.member is not None:
                self._keep(kept, file_of_member(text.member), (text.archive, text.member))
        return self

    @staticmethod
    def _keep(kept: dict[str, object], name: str, source: object) -> None:
        if kept.setdefault(name.casefold(), source) != source:
            raise ValueError(f"two different files would be called {name} in the corpus's folder")


class AddedSettings(CorpusSettings):
    """A corpus as `heed data add` keeps it. folder: of the given file, to which `path` is relative."""

    folder: str


@dataclass(frozen=True)
class Corpus:
    """A corpus by its name. file: of an added one, its TOML file."""

    name: str
    settings: CorpusSettings
    file: Path | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of the files that an added corpus names by `path`."""
        return Path(self.settings.folder) if isinstance(self.settings, AddedSettings) else None

    def check_offers(self, src: str, tgt: str, variant: str) -> None:
        """HeedError with what there is, unless the corpus has this pair, in either direction, and variant."""
        if not any({src, tgt} == {*pair} for pair in self.settings.languages):
            offered = ", ".join("-".join(pair) for pair in self.settings.languages)
            raise HeedError(f"{self.name} has no pair {src}-{tgt}; it offers {offered}, in both directions.")
        if variant not in self.settings.splits():
            raise HeedError(
                f"{self.name} has no variant {shown(variant)}; it offers {', '.join(self.settings.splits())}."
            )


def catalogue() -> list[Corpus]:
    """All named corpora: Heed's own, then those that the user added. HeedError if the file of one is faulty."""
    return [*map(_of_heed, names_of_heed()), *map(_added, _names_added())]


def find(name: str) -> Corpus:
    """The corpus of this name. HeedError suggests the nearest one."""
    added = _names_added()
    if name in added:
        return _added(name)
    if name in names_of_heed():
        return _of_heed(name)
    known = [*names_of_heed(), *added]
    near = [each for each in known if name and each.startswith(name)] or difflib.get_close_matches(name, known, n=1)
    hint = did_you_mean(near) or f"known: {', '.join(known)}; to add one of your own: heed data add."
    raise HeedError(f"unknown corpus {shown(name)}; {hint}")


def added_folder() -> Path:
    """Where `heed data add` keeps what a user added: $XDG_CONFIG_HOME/heed/corpora, or ~/.config/heed/corpora."""
    try:
        return base_folder("XDG_CONFIG_HOME", ".config") / "heed" / "corpora"
    except RuntimeError:
        raise HeedError("this user has no home folder; set XDG_CONFIG_HOME to a folder for settings.") from None


def names_of_heed() -> list[str]:
    """The corpora that come with Heed."""
    files = resources.files("heed.data.corpora").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _of_heed(name: str) -> Corpus:
    file = resources.files("heed.data.corpora") / f"{name}.toml"
    tables = toml_tables(file.read_text(encoding="utf-8"))
    return Corpus(name, validated(CorpusSettings, tables, where=file.name))


def _names_added() -> list[str]:
    try:
        names = sorted(os.listdir(added_folder()))
    except OSError:  # nothing was added
        return []
    stems = [name.removesuffix(".toml") for name in names if name.endswith(".toml")]
    return [stem for stem in stems if CORPUS_NAME.fullmatch(stem)]


def _added(name: str) -> Corpus:
    file = added_folder() / f"{name}.toml"
    if name in names_of_heed():  # since a new version, say: neither may silently take the other's place
        raise HeedError(f"{file}: a corpus called {name} comes with Heed; rename the file.")
    settings = validated(AddedSettings, read_toml(file), where=str(file))
    check_added(settings, where=file)
    return Corpus(name, settings, file)


def check_added(settings: CorpusSettings, *, where: Path) -> None:
    """HeedError unless all that would be downloaded has a hash and a bound."""
    fetched = [(f"archives.{name}", "archive", archive.sha256) for name, archive in settings.archives.items()]
    fetched += [(name, "text, unzipped", text.sha256) for name, text in settings.texts() if text.url is not None]
    for name, kind, sha256 in fetched:
        if sha256 is None:
            raise HeedError(f"{where}: {name} has no sha256; add the SHA-256 of the {kind}, as sha256sum prints it.")
    if fetched and settings.download_bytes is None:
        raise HeedError(f"{where}: download_bytes is missing; add the size of all downloads, in bytes.")
