"""The inputs of a plan, and how a plan is made once though many processes ask for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.config import shown
from heed.leases.storage import facts, is_url
from heed.runtime.locks import locked
from heed.runtime.manifest import sha256_of

PLAN = "plan.json"
PLANNED_SECONDS = 3600.0  # how long the plan of another process is awaited


@dataclass(frozen=True)
class Input:
    """A file, as it was when the plan was made. digest: SHA-256 of a file, etag of an object.

    version: as long as it and the size stay, a file is not hashed again.
    """

    name: str
    n_bytes: int
    digest: str
    version: str
    rows: int

    def is_unchanged(self) -> bool:
        """Whether it has the content that was planned; reads it only if it was written since."""
        found = facts(self.name)
        if found is None or found.n_bytes != self.n_bytes:
            return False
        return found.version == self.version or (not is_url(self.name) and sha256_of(Path(self.name)) == self.digest)


def counted(n: int, noun: str) -> str:
    """The number and the noun, such as "1 part" or "2 parts"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the facts of two plans differ, such as "settings.beam_size (4, now 5)"."""
    before, now = _flat(before), _flat(now)
    return [
        f"{key} ({shown(before.get(key, 'none'))}, now {shown(now.get(key, 'none'))})"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def _flat(values: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{name}.{key}" if name else key
        flat |= _flat(value, full) if isinstance(value, dict) else {full: value}
    return flat


@contextmanager
def planning(out: str) -> Iterator[None]:
    """Keeps other processes from planning at the same time; leaves no folder behind if planning fails."""
    if is_url(out):
        yield  # no locks there: two plans of the same are the same
        return
    folder = Path(out)
    locked_before = (folder / ".lock").exists()
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        with locked(folder, wait=PLANNED_SECONDS):
            yield
    finally:
        if not (folder / PLAN).exists():
            with suppress(OSError):
                if not locked_before:
                    (folder / ".lock").unlink()
                for one in made:
                    one.rmdir()
