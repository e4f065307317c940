"""The process that listens: its socket, and its end by a signal."""

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from heed.apps.serving.app import make_app
from heed.apps.serving.connection import MAX_CONNECTIONS, Connection, max_connections
from heed.apps.serving.service import Service
from heed.errors import HeedError

KEEP_ALIVE_SECONDS = 30


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
    except (
        OSError,
        OverflowError,
        UnicodeError,
    ) as error:  # a host name with an empty or overlong label raises UnicodeError
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise HeedError(f"{host}:{port} is in use; take another --port, or end the program that has it.") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise HeedError(f"cannot listen at {host}:{port} ({reason}).") from None
    return bound


def run(service: Service, listener: socket.socket, log: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM, finishes what was accepted, and returns. A second signal ends it at once."""
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
    _Server(config, service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends by its own signals, with the process's status left to the caller."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int, _: object) -> None:
            if self.should_exit:
                os._exit(128 + number)
            self._service.ready = False
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def address_of(listener: socket.socket) -> str:
    """The address as people type it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
