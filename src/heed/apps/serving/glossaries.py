"""Glossaries of DeepL's interface, version 2: terms of a language pair with their translations."""

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from heed.apps.serving.http_error import HTTPError
from heed.errors import HeedError
from heed.runtime.files import whole_file

MAX_GLOSSARIES = 1_000
MAX_BYTES = 2**20  # of a glossary's name and entries, in UTF-8
MAX_TOTAL_BYTES = 2**25  # of all glossaries


@dataclass(frozen=True)
class Glossary:
    """Terms, each with its translation, from one language to another. created: in ISO 8601."""

    glossary_id: str
    name: str
    source_lang: str
    target_lang: str
    creation_time: str
    entries: dict[str, str]

    @property
    def n_bytes(self) -> int:
        return len(self.name.encode()) + sum(len(f"{src}{tgt}".encode()) for src, tgt in self.entries.items())

    def as_json(self) -> dict[str, Any]:
        """What a client learns of it, besides its entries."""
        values: dict[str, Any] = {name: value for name, value in asdict(self).items() if name != "entries"}
        return values | {"ready": True, "entry_count": len(self.entries)}

    def as_tsv(self) -> str:
        return "\n".join(f"{src}\t{tgt}" for src, tgt in self.entries.items())


_FILE = TypeAdapter(list[Glossary])


class GlossaryStore:
    """The glossaries, which all clients share. With a path they are kept in a file, which is written whole."""

    def __init__(self, path: Path | None = None):
        """HeedError if the file holds something else, or cannot be written."""
        self._path, self._glossaries = path, dict[str, Glossary]()
        self._turn = asyncio.Lock()
        if path is None:
            return
        try:
            if path.exists():
                glossaries = _FILE.validate_json(path.read_bytes(), strict=True)
                self._glossaries = {glossary.glossary_id: glossary for glossary in glossaries}
        except OSError as error:
            raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None
        except ValidationError:
            raise HeedError(
                f"{path}: not a file of glossaries; name one that heed serve wrote, or a new one."
            ) from None
        _write(path, self._glossaries)

    def __iter__(self) -> Iterator[Glossary]:
        return iter(self._glossaries.values())

    def find(self, glossary_id: str) -> Glossary:
        """HTTPError, 404, if there is none."""
        if (glossary := self._glossaries.get(glossary_id)) is None:
            raise HTTPError(404, "no such glossary, or no more")
        return glossary

    def terms(self, glossary_id: str, source: str, target: str) -> dict[str, str] | None:
        """A glossary's entries, None for the id "". HTTPError if there is none, or it is for other languages."""
        if not glossary_id:
            return None
        if source == "auto":
            raise HTTPError(400, "Value for 'source_lang' required: a glossary_id needs it")
        glossary = self.find(glossary_id)
        if (glossary.source_lang, glossary.target_lang) != (source, target):
            raise HTTPError(400, "the glossary's languages are not source_lang and target_lang")
        return glossary.entries

    async def add(self, name: str, source: str, target: str, entries: dict[str, str]) -> Glossary:
        """A new glossary, once it is on the disk. HTTPError if it is too large, or if there is no room for it."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        glossary = Glossary(str(uuid.uuid4()), name, source, target, now, entries)
        if glossary.n_bytes > MAX_BYTES:
            raise HTTPError(413, f"the glossary is larger than {MAX_BYTES:,} bytes: make several, or shorten it")
        async with self._turn:
            n_bytes = sum(other.n_bytes for other in self._glossaries.values()) + glossary.n_bytes
            if len(self._glossaries) == MAX_GLOSSARIES or n_bytes > MAX_TOTAL_BYTES:
                raise HTTPError(413, "there is no room for more glossaries: delete some")
            await self._replace(self._glossaries | {glossary.glossary_id: glossary})
        return glossary

    async def remove(self, glossary_id: str) -> None:
        """HTTPError, 404, if there is none."""
        async with self._turn:
            self.find(glossary_id)
            await self._replace({key: one for key, one in self._glossaries.items() if key != glossary_id})

    async def _replace(self, glossaries: dict[str, Glossary]) -> None:
        if self._path is not None:
            try:
                await asyncio.to_thread(_write, self._path, glossaries)
            except HeedError as error:
                raise HTTPError(503, f"the glossaries cannot be kept: {error}", {"retry-after": "60"}) from None
        self._glossaries = glossaries


def _write(path: Path, glossaries: Mapping[str, Glossary]) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(_FILE.dump_json(list(glossaries.values())))
