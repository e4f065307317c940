"""A run's log: metrics.jsonl, TensorBoard's where it is installed, and callbacks."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from heed.config import reason
from heed.data.reading.lines import MAX_LINE_BYTES
from heed.errors import HeedError
from heed.runtime.files import own_file, whole_file
from heed.runtime.reading import regular_file
from heed.training.callbacks import NO_CALLBACKS, Callbacks, StepRecord, ValidationRecord


class Logbook:
    """Appends what a run measures to metrics.jsonl, one entry per line, and to TensorBoard.

    When a run resumes, entries after its checkpoint are dropped, since those steps are repeated, but for faults because
    of which training went back: those that had fewer `rollbacks` before them than the run has now. `repeated` is a kind
    of which the entries at the checkpoint are dropped as well, since they are about to be recorded again. Damaged lines
    are dropped too.
    """

    def __init__(
        self,
        run: Path,
        *,
        resumed_step: int,
        report: Callable[[str], None],
        writing: bool = True,
        rollbacks: int = 0,
        repeated: str | None = None,
        callbacks: Callbacks = NO_CALLBACKS,
    ):
        self._path = run / "metrics.jsonl"
        self.report, self._writing, self._callbacks = report, writing, callbacks
        self._board: Any = None
        if not writing:  # one of several workers, and not the first
            return
        try:
            if os.path.lexists(self._path):
                self._drop_past(resumed_step, rollbacks, repeated)
            self._board = _board(run / "tensorboard", resumed_step, report)
        except OSError as error:
            raise HeedError(f"{error.filename or self._path}: cannot be opened ({error.strerror}).") from None

    def _drop_past(self, resumed_step: int, rollbacks: int, repeated: str | None) -> None:
        # Opening the old file first refuses a link, which would otherwise be replaced.
        with (
            open(self._path, "rb", opener=own_file) as old,
            whole_file(self._path) as temporary,
            temporary.open("wb") as new,
        ):
            for line, entry in _entries(old):
                kind, step = entry.get("kind"), entry["step"]
                earlier = entry.get("rollbacks", 0)  # not known to older runs
                led_back = kind == "fault" and isinstance(earlier, int) and earlier < rollbacks
                is_past = step > resumed_step and not led_back
                is_repeated = step == resumed_step and repeated is not None and kind == repeated
                if not (is_past or is_repeated):
                    new.write(line.rstrip(b"\n") + b"\n")

    def record(self, kind: str, step: int, **numbers: float | str) -> None:
        """Adds one entry; `kind` is train, validation, stage, fault, average or test."""
        if not self._writing:
            return
        # JSON has neither NaN nor ∞.
        known = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in numbers.items()}
        entry = {"kind": kind, "step": step, "time": round(time.time(), 3), **known}
        try:
            with open(self._path, "a", encoding="utf-8", opener=own_file) as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise HeedError(f"{self._path}: cannot be written ({error.strerror}).") from None
        if kind != "fault":
            curves = f"{kind}/{numbers['name']}" if "name" in numbers else kind  # each test set has its own
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._draw("add_scalar", f"{curves}/{name}", value, step)
        self._call_back(kind, step, numbers)

    def _draw(self, method: str, *arguments: Any) -> None:
        """Calls TensorBoard, which raises the fault of a write again in every later call. It is not worth a run."""
        if self._board is None:
            return
        try:
            getattr(self._board, method)(*arguments)
        except OSError as error:
            self._board = None
            self.report(f"TensorBoard's curves cannot be written ({error.strerror}); the run continues without them.")

    def _call_back(self, kind: str, step: int, numbers: Mapping[str, float | str]) -> None:
        values = {name: float(value) for name, value in numbers.items() if not isinstance(value, str)}
        if kind == "train" and self._callbacks.on_step is not None:
            self._callbacks.on_step(StepRecord(step=step, epoch=int(values.pop("epoch")), **values))
        elif kind == "validation" and self._callbacks.on_validation is not None:
            self._callbacks.on_validation(ValidationRecord(step, values))

    def close(self) -> None:
        self._draw("close")


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a metrics.jsonl, oldest first, each with an integer `step`; none if there is no file.

    Damaged lines are skipped. HeedError if it cannot be read or is not a regular file.
    """
    if not os.path.lexists(path):
        return
    try:
        with regular_file(path) as file:
            for _, entry in _entries(file):
                yield entry
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


def _board(folder: Path, resumed_step: int, report: Callable[[str], None]) -> Any:
    """TensorBoard's writer, or None where it is not installed or does not work."""
    writer = _summary_writer(report)
    return None if writer is None else writer(str(folder), purge_step=resumed_step + 1)


@cache
def _summary_writer(report: Callable[[str], None]) -> Any:
    """TensorBoard's class, or None; that it is installed but does not work is reported once."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    except Exception as error:  # an old one beside a new numpy or protobuf may raise anything
        report(f"TensorBoard does not work here ({reason(error)}); its curves are not written.")
        return None
    return SummaryWriter


def _entries(file: BinaryIO) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, entry) of each undamaged line. Lines longer than MAX_LINE_BYTES count as damaged."""
    starts_line = True
    while piece := file.readline(MAX_LINE_BYTES):
        ends_line = piece.endswith(b"\n") or len(piece) < MAX_LINE_BYTES
        if starts_line and ends_line and (entry := _entry(piece)) is not None:
            yield piece, entry
        starts_line = ends_line


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None


def short(value: float, digits: int = 3) -> str:
    """A number of dev for people: 41.25 → "41.250", 12345678 → "1.23e+07", ∞ → "inf"."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
