"""A job: the parts of a plan that are not there yet are leased to workers, until all are there or given up."""

import heapq
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from heed.errors import HeedError
from heed.leases.plan import Plan
from heed.leases.worker import LeaseWorker
from heed.leases.workforce import Event, Workers, Workforce
from heed.runtime.progress import counted


@dataclass(frozen=True)
class Patience:
    """How long is waited, in seconds, and how often something is tried.

    attempts: of a part; the pauses between them, first, twice that … longest, are two minutes together. losses: of
    workers, before their part is given up. starts: of a worker in a row. silence: a lease is taken back after this many
    times the median part, but not before shortest_silence. report_seconds: between two lines of progress.
    """

    attempts: int = 8
    first_pause: float = 1.0
    longest_pause: float = 60.0
    losses: int = 8
    starts: int = 5
    silence: float = 10.0
    shortest_silence: float = 60.0
    pending: float = 60.0
    report_seconds: float = 30.0
    polled: float = 0.5


@dataclass
class _Slot:
    state: Literal["starting", "idle", "busy", "gone"] = "starting"
    part: int = -1
    since: float = 0.0
    starts: int = 0  # that failed, in a row
    restart_at: float = math.inf
    rest_until: float = 0.0


@dataclass
class Outcome:
    """The result of a job: the sidecars of all its parts, and the parts given up, with the reason.

    before: those that were there before.
    """

    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
    before: frozenset[int] = frozenset()

    @property
    def new(self) -> dict[int, dict[str, Any]]:
        """The sidecars of parts that were not there before."""
        return {part: record for part, record in self.records.items() if part not in self.before}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Parts of one kind.

    doing: a word such as "Encoding"; noun: for one part. sidecar: what the sidecar of a part says, None unless the
    part is there and whole. progress: a line, given what is done so far and how many parts there are. check: raises to
    end the work.
    """

    plan: Plan
    worker: LeaseWorker
    doing: str
    noun: str
    sidecar: Callable[[int], dict[str, Any] | None]
    report: Callable[[str], None]
    progress: Callable[[Outcome, int], str] | None = None
    check: Callable[[Outcome], None] = lambda outcome: None

    def run(self, parts: Iterable[int], workforce: Workforce) -> Outcome:
        """Has those parts made that are of this share and not there. Parts may be given up."""
        mine = workforce.part_of_work(parts)
        outcome = Outcome({part: record for part in mine if (record := self.sidecar(part)) is not None})
        outcome.before = frozenset(outcome.records)
        todo = [part for part in mine if part not in outcome.records]
        if outcome.records:
            self.report(f"{len(outcome.records):,} of {counted(len(mine), self.noun)} are already there.")
        if not todo:
            return outcome
        workers, n_workers, who = workforce.hire(self.worker, len(todo))
        self.report(f"{self.doing} {counted(len(todo), self.noun)}, {who}.")
        try:
            Scheduler(self, workers, n_workers=n_workers).run(todo, outcome)
        finally:
            workers.close()
        return outcome

    def line(self, outcome: Outcome, n_parts: int) -> str:
        """A line on the progress."""
        if self.progress is not None:
            return self.progress(outcome, n_parts)
        return f"{self.doing}: {len(outcome.records):,} of {n_parts:,} done."

    def refuse_given_up(self, outcome: Outcome) -> None:
        """HeedError names the parts that were given up."""
        if outcome.given_up:
            n_parts = len(outcome.records) + len(outcome.given_up)
            names = ", ".join(self.plan.name_of(part) for part in sorted(outcome.given_up)[:10])
            raise HeedError(
                f"{len(outcome.given_up):,} of {n_parts:,} {self.noun}s were given up ({names}): "
                f"{outcome.given_up[min(outcome.given_up)]} Run the same command again for them."
            )


class Scheduler:
    """Leases parts of a job to workers."""

    def __init__(self, job: Job, workers: Workers, *, n_workers: int, patience: Patience | None = None):
        self._job, self._workers, self._report = job, workers, job.report
        self._patience = patience or Patience()
        self._slots = [_Slot() for _ in range(n_workers)]
        self._failures, self._losses = Counter[int](), Counter[int]()  # of parts
        self._due: list[tuple[float, int]] = []  # from when on a part may be leased, a heap
        self._refusal = ""
        self._seconds: list[float] = []  # of the parts that these workers made
        self._waiting_is_reported = False

    def run(self, parts: Iterable[int], outcome: Outcome) -> None:
        """Makes these parts. HeedError if no worker can start, or by `check`."""
        self._due = [(0.0, part) for part in parts]
        if not self._due:
            return
        n_parts = len(self._due) + len(outcome.records)
        reported = now = time.monotonic()
        for number, slot in enumerate(self._slots):
            slot.since = now
            self._workers.start(number)
        while len(outcome.records) + len(outcome.given_up) < n_parts:
            self._lease()
            for event in self._workers.events(self._patience.polled):
                self._hear(event, outcome)
            self._take_back(outcome)
            self._restart()
            self._job.check(outcome)
            if time.monotonic() - reported >= self._patience.report_seconds:
                reported = time.monotonic()
                self._report(self._job.line(outcome, n_parts))

    def _lease(self) -> None:
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.state == "idle" and slot.rest_until <= now and self._due and self._due[0][0] <= now:
                _, slot.part = heapq.heappop(self._due)
                slot.state, slot.since = "busy", now
                self._workers.lease(number, slot.part)

    def _hear(self, event: Event, outcome: Outcome) -> None:
        slot = self._slots[event.slot]
        match event.kind:
            case "ready":
                slot.state, slot.starts = "idle", 0
            case "answered":
                slot.state = "idle"
                if "done" in event.content:
                    record = outcome.records[slot.part] = event.content["done"]
                    if record.get("made", True):  # not by others meanwhile
                        self._seconds.append(record["seconds"])
                elif "stop" in event.content:
                    raise HeedError(event.content["stop"])
                else:
                    self._failed(slot, event.content["failed"], event.content["again"], outcome)
            case "refused":
                self._refusal = str(event.content)
                self._not_started(slot, last=True)
            case "lost":
                self._lost(slot, str(event.content), outcome)

    def _failed(self, slot: _Slot, why: str, again: bool, outcome: Outcome) -> None:
        """Puts a part off, and lets its worker rest: what failed, a disk or a store, is the other parts' too."""
        self._failures[slot.part] += 1
        failures = self._failures[slot.part]
        if not again or failures >= self._patience.attempts:
            self._give_up(slot.part, why, outcome)
            return
        pause = min(self._patience.longest_pause, self._patience.first_pause * 2 ** (failures - 1))
        self._report(f"{self._job.plan.name_of(slot.part)}: {why} Next attempt in {pause:.0f} s.")
        slot.rest_until = time.monotonic() + pause
        heapq.heappush(self._due, (slot.rest_until, slot.part))

    def _lost(self, slot: _Slot, why: str, outcome: Outcome) -> None:
        if slot.state == "gone" or slot.restart_at < math.inf:
            return
        if slot.state == "starting":
            self._refusal = f"a worker ended while it started ({why})."
            self._report(f"A worker is lost ({why}) while it started.")
            self._not_started(slot, last=False)
            return
        if slot.state == "busy":
            self._report(f"A worker is lost ({why}); its part {self._job.plan.name_of(slot.part)} goes to another one.")
            self._return(slot.part, why, outcome)
        slot.state, slot.restart_at = "starting", time.monotonic()

    def _return(self, part: int, why: str, outcome: Outcome) -> None:
        """Takes a lease back; a part that has cost too many workers their lives is given up."""
        self._losses[part] += 1
        if self._losses[part] >= self._patience.losses:
            self._give_up(part, f"{self._losses[part]} workers were lost over it ({why}).", outcome)
        else:
            heapq.heappush(self._due, (0.0, part))

    def _give_up(self, part: int, why: str, outcome: Outcome) -> None:
        outcome.given_up[part] = why
        self._report(f"{self._job.plan.name_of(part)} is given up: {why}")

    def _not_started(self, slot: _Slot, *, last: bool) -> None:
        slot.starts += 1
        if last or slot.starts >= self._patience.starts:
            slot.state = "gone"
            self._report(f"A worker is given up: {self._refusal}")
            if all(one.state == "gone" for one in self._slots):
                raise HeedError(self._refusal)
        else:
            slot.restart_at = time.monotonic() + self._patience.first_pause * 2 ** (slot.starts - 1)

    def _take_back(self, outcome: Outcome) -> None:
        """Takes leases back from workers that have been silent for too long, which are replaced."""
        if not self._seconds:
            return  # nothing says how long a part takes; those of an earlier run may have been made elsewhere
        limit = max(self._patience.shortest_silence, self._patience.silence * statistics.median(self._seconds))
        now = time.monotonic()
        for slot in self._slots:
            if slot.state == "busy" and now - slot.since > limit:
                name = self._job.plan.name_of(slot.part)
                self._report(f"{name}: its worker has been silent for {limit:,.0f} s; another one takes it.")
                self._return(slot.part, f"silent for {limit:,.0f} s", outcome)
                slot.state, slot.restart_at = "starting", now

    def _restart(self) -> None:
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.state == "starting" and slot.restart_at <= now:
                slot.restart_at, slot.since = math.inf, now
                self._workers.start(number)
        pending = [slot for slot in self._slots if slot.state == "starting"]
        if (
            not self._waiting_is_reported
            and pending
            and all(slot.state in ("starting", "gone") for slot in self._slots)
            and min(now - slot.since for slot in pending) > self._patience.pending
        ):
            self._waiting_is_reported = True
            self._report("No worker has started for a minute: no node has room for one. Waiting for nodes.")
