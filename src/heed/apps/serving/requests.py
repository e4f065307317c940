"""Parsing and validation of requests (JSON, form or query), and the responses to faulty ones."""

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from heed.apps.serving.fields import File, check_text, read
from heed.apps.serving.files import with_plain_filename
from heed.apps.serving.http_error import DEEPL_PATHS, HTTPError
from heed.apps.serving.request_queue import QueueFull, Rejected, SearchFailed, TooLong
from heed.apps.serving.service import Service
from heed.apps.serving.specification import Operation
from heed.errors import HeedError
from heed.text.languages import known_code

MAX_FIELDS = 1000  # of a multipart form
MAX_PAIRS = 20_000  # of a form in one text, which is read in milliseconds
_OF_LIST = re.compile(r"([a-z_]+)\[\d*\]")

Endpoint = Any  # a function that `specification.endpoint` has noted an operation on
BAD_BODY = (ValueError, RecursionError, LookupError, HTTPException)  # UnicodeDecodeError is a ValueError


def as_http_error(error: Exception) -> HTTPError:
    """The fault to report to the client. Of a bug it learns only that there is one."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, HTTPException):
        return HTTPError(error.status_code, error.detail, error.headers)
    if isinstance(error, TooLong):
        return HTTPError(413, str(error))  # clients try a 503 again, DeepL's five times
    if isinstance(error, Rejected):
        status = 429 if isinstance(error, QueueFull) else 503
        return HTTPError(status, str(error), {"retry-after": str(error.retry_after)})
    if isinstance(error, SearchFailed):
        return HTTPError(500, str(error))
    if isinstance(error, HeedError):
        return HTTPError(400, str(error).partition("\n")[0])
    return HTTPError(500, "internal error")


def error_response(path: str, error: Exception) -> Response:
    """The error in the form of the interface that the path belongs to."""
    fault = as_http_error(error)
    name = "message" if path.startswith(DEEPL_PATHS) else "error"
    message = fault.message.encode(errors="replace").decode()  # it may quote half a surrogate pair
    return JSONResponse({name: message}, fault.status, fault.headers)


def routes(endpoints: Sequence[Endpoint], service: Service) -> list[Route]:
    """A route for each endpoint: keys are checked and fields read before its function is called."""
    found = [Route(one.operation.path, one, methods=[*one.operation.methods]) for one in endpoints]
    for route in found:  # Starlette would run a function within three more, which treat errors as `Guard` does
        route.app = partial(_answer, endpoint=route.endpoint, service=service)
    return found


async def _answer(scope: Scope, receive: Receive, send: Send, *, endpoint: Endpoint, service: Service) -> None:
    operation: Operation = endpoint.operation
    request, asked = Request(scope), None
    if not operation.is_open:
        fields = await (_parameters_with_file if operation.only_parts else _parameters)(request)
        check_key(service, request, fields)
        request.state.fields = fields
        if operation.fields is not None:
            asked = read(operation.fields, fields, max_alternatives=service.limits.max_alternatives)
    response: Response = await endpoint(request, service, asked)
    await response(scope, receive, send)


async def _parameters(request: Request) -> dict[str, Any]:
    """The fields of JSON, of a form or of the query; of a form, a field that is repeated is a list.

    HTTPError for a body of another form, or not in UTF-8.
    """
    # The body's fields come later and replace those of the query.
    fields = _group_by_name(request.query_params.multi_items())
    body: bytes = request.state.body
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()

    # Decoders raise errors of many kinds for a bad body; all of them are the client's fault.
    try:
        if not body:
            pass
        elif request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPError(415, "Content-Encoding is not supported: send the text as it is")
        elif kind == "application/json" or kind.endswith("+json"):
            content = json.loads(body)
            if not isinstance(content, dict):
                raise HTTPError(400, "Invalid JSON format: expected an object")
            fields |= content
        elif kind == "application/x-www-form-urlencoded":
            _check_is_no_json(body, kind)
            pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_PAIRS)
            fields |= _group_by_name(pairs)
        elif kind == "multipart/form-data":
            fields |= _texts_of(await _form(request, body, max_files=0))
        else:
            _check_is_no_json(body, kind)
            raise HTTPError(415, "Unsupported media type: send JSON or a form")
    except (*BAD_BODY, MultiPartException):
        raise HTTPError(400, "Invalid request: the body is not what its Content-Type says, or not UTF-8") from None
    return fields


def _check_is_no_json(body: bytes, kind: str) -> None:
    """HTTPError for JSON that does not call itself so, as `curl -d` sends it."""
    if not body.lstrip().startswith(b"{"):
        return
    try:
        content = json.loads(body)
    except BAD_BODY:
        return
    if isinstance(content, dict):
        fault = f"Content-Type is {kind[:50]}" if kind else "Content-Type is missing"
        raise HTTPError(415, f"the body is JSON, but its {fault}: send the header Content-Type: application/json")


async def _parameters_with_file(request: Request) -> dict[str, Any]:
    """The fields of a multipart form, `file` as a File. HTTPError if it is not there."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        fields = await _parameters(request)  # which may be at fault itself
        raise HTTPError(
            415 if fields.get("file") else 400, "Invalid request: missing file parameter: send a multipart form"
        )
    body: bytes = request.state.body
    try:
        form = await _form(request, body, max_files=1)
        fields = _group_by_name(request.query_params.multi_items()) | _texts_of(form)
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise HTTPError(400, "Invalid request: missing file parameter")
        return fields | {"file": File(check_text(file.filename or "", "file"), await file.read())}
    except (*BAD_BODY, MultiPartException):
        raise HTTPError(400, "Invalid request: the body is not a multipart form with one file in UTF-8") from None


async def _form(request: Request, body: bytes, *, max_files: int) -> FormData:
    """The parts of a multipart form. MultiPartException or HTTPError for another."""

    async def chunks() -> AsyncGenerator[bytes]:
        yield _without_padding(body, request.headers["content-type"])

    parser = _PartsParser(
        request.headers, chunks(), max_files=max_files, max_fields=MAX_FIELDS, max_part_size=len(body)
    )
    parser.spool_max_size = len(body) + 1  # in memory, where it is already: no folder can be too full for it
    return await parser.parse()


def _without_padding(body: bytes, content_type: str) -> bytes:
    """The form without what RFC 2046 allows and the parser refuses: a preamble, and blanks behind a boundary."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        return body
    delimiter = b"\r\n--" + boundary
    parts = (b"\r\n" + body).split(delimiter)[1:]
    bare = [part.lstrip(b" \t") for part in parts]
    first = next((i for i, part in enumerate(bare) if part[:2] in (b"\r\n", b"--")), None)
    if first is None:
        return body
    whole = [new if new[:2] == b"\r\n" else part for part, new in zip(parts, bare, strict=True)]
    return delimiter[2:] + delimiter.join(whole[first:])


class _PartsParser(MultiPartParser):
    """Starlette's parser, which knows a file by `filename` alone and decodes nothing, for other clients' parts, too."""

    def on_headers_finished(self) -> None:
        self._current_part.content_disposition = with_plain_filename(self._current_part.content_disposition or b"")
        encoding = dict(self._current_part.item_headers).get(b"content-transfer-encoding", b"8bit").strip().lower()
        if encoding not in (b"7bit", b"8bit", b"binary"):
            name = encoding[:20].decode(errors="replace")
            raise HTTPError(415, f"Content-Transfer-Encoding {name} is not supported: send the part as it is")
        super().on_headers_finished()


def _texts_of(form: FormData) -> dict[str, Any]:
    return _group_by_name([(name, value) for name, value in form.multi_items() if isinstance(value, str)])


def _group_by_name(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Each field's text, or its texts if it is repeated or a list as PHP and others write it: q[], q[0]."""
    values: dict[str, list[str]] = {}
    lists = set()
    for name, value in pairs:
        if of_list := _OF_LIST.fullmatch(name):
            name = of_list[1]
            lists.add(name)
        values.setdefault(name, []).append(value)
    return {name: texts[0] if len(texts) == 1 and name not in lists else texts for name, texts in values.items()}


def check_size(service: Service, texts: list[str]) -> None:
    """HTTPError if the texts are too many or too long together."""
    n_chars, limits = sum(map(len, texts)), service.limits
    for n, most in ((len(texts), limits.max_texts), (n_chars, limits.max_chars)):
        if n > most:
            raise HTTPError(400, f"Invalid request: request ({n}) exceeds text limit ({most})")


def check_bytes(service: Service, texts: list[str]) -> None:
    """HTTPError, as DeepL's clients know it, if the texts are too many or their UTF-8 is too long together."""
    limits = service.limits
    n_bytes = sum(len(text.encode()) for text in texts)
    if len(texts) > limits.max_deepl_texts or n_bytes > limits.max_deepl_bytes:
        raise HTTPError(
            413,
            f"Request entity too large: {len(texts)} texts of {n_bytes} bytes; the most are {limits.max_deepl_texts} "
            f"texts and {limits.max_deepl_bytes} bytes",
        )


def model_codes(service: Service, source: str, target: str) -> tuple[str, str]:
    """The models' codes of both, or what was given in lower case; the source may be "auto", which "" is too."""
    is_auto = not source or source.strip().lower() == "auto"
    return "auto" if is_auto else known_code(source, service.codes), known_code(target, service.codes)


def deepl_languages(service: Service, source: str, target: str) -> tuple[str, str]:
    """The models' codes of both, or "auto". HTTPError in the words that DeepL's clients look for."""
    src, tgt = model_codes(service, source, target)
    for name, code in (("target_lang", tgt), ("source_lang", src)):
        if code not in service.codes and (name, code) != ("source_lang", "auto"):
            raise HTTPError(400, f"Value for '{name}' not supported: {code[:20]}")
    if src != "auto" and not service.has(src, tgt):
        raise HTTPError(400, f"Value for 'target_lang' not supported with source_lang={src[:20]}: {tgt[:20]}")
    return src, tgt


def known_languages(service: Service, source: str, target: str) -> tuple[str, str]:
    """The models' codes of both, or "auto". HTTPError if the server does not know one of them."""
    src, tgt = model_codes(service, source, target)
    for language in (src, tgt):
        if language not in service.codes and (language, src) != ("auto", "auto"):
            raise HTTPError(400, f"{language[:20]} is not supported")
    return src, tgt


def check_pair(service: Service, src: str, tgt: str) -> None:
    """HTTPError unless the server translates from one to the other."""
    if not service.has(src, tgt):
        raise HTTPError(400, f"{tgt[:20]} is not available as a target language from {src[:20]}")


def check_key(service: Service, request: Request, fields: Mapping[str, Any]) -> None:
    """HTTPError if the server has keys and the request has none of them."""
    if service.keys is None:
        return
    key: Any = header_key(request.headers.get("authorization", ""))
    if key is None:
        key = next((fields[name] for name in ("api_key", "apiKey", "auth_key") if fields.get(name)), "")
    if not key and not request.scope["path"].startswith(DEEPL_PATHS):
        raise HTTPError(400, "Please contact the server operator to get an API key")
    if not isinstance(key, str) or not service.keys.holds(key.strip()):
        raise HTTPError(403, "Invalid API key")


def header_key(authorization: str) -> str | None:
    """The key in a request's header Authorization; None if it holds none of ours."""
    kind, _, key = authorization.partition(" ")
    return key.strip() if kind.lower() in ("bearer", "deepl-auth-key") else None
