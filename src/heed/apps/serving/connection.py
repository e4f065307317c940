"""A connection of the server: uvicorn's protocol over httptools, with bounds on heads, readers and connections.

uvicorn does not promise that this protocol stays as it is, so pyproject.toml bounds its version, and
tests/apps/serving/test_connection.py checks what is relied on:

- `uvicorn.Config(http=...)` takes any callable, here a partial, and calls it with keyword arguments alone.
- The class has asyncio's callbacks `connection_made(transport)`, `connection_lost(exc)`, `data_received(data)`,
  `eof_received()`, `pause_writing()` and `resume_writing()`.
- The class has httptools' callbacks `on_message_begin()`, `on_url(url)`, `on_header(name, value)`, which also gets a
  body's trailers, and `on_headers_complete()`.
- A request that offers another protocol is left alone if `_should_upgrade()` says so.
- If one of httptools' callbacks raises `httptools.HttpParserError`, `data_received` calls `send_400_response(msg)`.
- `on_headers_complete` hands the request to the application that `self.app` is at that moment; it runs later.
- `self.cycle` is the latest request, None before the first. It has `response_started`, `response_complete`, `scope`,
  `more_body`, true until its body is there, and `keep_alive`: without it the connection ends with the response. It
  writes a response by its `transport` alone, `response_started` being set: the head, then, but to HEAD, the body.
- `self.pipeline` holds requests that wait for the response to an earlier one.
- `self.loop` is the event loop, `self.transport` the connection's transport, `self.parser` what parses its bytes.
- `self.url` and `self.headers` are those of the request whose head was parsed last.
"""

import asyncio
import json
import resource
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import error_response
from heed.apps.serving.service import Service

MAX_CONNECTIONS = 1024  # if all of more are in use, the newest are refused with 503
OTHER_FILES = 256  # that the process may have open
MAX_HEAD_BYTES = 2**16
FIELD_BYTES = 32  # that a field of a head counts at least
PROBE_SECONDS = 0.5  # between two attempts to find out whether a client that sends nothing more has left
HEADER_SECONDS = 20  # within which a request's headers must have come


class Parser(httptools.HttpRequestParser):
    """Parses a request that offers another protocol as if it did not, which a server may do (RFC 9110, section 7.8).

    httptools takes what follows the head of such a request for the other protocol, and would leave out its body.
    """

    def __init__(self, connection: "Connection"):
        super().__init__(connection)
        self._connection = connection
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def feed_data(self, data: Any) -> None:
        parser, parse = self, super().feed_data
        while True:
            try:
                return parse(data)
            except httptools.HttpParserUpgrade as offer:
                if parser.get_method() == b"CONNECT":
                    raise
                # Another parser decides where the body ends, by the same fields; this one may expect nothing more.
                head, data = self._connection.head_without_offer(), memoryview(data)[offer.args[0] :]
                parser = self._connection.parser = Parser(self._connection)
                parse = super(Parser, parser).feed_data
                parse(head)


class Connection(HttpToolsProtocol):
    """A connection whose errors are JSON, too. It is closed if it sends no whole head of a request, or reads no answer.

    connections: all of them, the oldest first. If they are too many, the oldest goes that nobody uses.
    """

    def __init__(self, *, service: Service, connections: dict["Connection", None], most: int, **parts: Any):
        super().__init__(**parts)
        self.parser = Parser(self)
        self._service, self._all, self._most = service, connections, most
        self._whole_app, self._head_bytes, self._fields_bytes = self.app, 0, 0
        self._head_is_late: asyncio.TimerHandle | None = None
        self._reader_is_late: asyncio.TimerHandle | None = None
        self._next_probe: asyncio.TimerHandle | None = None

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
        for timer in (self._head_is_late, self._reader_is_late, self._next_probe):
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

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a client that has sent all of a request may still read its answer.

        One that has left looks the same, until its system refuses what it is sent, which makes the next write fail. All
        clients of HTTP/1.1 take "100 Continue" before an answer, however often.
        """
        if self._is_idle or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        if self._next_probe is None and self.cycle.scope["http_version"] == "1.1":
            self._next_probe = self.loop.call_later(PROBE_SECONDS, self._probe)
        return True

    def _probe(self) -> None:
        if not self.transport.is_closing():
            if not self.pipeline and not self.cycle.response_started:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._next_probe = self.loop.call_later(PROBE_SECONDS, self._probe)

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
        """Counts bytes of a head or of a body's trailers, also while another request is being answered."""
        self._fields_bytes += n_bytes
        if self._fields_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("the head of the request is too long")

    def _should_upgrade(self) -> bool:
        """Whether uvicorn leaves this request alone: `Parser` reads it once more."""
        return self.parser.get_method() != b"CONNECT"

    def head_without_offer(self) -> bytes:
        """The head that was parsed last without `Upgrade`, which the rest of an offer means nothing without."""
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"\r\n"])

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self.app = self._whole_app if len(self._all) <= self._most else self._refuse
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.cycle.scope["method"] != "HEAD":
            self.cycle.transport = _Writer(self.transport, self.cycle)  # type: ignore[assignment]

    async def _refuse(self, scope: Any, receive: Any, send: Any) -> None:
        self._service.metrics.rejected.labels("connections").inc()
        fault = HTTPError(503, "too many connections", {"retry-after": "1", "connection": "close"})
        await error_response(scope["path"], fault)(scope, receive, send)

    def send_400_response(self, msg: str) -> None:
        if self._is_idle or not self.cycle.response_started:
            body = json.dumps({"error": msg}).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def _watch(self) -> None:
        """Starts the time limit of a head that has begun, or is expected."""
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


class _Writer:
    """What a request writes to its connection: the head of the answer leaves with what follows it, in one packet."""

    def __init__(self, transport: Any, cycle: Any):
        self._transport, self._cycle, self.is_closing = transport, cycle, transport.is_closing
        self._head: bytes | None = None  # held until something follows it, then empty

    def write(self, data: bytes) -> None:
        if self._head is None and self._cycle.response_started:
            self._head = data
        else:
            self._transport.write((self._head or b"") + data)
            self._head = self._head and b""

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


def max_connections() -> int:
    """MAX_CONNECTIONS, or half the files that the process may open: new connections come before old ones go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(1, (soft - OTHER_FILES) // 2))
    )
