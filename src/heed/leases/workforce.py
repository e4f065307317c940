"""Who works: this process, several of this machine, or actors of Ray.

`Workers` starts a worker for a numbered slot, hands it a part, and tells what became of both.
"""

import ipaddress
import json
import os
import queue
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import PLANNED_SECONDS
from heed.leases.worker import LeaseWorker
from heed.runtime.cores import n_cores
from heed.runtime.process_tuning import tune_process
from heed.runtime.progress import counted
from heed.runtime.python_process import HOME, python_environment

LOOPBACK = "127.0.0.1"
CONNECTED_SECONDS = 10.0
STORE_BYTES = 2**27  # of Ray's shared memory, which parts do not pass through


@dataclass(frozen=True, kw_only=True)
class Workforce:
    """Who works, and on how many of the parts.

    cluster: "none", or a Ray cluster: "auto" or an address. n_workers: without a cluster, processes of this machine, 0
    for as many as there is room for, None for this process alone; in a cluster, 0 and None are as many as it has room
    for. threads: of each; None for an equal share of the cores. gpus: of each. share: the i-th of n shares, from 1.
    """

    cluster: str = "none"
    n_workers: int | None = None
    threads: int | None = None
    gpus: float = 0
    share: tuple[int, int] = (1, 1)

    @property
    def is_this_process(self) -> bool:
        """Whether no other process works."""
        return self.cluster == "none" and self.n_workers in (None, 1)

    @property
    def wait(self) -> float | None:
        """Seconds for which a folder is awaited, in which other shares begin too; None if nobody else works."""
        return PLANNED_SECONDS if self.share[1] > 1 else None

    def part_of_work(self, parts: Iterable[int]) -> list[int]:
        """The parts that belong to this share."""
        i, n = self.share
        return [part for part in parts if part % n == i - 1]

    def check(self) -> None:
        """HeedError for what cannot work, before hours of reading."""
        if self.cluster == "none":
            if self.gpus not in (0, 1):
                raise HeedError(f"--gpus-per-worker {self.gpus:g}: expected 0 or 1, or a Ray cluster that shares GPUs.")
            return
        check_address(self.cluster)
        if find_spec("ray") is None:  # imported later: see `RayActors`
            needed("ray", "--cluster works with")

    def n_local(self) -> int:
        """How many workers this machine would have."""
        if self.n_workers is None:
            return 1
        if self.n_workers or not self.gpus:
            return self.n_workers or max(1, n_cores() // (self.threads or 1))
        return max(1, int(_n_gpus() / self.gpus))

    def hire(self, worker: LeaseWorker, n_parts: int) -> "tuple[Workers, int, str]":
        """Workers like this one, how many they are, which is no more than there are parts, and a few words for both."""
        if self.is_this_process:
            return ThisProcess(replace(worker, threads=self.threads or n_cores())), 1, "in this process"
        if self.cluster == "none":
            n_workers = min(n_parts, self.n_local())
            threads = self.threads or max(1, n_cores() // n_workers)
            who = f"by {counted(n_workers, 'process')} of {counted(threads, 'thread')}"
            return Processes(replace(worker, threads=threads), n_gpus=_n_gpus() if self.gpus else 0), n_workers, who
        threads = self.threads or 1
        workers = RayActors(
            replace(worker, threads=threads), address=self.cluster, n_workers=self.n_workers or None, gpus=self.gpus
        )
        room = int(workers.count("GPU") / self.gpus) if self.gpus else workers.count("CPU") // threads
        n_workers = min(n_parts, self.n_workers or max(1, room))
        who = f"by {counted(n_workers, 'worker')} of {counted(threads, 'thread')} on a Ray cluster"
        if workers.is_open():
            who += (
                ", whose ports are open: without RAY_AUTH_MODE=token, whoever reaches one can run code there; keep "
                "them in a private network"
            )
        return workers, n_workers, who


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


class Event(NamedTuple):
    """News of a slot's worker. ready: it waits for parts. refused: it cannot work at all, and why.

    answered: what `LeaseWorker.attempt` gives. lost: it died.
    """

    slot: int
    kind: Literal["ready", "refused", "answered", "lost"]
    content: Any = None


class Workers(Protocol):
    def start(self, slot: int) -> None:
        """Starts the slot's worker; one that it has is ended first."""

    def lease(self, slot: int, part: int) -> None:
        """Hands a part to a worker that is ready."""

    def events(self, timeout: float) -> list[Event]:
        """The news since the last call; waits for some at most this long, in seconds."""

    def close(self) -> None:
        """Ends all workers."""


class ThisProcess:
    """One worker, which works while events are awaited."""

    def __init__(self, worker: LeaseWorker):
        worker.open()
        self._worker = worker
        self._events: list[Event] = []
        self._part: int | None = None

    def start(self, slot: int) -> None:
        self._events.append(Event(slot, "ready"))

    def lease(self, slot: int, part: int) -> None:
        self._part = part

    def events(self, timeout: float) -> list[Event]:
        if self._part is not None:
            part, self._part = self._part, None
            self._events.append(Event(0, "answered", self._worker.attempt(part)))
        elif not self._events:
            time.sleep(timeout)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._worker.close()


class Processes:
    """Processes of this machine. They end when this one does, however it ends."""

    def __init__(self, worker: LeaseWorker, *, n_gpus: int):
        self._worker, self._n_gpus = worker, n_gpus
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._heard: queue.SimpleQueue[tuple[subprocess.Popen[str], Event]] = queue.SimpleQueue()

    def start(self, slot: int) -> None:
        self._end(slot)
        device = f"cuda:{slot % self._n_gpus}" if self._n_gpus else self._worker.device
        threads = str(self._worker.threads)
        worker = subprocess.Popen(
            replace(self._worker, device=device).command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=python_environment(OMP_NUM_THREADS=threads, RAYON_NUM_THREADS=threads),
            start_new_session=True,  # Ctrl-C is the driver's
        )
        self._workers[slot] = worker
        threading.Thread(target=self._hear, args=(slot, worker), daemon=True).start()

    def _hear(self, slot: int, worker: "subprocess.Popen[str]") -> None:
        assert worker.stdout is not None
        with worker.stdout as answers:
            for line in answers:
                try:
                    answer = json.loads(line)
                except ValueError:  # cut off by its death
                    break
                if "refused" in answer:
                    event = Event(slot, "refused", answer["refused"])
                else:
                    event = Event(slot, "ready") if "ready" in answer else Event(slot, "answered", answer)
                self._heard.put((worker, event))
        status = worker.wait()
        why = f"signal {-status}" if status < 0 else f"status {status}"
        self._heard.put((worker, Event(slot, "lost", f"its process ended with {why}")))

    def lease(self, slot: int, part: int) -> None:
        stdin = self._workers[slot].stdin
        assert stdin is not None
        with suppress(OSError):  # it has just died, which will be heard
            stdin.write(f"{part}\n")
            stdin.flush()

    def events(self, timeout: float) -> list[Event]:
        heard = []
        with suppress(queue.Empty):
            heard.append(self._heard.get(timeout=timeout))
            while True:
                heard.append(self._heard.get_nowait())
        return [event for worker, event in heard if self._workers.get(event.slot) is worker]

    def _end(self, slot: int) -> None:
        worker = self._workers.pop(slot, None)
        if worker is not None:
            worker.kill()
            worker.wait()
            if worker.stdin is not None:
                with suppress(OSError):  # a number that it did not take
                    worker.stdin.close()

    def close(self) -> None:
        for slot in list(self._workers):
            self._end(slot)


class _Actor:
    """A worker in a process of Ray's, which is set up as Heed's own are."""

    def __init__(self, worker: LeaseWorker):
        tune_process()
        worker.open()
        self._worker = worker

    def ready(self) -> bool:
        """Answers: an actor that does so is alive, and its worker made."""
        return True

    def attempt(self, part: int) -> dict[str, Any]:
        """Implements `LeaseWorker.attempt`."""
        return self._worker.attempt(part)


class RayActors:
    """Actors of a Ray cluster, which is joined, or if there is none, started for this machine on loopback."""

    def __init__(self, worker: LeaseWorker, *, address: str, n_workers: int | None, gpus: float):
        # Actors without a GPU keep CUDA's variables, as Ray is about to do by default.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Else Ray packs the current folder, with all its files, if `uv run` has started this process.
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "namespace": "heed"}
        there = _running_cluster() if address == "auto" else address
        if there is not None:
            check_address(there)
        if there is None or _is_on_loopback(there):
            # This process, and the nodes that it starts, shall use loopback alone. Ray takes this machine's other
            # address in place of 127.0.0.1, except where it knows no clusters of several machines: the switch for that,
            # which Windows and macOS have by default, is read when Ray is imported.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self._ray = ray = needed("ray", "--cluster works with")
        with _unreachable_is_an_error(address), chdir(HOME):  # Ray's workers import from the current folder
            if there is None:
                n_cpus = (n_workers or os.cpu_count() or 1) * worker.threads
                ray.init(
                    address="local",
                    num_cpus=n_cpus,
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    **options,
                )
            else:
                ray.init(address=address, **options)  # "auto" as it is: only then Ray takes its token from the home
        self._worker = worker
        self._actor = ray.remote(_Actor).options(
            num_cpus=worker.threads, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        self._actors: dict[int, Any] = {}
        self._awaited: dict[Any, tuple[int, Any, bool]] = {}  # slot, actor, whether it is being started

    def count(self, kind: Literal["CPU", "GPU"]) -> int:
        """The CPUs or GPUs of the cluster."""
        return int(self._ray.cluster_resources().get(kind, 0))

    def is_open(self) -> bool:
        """Whether a node of the cluster is reached at another address than loopback."""
        return any(not ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback for node in self._ray.nodes())

    def start(self, slot: int) -> None:
        self._end(slot)
        actor = self._actors[slot] = self._actor.remote(self._worker)
        self._awaited[actor.ready.remote()] = slot, actor, True

    def lease(self, slot: int, part: int) -> None:
        actor = self._actors[slot]
        self._awaited[actor.attempt.remote(part)] = slot, actor, False

    def events(self, timeout: float) -> list[Event]:
        if not self._awaited:
            time.sleep(timeout)
            return []
        heard, _ = self._ray.wait(list(self._awaited), num_returns=1, timeout=timeout)
        if heard:  # others may be there too
            heard, _ = self._ray.wait(list(self._awaited), num_returns=len(self._awaited), timeout=0)
        events = []
        for answer in heard:
            slot, actor, starting = self._awaited.pop(answer)
            if self._actors.get(slot) is actor:
                events.append(self._event(slot, answer, starting))
        return events

    def _event(self, slot: int, answer: Any, starting: bool) -> Event:
        try:
            content = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error.__cause__
            if isinstance(cause, HeedError) or (starting and "HeedError: " in str(error)):
                return Event(slot, "refused", str(error).rpartition("HeedError: ")[2].partition("\n")[0])
            return Event(slot, "lost", f"{type(error).__name__}")
        return Event(slot, "ready") if starting else Event(slot, "answered", content)

    def _end(self, slot: int) -> None:
        actor = self._actors.pop(slot, None)
        if actor is not None:
            self._ray.kill(actor)

    def close(self) -> None:
        for slot in list(self._actors):
            self._end(slot)
        self._ray.shutdown()


@contextmanager
def _unreachable_is_an_error(address: str) -> Iterator[None]:
    try:
        yield
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise HeedError(
            f"--cluster {address}: no Ray cluster can be reached there ({' '.join(str(error).split())[:200]}); "
            "start one with ray start --head, set RAY_AUTH_MODE=token if it has a token, or take --workers."
        ) from None


def check_address(cluster: str) -> None:
    """HeedError unless `cluster` is none, auto, or an address at which something answers.

    Ray itself would try for many minutes.
    """
    if cluster in ("none", "auto"):
        return
    match = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:([0-9]{1,5})", cluster)
    if match is None:
        raise HeedError(f"--cluster {cluster}: expected none, auto or a Ray cluster's HOST:PORT.")
    try:
        socket.create_connection((match[1], int(match[2])), timeout=CONNECTED_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeedError(
            f"--cluster {cluster}: nothing answers there ({reason}); start a cluster "
            "with ray start --head, or take --workers."
        ) from None


def _running_cluster() -> str | None:
    """The address of the cluster that the environment names, or that `ray start` has made this machine part of."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    try:
        named = Path(tempfile.gettempdir(), "ray", "ray_current_cluster").read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return None
    return named if _answers(named) else None  # the file of a cluster that was killed stays


def _is_on_loopback(address: str) -> bool:
    """Whether a cluster listens on loopback alone: Ray would look for it at this machine's other address."""
    host, _, port = address.rpartition(":")
    if host not in (LOOPBACK, "localhost"):
        return False
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # of no machine, and nothing is sent: only this machine's side is asked for
        return not _answers(f"{probe.getsockname()[0]}:{port}")
    return True


def _answers(address: str) -> bool:
    with suppress(HeedError):
        check_address(address)
        return True
    return False
