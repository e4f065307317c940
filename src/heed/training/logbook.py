"""metrics.jsonl, the progress line, TensorBoard."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heed.config import HeedError
from heed.files import whole_file


class Logbook:
    """What a run measured, by step: a line of metrics.jsonl each, and the same for TensorBoard where it is installed.

    After a resume, entries past the checkpoint are dropped: those steps are run again. keep_faults: but for those of
    faults, where training went back because of them.
    """

    def __init__(
        self,
        run: Path,
        *,
        resumed_step: int,
        report: Callable[[str], None],
        writing: bool = True,
        keep_faults: bool = False,
    ):
        self._path = run / "metrics.jsonl"
        self.report, self._writing = report, writing
        self._board: Any = None
        if not writing:  # one of many workers, and not the first
            return
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            kept = [
                line for line in lines if _step(line) <= resumed_step or (keep_faults and '"kind": "fault"' in line)
            ]
            with whole_file(self._path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=resumed_step + 1)

    def record(self, kind: str, step: int, **numbers: float | str) -> None:
        """Adds one entry; `kind` is train, validation, fault or test."""
        if not self._writing:
            return
        entry = {"kind": kind, "step": step, "time": round(time.time(), 3), **numbers}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise HeedError(f"{self._path}: cannot be written ({error.strerror}).") from None
        if self._board is not None:
            for name, value in numbers.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _step(line: str) -> int:
    """The step of an entry; a line cut off by a crash counts as past every checkpoint."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**62


def duration(seconds: float) -> str:
    """4000 → "1h06m", 75 → "1m15s"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
