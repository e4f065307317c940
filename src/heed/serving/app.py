"""The server's application: the interfaces' endpoints behind a guard that bounds, watches, counts and logs requests."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.serving import deepl, libretranslate, page, streaming
from heed.serving.requests import Fault, as_fault, error_response
from heed.serving.service import Service

LEFT = 499  # the status that is counted for a client that left
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
HEADER_PAIRS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def make_app(service: Service, log: Callable[[str], None]) -> ASGIApp:
    """The whole application; `log` gets a line of JSON for each request, without text, address or key."""
    endpoints = [
        *libretranslate.routes(service),
        *deepl.routes(service),
        *streaming.routes(service),
        *page.routes(service),
        *_operation(service),
    ]
    paths = {route.path for route in endpoints}
    endpoints.append(Route("/spec", _specification(endpoints), methods=["GET"]))

    def report_failure(warming_up: asyncio.Task[None]) -> None:
        if not warming_up.cancelled() and (error := warming_up.exception()) is not None:
            log(json.dumps({"time": round(time.time(), 3), "error": f"the warm-up failed, never ready: {error}"}))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        warming_up = asyncio.create_task(service.start())
        warming_up.add_done_callback(report_failure)
        yield
        warming_up.cancel()
        await service.close()

    router = Router(endpoints, redirect_slashes=False, lifespan=lifespan)
    return Guard(router, service, log, paths={*paths, "/spec"})


def _operation(service: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        if not service.ready:
            raise Fault(503, "not ready", {"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(service.metrics_page(), media_type="text/plain; version=0.0.4")

    found = [Route("/health", health, methods=["GET"]), Route("/ready", ready, methods=["GET"])]
    return found + [Route("/metrics", metrics, methods=["GET"])] * service.show_metrics


def _specification(routes: list[Route]) -> Callable[[Request], Any]:
    paths = {
        route.path: {
            method.lower(): {"responses": {"200": {"description": "OK"}}} for method in sorted(route.methods or ())
        }
        for route in routes
    }
    content = {"openapi": "3.0.3", "info": {"title": "Heed", "version": "1"}, "paths": paths}

    async def specification(request: Request) -> Response:
        return JSONResponse(content)

    return specification


class Guard:
    """Reads the body within its bounds, runs the application, and cancels it when the client leaves.

    Every error becomes the JSON of its interface; every response gets the security headers.
    """

    def __init__(self, app: ASGIApp, service: Service, log: Callable[[str], None], *, paths: set[str]):
        self._app, self._service, self._log, self._paths = app, service, log, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "path": path, "app": self}
        started = time.monotonic()
        answer = _Answer(send)
        fault: Exception | None = None
        try:
            if (body := await self._body(receive)) is None:
                return
            await _until_client_leaves(self._app(scope, _replay(body), answer.send), receive, answer)
        except Exception as error:
            fault = error
            if answer.status == 0:
                await error_response(path, error)(scope, receive, answer.send)
        finally:
            self._count(path, answer.status or LEFT, time.monotonic() - started, fault)

    def _count(self, path: str, status: int, seconds: float, error: Exception | None) -> None:
        endpoint = path if path in self._paths else "other"
        self._service.requests.add(1, endpoint, str(status))
        self._service.request_seconds.observe(seconds, endpoint)
        record: dict[str, Any] = {"time": round(time.time(), 3), "endpoint": endpoint, "status": status}
        record["seconds"] = round(seconds, 4)
        if error is not None and as_fault(error).status == 500:
            record["error"] = f"{type(error).__name__} at {_place(error)}"  # its message may hold text
        self._log(json.dumps(record))

    async def _body(self, receive: Receive) -> bytes | None:
        """The request's body, or None if the client has left. Fault if it is too large or too slow."""
        most = self._service.limits.max_body_bytes
        parts: list[bytes] = []
        n_bytes = 0
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
                    # What is too large is read on for a while, unkept: else the client could not read the answer.
                    if not message.get("more_body") or n_bytes > 8 * most:
                        break
        except TimeoutError:
            raise Fault(408, "the request did not arrive in time", {"connection": "close"}) from None
        if n_bytes > most:
            raise Fault(413, f"Request entity too large: more than {most} bytes", {"connection": "close"})
        return b"".join(parts)


class _Answer:
    """The response on its way to the client."""

    def __init__(self, send: Send):
        self._send = send
        self.status = 0
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            own = {name for name, _ in headers}  # the page has a content policy of its own
            message = {**message, "headers": headers + [pair for pair in HEADER_PAIRS if pair[0] not in own]}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _replay(body: bytes) -> Receive:
    """What gives the application the whole body, and then nothing."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    return receive


async def _until_client_leaves(work: Any, receive: Receive, answer: _Answer) -> None:
    """Runs the work; when the client is gone before its answer is complete, cancels it."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.complete and not task.done():
            task.cancel()
            await asyncio.wait({task})
            answer.status = LEFT
            return
        await task
    finally:
        leaving.cancel()
        if not task.done():  # the server itself is cancelled
            task.cancel()
            await asyncio.wait({task})


def _place(error: BaseException) -> str:
    """The file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
