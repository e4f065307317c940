"""Crews: the workers of a driver, in this process, in processes of this machine, or actors of Ray.

A crew starts a worker for a numbered slot, hands it a part, and tells what became of both.
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
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.worker import LeaseWorker, Loading
from heed.runtime.process_tuning import tune_process
from heed.runtime.python_process import HOME, python_command, python_environment

LOOPBACK = "127.0.0.1"
CONNECTED_SECONDS = 10.0
STORE_BYTES = 2**27  # of Ray's shared memory, which parts do not pass through


class Event(NamedTuple):
    """News of a slot's worker. ready: it waits for parts. refused: it cannot work at all, and why.

    answered: what `LeaseWorker.attempt` gives. lost: it died.
    """

    slot: int
    kind: Literal["ready", "refused", "answered", "lost"]
    content: Any = None


class Crew(Protocol):
    def start(self, slot: int) -> None:
        """Starts the slot's worker; one that it has is ended first."""

    def lease(self, slot: int, part: int) -> None:
        """Hands a part to a worker that is ready."""

    def events(self, timeout: float) -> list[Event]:
        """The news since the last call; waits for some at most this long, in seconds."""

    def close(self) -> None:
        """Ends all workers."""


class ThisProcess:
    """A crew of one, which works while events are awaited."""

    def __init__(self, loading: Loading):
        self._worker: LeaseWorker = loading.make()
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

    def __init__(self, loading: Loading, *, n_gpus: int):
        self._loading, self._n_gpus = loading, n_gpus
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._heard: queue.SimpleQueue[tuple[subprocess.Popen[str], Event]] = queue.SimpleQueue()

    def start(self, slot: int) -> None:
        self._end(slot)
        loading: Any = self._loading  # of a class that is a dataclass
        if self._n_gpus:
            loading = replace(loading, device=f"cuda:{slot % self._n_gpus}")
        threads = str(loading.threads)
        worker = subprocess.Popen(
            python_command("-m", loading.module, json.dumps(asdict(loading))),
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
                    found = json.loads(line)
                except ValueError:  # cut off by its death
                    break
                if "refused" in found:
                    event = Event(slot, "refused", found["refused"])
                else:
                    event = Event(slot, "ready") if "ready" in found else Event(slot, "answered", found)
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
        found = []
        with suppress(queue.Empty):
            found.append(self._heard.get(timeout=timeout))
            while True:
                found.append(self._heard.get_nowait())
        return [event for worker, event in found if self._workers.get(event.slot) is worker]

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

    def __init__(self, loading: Loading):
        tune_process()
        self._worker = loading.make()

    def ready(self) -> bool:
        """Answers: an actor that does so is alive, and its worker made."""
        return True

    def attempt(self, part: int) -> dict[str, Any]:
        """As the worker's."""
        return self._worker.attempt(part)


class RayActors:
    """Actors of a Ray cluster, which is joined, or if there is none, started for this machine on loopback."""

    def __init__(self, loading: Loading, *, address: str, n_workers: int | None, gpus: float):
        # Actors without a GPU keep CUDA's variables, as Ray is about to do by default.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Else Ray packs the current folder, with all its files, if `uv run` has started this process.
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        self._ray = ray = needed("ray", "--cluster works with")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "namespace": "heed"}
        there = _running_cluster() if address == "auto" else address
        with _unreachable_is_an_error(address), chdir(HOME):  # Ray's workers import from the current folder
            if there is None:
                _stay_on_loopback()
                n_cpus = (n_workers or os.cpu_count() or 1) * loading.threads
                ray.init(
                    address="local",
                    num_cpus=n_cpus,
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    _node_ip_address=LOOPBACK,
                    **options,
                )
            else:
                check_address(there)
                if _is_on_loopback(there):
                    _stay_on_loopback()
                ray.init(address=address, **options)  # "auto" as it is: only then Ray takes its token from the home
        self._loading = loading
        self._actor = ray.remote(_Actor).options(
            num_cpus=loading.threads, num_gpus=gpus, max_restarts=0, max_task_retries=0
        )
        self._actors: dict[int, Any] = {}
        self._awaited: dict[Any, tuple[int, Any, bool]] = {}  # slot, actor, whether it is being started

    def cpus(self) -> int:
        """Those of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def gpus(self) -> int:
        """Those of the cluster."""
        return int(self._ray.cluster_resources().get("GPU", 0))

    def is_open(self) -> bool:
        """Whether a node of the cluster is reached at another address than loopback."""
        return any(not ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback for node in self._ray.nodes())

    def start(self, slot: int) -> None:
        self._end(slot)
        actor = self._actors[slot] = self._actor.remote(self._loading)
        self._awaited[actor.ready.remote()] = slot, actor, True

    def lease(self, slot: int, part: int) -> None:
        actor = self._actors[slot]
        self._awaited[actor.attempt.remote(part)] = slot, actor, False

    def events(self, timeout: float) -> list[Event]:
        if not self._awaited:
            time.sleep(timeout)
            return []
        found, _ = self._ray.wait(list(self._awaited), num_returns=1, timeout=timeout)
        if found:  # others may be there too
            found, _ = self._ray.wait(list(self._awaited), num_returns=len(self._awaited), timeout=0)
        events = []
        for answer in found:
            slot, actor, starting = self._awaited.pop(answer)
            if self._actors.get(slot) is actor:
                events.append(self._event(slot, answer, starting))
        return events

    def _event(self, slot: int, answer: Any, starting: bool) -> Event:
        try:
            content = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            cause = _cause(error)
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
            "start one with ray start --head, set RAY_AUTH_MODE=token if it has a token, or take --cluster local."
        ) from None


def _cause(error: BaseException) -> BaseException | None:
    return getattr(error, "cause", None) or error.__cause__


def check_address(cluster: str) -> None:
    """HeedError unless `cluster` is none, local, auto, or an address at which something answers.

    Ray itself would try for many minutes.
    """
    if cluster in ("none", "local", "auto"):
        return
    match = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:([0-9]{1,5})", cluster)
    if match is None:
        raise HeedError(f"--cluster {cluster}: expected none, local, auto or a Ray cluster's HOST:PORT.")
    try:
        socket.create_connection((match[1], int(match[2])), timeout=CONNECTED_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeedError(
            f"--cluster {cluster}: nothing answers there ({reason}); start a cluster "
            "with ray start --head, or take --cluster local."
        ) from None


def _stay_on_loopback() -> None:
    """Makes this process, and the nodes that it starts, use loopback alone.

    Ray takes this machine's other address in place of 127.0.0.1, except where it knows no clusters of several machines:
    the switch for that, which Windows and macOS have by default, is read when Ray is imported.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    needed("ray._private.ray_constants", "--cluster works with").ENABLE_RAY_CLUSTER = False


def _running_cluster() -> str | None:
    """The address of the cluster that the environment names, or that `ray start` has made this machine part of."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    services = needed("ray._private.services", "--cluster works with")
    try:
        named = Path(tempfile.gettempdir(), "ray", "ray_current_cluster").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return named if named in services.find_gcs_addresses() else None


def _is_on_loopback(address: str) -> bool:
    """Whether a cluster listens on loopback alone: Ray would look for it at this machine's other address."""
    host, _, port = address.rpartition(":")
    if host not in (LOOPBACK, "localhost"):
        return False
    other = needed("ray.util", "--cluster works with").get_node_ip_address()
    try:
        socket.create_connection((other, int(port)), timeout=CONNECTED_SECONDS).close()
    except OSError:
        return True
    return bool(other == LOOPBACK)
