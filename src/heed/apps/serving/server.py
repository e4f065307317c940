"""The process that listens: its socket, and its end by a signal."""

import asyncio
import errno
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn

from heed.apps.serving.app import make_app
from heed.apps.serving.connection import MAX_CONNECTIONS, Connection, max_connections
from heed.apps.serving.service import Service
from heed.errors import HeedError
from heed.runtime.signals import end_signals

KEEP_ALIVE_SECONDS = 30
READY_SECONDS = 0.1  # after which it is looked again whether the server is ready, for systemd


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address. HeedError if it is in use, forbidden or another machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: a label of the host is empty or too long
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise HeedError(f"{host}:{port} is in use; take another --port, or end the program that has it.") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise HeedError(f"cannot listen at {host}:{port} ({reason}).") from None
    return bound


def run(service: Service, listener: socket.socket, log: Callable[[str], None]) -> None:
    """Serves until one of `end_signals`, finishes what was accepted, and returns. A second signal ends it at once."""
    config = uvicorn.Config(
        make_app(service, log),
        http=partial(Connection, service=service, connections={}, most=max_connections()),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(service.limits.grace_seconds)),
        backlog=MAX_CONNECTIONS,
    )
    gc.freeze()  # collections of garbage need not look at what has been loaded, which stays
    _Server(config, service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends by its own signals, with the process's status left to the caller."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        watchdog = asyncio.create_task(_tell_systemd(self._service))
        try:
            await super().serve(sockets)
        finally:
            watchdog.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, _: object) -> None:
            if self.should_exit:
                os._exit(128 + number)
            self._service.ready = False
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in end_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _tell_systemd(service: Service) -> None:
    """Tells systemd, if it asks, that the server is ready and, twice a WatchdogSec, that its event loop runs.

    As sd_notify(3) says.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    is_watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    usec = os.environ.get("WATCHDOG_USEC", "") if is_watched else ""
    seconds = int(usec) / 2e6 if usec.isdecimal() else 0.0
    was_ready = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.setblocking(False)
        while seconds or not was_ready:
            news = ["READY=1"] * (service.ready and not was_ready) + ["WATCHDOG=1"] * (seconds > 0)
            was_ready = was_ready or service.ready
            with suppress(OSError):  # systemd is restarted, or busy
                system.sendto("\n".join(news).encode(), "\0" + address[1:] if address[0] == "@" else address)
            await asyncio.sleep(seconds if was_ready else min(seconds or READY_SECONDS, READY_SECONDS))


def address_of(listener: socket.socket) -> str:
    """The address as people type it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
