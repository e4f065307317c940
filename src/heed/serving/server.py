"""The process that listens: its socket, its connections, and its end by a signal."""

import asyncio
import errno
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heed.errors import HeedError
from heed.serving.app import make_app
from heed.serving.faults import Fault
from heed.serving.requests import error_response
from heed.serving.service import Service

MAX_CONNECTIONS = 1024  # if all of more are in use, the newest are refused with 503
OTHER_FILES = 256  # that the process may have open
MAX_HEAD_BYTES = 2**16
FIELD_BYTES = 32  # that a field of a head counts at least
HEADER_SECONDS = 20  # within which a request's headers must have come
KEEP_ALIVE_SECONDS = 30


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address. HeedError if it is in use, forbidden or none of this machine's."""
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
        http=partial(_Connection, service=service, connections={}, most=_max_connections()),  # type: ignore[arg-type]
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


class _Connection(HttpToolsProtocol):
    """A connection whose errors are JSON, too. It is closed if it sends no whole head of a request, or reads no answer.

    connections: all of them, the oldest first. If they are too many, the oldest goes that nobody uses.
    """

    def __init__(self, *, service: Service, connections: dict["_Connection", None], most: int, **parts: Any):
        super().__init__(**parts)
        self._service, self._all, self._most = service, connections, most
        self._whole_app, self._head_bytes, self._fields_bytes = self.app, 0, 0
        self._head_is_late: asyncio.TimerHandle | None = None
        self._reader_is_late: asyncio.TimerHandle | None = None

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self._all) >= self._most:
            oldest = next((connection for connection in self._all if connection._is_idle), None)
            if oldest is not None:
                del self._all[oldest]
                oldest.transport.abort()  # whatever it has not read yet
        self._all[self] = None
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.pop(self, None)
        for timer in (self._head_is_late, self._reader_is_late):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader_is_late = self.loop.call_later(self._service.limits.timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_is_late is not None:
            self._reader_is_late.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("the head of the request is too long")
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + FIELD_BYTES)
        super().on_header(name, value)

    def _count(self, n_bytes: int) -> None:
        """Bytes of a head and of a body's trailers, also while another request is being answered."""
        self._fields_bytes += n_bytes
        if self._fields_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("the head of the request is too long")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self.app = self._whole_app if len(self._all) <= self._most else self._refuse
        super().on_headers_complete()

    async def _refuse(self, scope: Any, receive: Any, send: Any) -> None:
        self._service.metrics.rejected.add(1, "connections")
        fault = Fault(503, "too many connections", {"retry-after": "1", "connection": "close"})
        await error_response(scope["path"], fault)(scope, receive, send)

    def send_400_response(self, msg: str) -> None:
        if self._is_idle or not self.cycle.response_started:
            body = json.dumps({"error": msg}).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def _watch(self) -> None:
        """Gives a head that has begun, or that should, its time."""
        if not self._is_idle:
            if self._head_is_late is not None:
                self._head_is_late.cancel()
                self._head_is_late = None
        elif self._head_is_late is None:
            seconds = min(HEADER_SECONDS, self._service.limits.timeout_seconds)
            self._head_is_late = self.loop.call_later(seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_idle and not self.transport.is_closing():
            self.transport.close()


def _max_connections() -> int:
    """As many as MAX_CONNECTIONS, or half as many as the process may have files: new ones come before old ones go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(1, (soft - OTHER_FILES) // 2))
    )


def address_of(listener: socket.socket) -> str:
    """As people type it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
