"""Leases: a scheduler with workers that die, fail, are silent or never start, as a script says."""

import random
import time
from collections import deque

import pytest

from heed.data.preparation.shard import ShardWorker
from heed.errors import HeedError
from heed.leases.job import Job, Outcome, Patience, Scheduler
from heed.leases.workforce import Event

FAST = Patience(
    first_pause=0.001, longest_pause=0.002, shortest_silence=0.02, pending=0.01, polled=0.001, report_seconds=0.0
)
DONE = {"done": {"rows": 1, "bad_rows": 0, "seconds": 0.0, "tokens": 1}}


class Numbered:
    """A plan whose parts are named by their numbers."""

    def name_of(self, part):
        return f"part-{part:05d}"


class Script:
    """Workers that do with a part what `answers` says: make it, "die" or "hang"."""

    def __init__(self, answers=lambda slot, part: DONE, starts=lambda slot: "ready"):
        self._answers, self._starts = answers, starts
        self.leased: list[int] = []
        self.started: list[int] = []
        self._events: deque[Event] = deque()
        self._busy: dict[int, int] = {}

    def start(self, slot):
        self.started.append(slot)
        self._busy.pop(slot, None)
        self._events = deque(event for event in self._events if event.slot != slot)
        match self._starts(slot):
            case "ready":
                self._events.append(Event(slot, "ready"))
            case "refused":
                self._events.append(Event(slot, "refused", "model: missing."))
            case "die":
                self._events.append(Event(slot, "lost", "signal 9"))

    def lease(self, slot, part):
        assert slot not in self._busy, "a worker has one part at a time"
        assert part not in self._busy.values(), "a part has one worker at a time"
        self._busy[slot] = part
        self.leased.append(part)

    def events(self, timeout):
        for slot, part in list(self._busy.items()):
            answer = self._answers(slot, part)
            if answer != "hang":
                del self._busy[slot]
                self._events.append(
                    Event(slot, "lost", "signal 9") if answer == "die" else Event(slot, "answered", answer)
                )
        events = list(self._events)
        self._events.clear()
        return events

    def close(self):
        pass


def run(workers, n_parts=5, n_workers=2, check=lambda outcome: None):
    outcome, lines = Outcome(), []
    job = Job(
        plan=Numbered(),
        worker=ShardWorker("nowhere", 1),
        doing="Making",
        noun="part",
        sidecar=lambda part: None,
        report=lines.append,
        progress=lambda outcome, n: f"{len(outcome.records)} of {n}",
        check=check,
    )
    scheduler = Scheduler(job, workers, n_workers=n_workers, patience=FAST)
    scheduler.run(range(n_parts), outcome)
    return outcome, lines


def test_every_part_is_made_once_if_nothing_fails():
    workers = Script()
    outcome, lines = run(workers)
    assert sorted(workers.leased) == sorted(outcome.records) == [0, 1, 2, 3, 4]
    assert lines[-1] in ("4 of 5", "5 of 5")


def test_whatever_dies_fails_and_hangs_every_part_is_made():
    for seed in range(20):
        draw = random.Random(seed)
        fates = {part: [draw.choice(["die", "hang", "fail"]) for _ in range(draw.randrange(4))] for part in range(8)}
        hanging: dict[int, bool] = {}

        def answer(slot, part, fates=fates, hanging=hanging):
            if hanging.get(slot):
                return "hang"
            fate = fates[part].pop() if fates[part] else "done"
            hanging[slot] = fate == "hang"
            return {"fail": {"failed": "disk full.", "again": True}, "done": DONE}.get(fate, fate)

        def start(slot, hanging=hanging):
            hanging.pop(slot, None)
            return "ready"

        fates[0] = []  # until a part is there, nothing says how long one takes
        outcome, _ = run(Script(answer, start), n_parts=8, n_workers=3)
        assert sorted(outcome.records) == list(range(8)) and not outcome.given_up, seed


def test_a_part_that_always_fails_is_named_and_the_others_are_made():
    def answer(slot, part):
        return {"failed": "the disk is full.", "again": True} if part == 2 else DONE

    workers = Script(answer)
    outcome, lines = run(workers)
    assert sorted(outcome.records) == [0, 1, 3, 4] and outcome.given_up == {2: "the disk is full."}
    assert workers.leased.count(2) == FAST.attempts
    assert any("part-00002" in line and "Next attempt" in line for line in lines)


def test_a_part_that_fails_for_good_is_not_tried_again():
    workers = Script(lambda slot, part: {"failed": "no.", "again": False} if part == 1 else DONE)
    outcome, _ = run(workers)
    assert workers.leased.count(1) == 1 and list(outcome.given_up) == [1]


def test_a_part_that_costs_its_workers_their_lives_is_given_up():
    workers = Script(lambda slot, part: "die" if part == 3 else DONE)
    outcome, _ = run(workers)
    assert workers.leased.count(3) == FAST.losses and list(outcome.given_up) == [3] and len(outcome.records) == 4


def test_a_worker_that_never_starts_stops_nothing():
    outcome, _ = run(Script(starts=lambda slot: "ready" if slot == 0 else "pending"))
    assert len(outcome.records) == 5


def test_a_worker_that_is_refused_stops_nothing_unless_all_are():
    outcome, lines = run(Script(starts=lambda slot: "ready" if slot == 0 else "refused"))
    assert len(outcome.records) == 5 and "A worker is given up: model: missing." in lines
    with pytest.raises(HeedError, match="model: missing."):
        run(Script(starts=lambda slot: "refused"))
    with pytest.raises(HeedError, match=r"ended while it started \(signal 9\)"):
        run(Script(starts=lambda slot: "die"))


def test_that_all_workers_wait_for_a_node_is_said():
    class Late(Script):
        asked = 0

        def events(self, timeout):
            self.asked += 1
            time.sleep(FAST.pending / 10)
            if self.asked == 20:  # a node has come
                self._events.extend(Event(slot, "ready") for slot in (0, 1))
            return super().events(timeout)

    outcome, lines = run(Late(starts=lambda slot: "pending"))
    assert len(outcome.records) == 5 and sum("Waiting for nodes" in line for line in lines) == 1


def test_a_check_of_what_is_done_or_a_worker_ends_the_run():
    def two_are_enough(outcome):
        if len(outcome.records) == 2:
            raise HeedError("two are enough.")

    workers = Script()
    with pytest.raises(HeedError, match="two are enough"):
        run(workers, n_workers=1, check=two_are_enough)
    assert len(workers.leased) == 2
    with pytest.raises(HeedError, match="bad.jsonl, row 7"):
        run(Script(lambda slot, part: {"stop": "bad.jsonl, row 7: not JSON"}))
