"""The server's application: the interfaces' endpoints behind a guard that bounds, watches, counts and logs requests."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.apps.serving import deepl, glossaries, glossary_routes, libretranslate, streaming
from heed.apps.serving.document_workers import DocumentBug
from heed.apps.serving.files import remove_abandoned
from heed.apps.serving.glossary_routes import GLOSSARIES_PATH
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.metrics import CONTENT_TYPE
from heed.apps.serving.page import description, page
from heed.apps.serving.requests import Endpoint, as_http_error, error_response, header_key, routes
from heed.apps.serving.service import Service
from heed.apps.serving.specification import TEXT, endpoint, openapi, record
from heed.errors import place_of
from heed.runtime.process_tuning import give_back_freed_memory

MEMORY_SECONDS = 15.0  # after which freed memory is given back, again and again
LEFT = 499  # the status that is counted for a client that left
HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}
DOWNLOAD_PATH = "/download_file/{name}"
MAX_FORM_BYTES = 2**16  # of a form around a file
UPLOAD_PATHS = (libretranslate.UPLOAD_PATH, deepl.UPLOAD_PATH, GLOSSARIES_PATH)
MAX_GLOSSARY_BYTES = 3 * glossaries.MAX_BYTES + MAX_FORM_BYTES  # of a body; a form writes a byte in three
UPLOADS_AT_ONCE = 4  # of the largest size, or more of smaller ones


def make_app(service: Service, log: Callable[[str], None]) -> ASGIApp:
    """The whole application; `log` gets a line of JSON for each request, without text, address or key."""
    # Without a handler its warnings of malformed forms would stand among the log's lines, as bare text.
    logging.getLogger("python_multipart").addHandler(logging.NullHandler())

    # The server answers while it warms up; only readiness waits for that.
    def report_failure(warming_up: asyncio.Task[None]) -> None:
        if not warming_up.cancelled() and (error := warming_up.exception()) is not None:
            outcome = "" if service.ready else ", never ready"
            log(json.dumps({"time": round(time.time(), 3), "error": f"the warm-up failed{outcome}: {error}"}))

    # Both tasks are cancelled before the service closes: neither may use a closed one.
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        await asyncio.to_thread(remove_abandoned)
        warming_up = asyncio.create_task(service.start())
        warming_up.add_done_callback(report_failure)
        tidying = asyncio.create_task(_give_back_memory())
        yield
        tidying.cancel()
        warming_up.cancel()
        await service.close()

    # The guard stands outside of the router, so that it counts requests without a route, too.
    endpoints = routes(_endpoints(service), service)
    router = Router(endpoints, redirect_slashes=False, lifespan=lifespan)
    return Guard(router, service, log, paths={route.path for route in endpoints})


async def _give_back_memory() -> None:
    """Returns freed memory to the system every MEMORY_SECONDS; otherwise the process keeps its peak size."""
    while True:
        await asyncio.sleep(MEMORY_SECONDS)
        await asyncio.to_thread(give_back_freed_memory)


@endpoint("GET", "/health", "The process answers.", answer=record(status=TEXT), is_open=True)
async def health(request: Request, service: Service, _: None) -> Response:
    return JSONResponse({"status": "ok"})


READY = "The models have translated a first sentence."


@endpoint("GET", "/ready", READY, answer=record(status=TEXT), errors=(503,), is_open=True)
async def ready(request: Request, service: Service, _: None) -> Response:
    if not service.ready:
        raise HTTPError(503, "not ready", {"retry-after": "1"})
    return JSONResponse({"status": "ready"})


@endpoint(
    "GET", "/metrics", "What the server counts, in Prometheus' text form.", answer_type="text/plain", is_open=True
)
async def metrics(request: Request, service: Service, _: None) -> Response:
    return PlainTextResponse(service.metrics.page(), media_type=CONTENT_TYPE)


@endpoint("GET", "/spec", "This description, as OpenAPI 3.", answer={"type": "object"}, is_open=True)
async def specification(request: Request, service: Service, _: None) -> Response:
    return JSONResponse(openapi([one.operation for one in _endpoints(service)]))


@endpoint("GET", "/docs", "This description, for people.", answer_type="text/html", is_open=True)
async def documentation(request: Request, service: Service, _: None) -> Response:
    return description([one.operation for one in _endpoints(service)], has_page=service.show_page)


def _endpoints(service: Service) -> list[Endpoint]:
    own = [health, ready, *[metrics] * service.show_metrics, *[page] * service.show_page, specification, documentation]
    return [*libretranslate.ENDPOINTS, *deepl.ENDPOINTS, *glossary_routes.ENDPOINTS, *streaming.ENDPOINTS, *own]


class Guard:
    """Reads the body within its bounds, runs the application, and cancels it when the client leaves.

    Every error becomes the JSON of its interface; every response gets the security headers.
    """

    def __init__(self, app: ASGIApp, service: Service, log: Callable[[str], None], *, paths: set[str]):
        self._app, self._service, self._log, self._paths = app, service, log, paths
        # Clients that have not shown a key in the head of a request have room of their own.
        self._n_free = dict.fromkeys((True, False), UPLOADS_AT_ONCE * service.limits.max_file_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # ASGI's lifespan events have neither a path nor a client.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        # Routes, limits and metrics all go by one path, whatever prefix a proxy has left before it.
        path = self._service.doors.path_of(scope)
        scope = {**scope, "path": path, "app": self}
        started = time.monotonic()
        headers = dict(scope["headers"])
        cors = self._cors_headers(headers)
        answer = _Answer(send, cors, has_body=scope["method"] != "HEAD")
        fault: Exception | None = None
        upload: _Upload | None = None

        # Everything that fails below becomes an answer in the API's form, unless one has begun: that one breaks off.
        try:
            # Who may ask at all; then the body, as a whole, within the client's limits.
            self._service.doors.check(scope)
            is_known = self._has_key(headers, reads_body=scope["method"] == "POST")
            if path in UPLOAD_PATHS:
                upload = _Upload(self._n_free, is_known)
            if cors and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await Response(status_code=204, headers=PREFLIGHT)(scope, receive, answer.send)
                return
            if (body := await self._body(receive, upload, path)) is None:
                return
            # The application receives nothing more: the body is there, and the client is watched here.
            scope["state"], never = {"body": body}, asyncio.get_running_loop().create_future
            await _until_client_leaves(self._app(scope, never, answer.send), receive, answer)
        except Exception as error:
            fault = error
            if answer.status == 0:
                await error_response(path, error)(scope, receive, answer.send)
        finally:
            # Every request is counted, whatever became of it.
            if upload is not None:
                upload.release()
            self._count(path, answer.status or LEFT, time.monotonic() - started, fault)

    def _count(self, path: str, status: int, seconds: float, error: Exception | None) -> None:
        path = DOWNLOAD_PATH if path.startswith(DOWNLOAD_PATH.partition("{")[0]) else path
        endpoint = path if path in self._paths else "other"
        self._service.metrics.requests.labels(endpoint, str(status)).inc()
        self._service.metrics.request_seconds.labels(endpoint).observe(seconds)
        record: dict[str, Any] = {"time": round(time.time(), 3), "endpoint": endpoint, "status": status}
        record["seconds"] = round(seconds, 4)
        if error is not None and as_http_error(error).status == 500:
            bug = error.what if isinstance(error, DocumentBug) else f"{type(error).__name__} at {place_of(error)}"
            record["error"] = bug  # without its message, which may hold text
        self._log(json.dumps(record))

    def _cors_headers(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """The headers by which a page of another origin may read the answer, if this origin was given with --cors."""
        origin = headers.get(b"origin", b"")
        if not origin or not self._service.doors.allows(origin.decode("latin-1")):
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]

    def _has_key(self, headers: dict[bytes, bytes], *, reads_body: bool) -> bool:
        """Whether the head of the request holds a key, if there are any. HTTPError if it is wrong before a body."""
        keys, given = self._service.keys, header_key(headers.get(b"authorization", b"").decode("latin-1"))
        if keys is None:
            return True
        is_key = bool(given) and keys.holds(given or "")
        if given and reads_body and not is_key:
            raise HTTPError(403, "Invalid API key", {"connection": "close"})
        return is_key

    async def _body(self, receive: Receive, upload: "_Upload | None", path: str) -> bytes | None:
        """The request's body, or None if the client has left. HTTPError if it is too large or too slow."""
        limits = self._service.limits
        most = limits.max_body_bytes if upload is None else limits.max_file_bytes + MAX_FORM_BYTES
        most = MAX_GLOSSARY_BYTES if path == GLOSSARIES_PATH else most
        parts, n_bytes = list[bytes](), 0
        try:
            async with asyncio.timeout(self._service.limits.timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    n_bytes += len(part)
                    if n_bytes <= most:
                        parts.append(part)
                        if upload is not None:
                            upload.take(len(part))
                    # What is too large is read on for a while, unkept: else the client could not read the answer.
                    if not message.get("more_body") or n_bytes > 8 * most:
                        break
        except TimeoutError:
            raise HTTPError(408, "the request did not arrive in time", {"connection": "close"}) from None
        if n_bytes > most:
            raise HTTPError(413, f"Request entity too large: more than {most} bytes", {"connection": "close"})
        return b"".join(parts)


@dataclass
class _Upload:
    """The bytes that an upload takes of those that are free for all of known clients, or of all others."""

    n_free: dict[bool, int]
    is_known: bool
    n_bytes: int = 0

    def take(self, n_bytes: int) -> None:
        """HTTPError if there is no room."""
        self.n_bytes += n_bytes
        self.n_free[self.is_known] -= n_bytes
        if self.n_free[self.is_known] < 0:
            raise HTTPError(503, "too many files at once", {"retry-after": "5", "connection": "close"})

    def release(self) -> None:
        self.n_free[self.is_known] += self.n_bytes


class _Answer:
    """The response on its way to the client."""

    def __init__(self, send: Send, more_headers: list[tuple[bytes, bytes]], *, has_body: bool):
        self._send, self._more_headers, self._has_body = send, more_headers, has_body
        self.status = 0
        self.complete = False
        self._n_left = -1  # bytes; negative if nobody has said how many

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = message.get("headers", [])
            self._n_left = next((int(value) for name, value in own if name == b"content-length"), -1)
            names = {name for name, _ in own}  # a page has a policy of its own
            ours = [pair for pair in HEADERS if pair[0] not in names]
            message = {**message, "headers": [*own, *ours, *self._more_headers]}
            self.complete = not self._has_body
        elif message["type"] == "http.response.body":
            # A client that has all of it may leave before the application says that this was all.
            self._n_left -= len(message.get("body", b""))
            self.complete |= self._n_left == 0 or not message.get("more_body", False)
        await self._send(message)


async def _until_client_leaves(work: Awaitable[None], receive: Receive, answer: _Answer) -> None:
    """Does the work; when the client is gone before its answer is complete, cancels it."""
    task, has_left = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal has_left
        await receive()
        if not answer.complete:
            has_left = True
            task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not has_left or task.uncancel():  # the server itself is cancelled
            raise
        answer.status = LEFT
    finally:
        watching.cancel()
