"""What each endpoint takes and answers, as OpenAPI 3 at /spec and as a page at /docs.

An endpoint is described where it is written: `described` notes it on the function, and all is collected from there.
"""

import base64
import hashlib
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from heed.serving.requests import DEEPL_PATHS

Schema = dict[str, Any]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

VERSION = "1"  # of the interfaces, not of Heed
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
BYTES: Schema = {"type": "string", "format": "binary"}
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
# What any request that is read may be answered with, and what may come while it is translated.
READ = (400, 403, 408, 413, 415, 503)
TRANSLATED = (*READ, 429, 500)


def choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def record(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str
    schema: Schema
    meaning: str
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What an endpoint does. answer: the schema of what it answers with `status`; errors: the other statuses."""

    summary: str
    fields: Sequence[Parameter] = ()
    in_path: Sequence[Parameter] = ()
    answer: Schema = field(default_factory=lambda: TEXT)
    answer_type: str = "application/json"
    errors: Sequence[int] = ()
    status: int = 200
    only_parts: bool = False  # it takes multipart/form-data alone


def described(summary: str, **parts: Any) -> Callable[[Endpoint], Endpoint]:
    """Notes an `Operation` on the function of an endpoint."""

    def note(endpoint: Endpoint) -> Endpoint:
        endpoint.operation = Operation(summary=summary, **parts)  # type: ignore[attr-defined]
        return endpoint

    return note


def routes(others: Sequence[Route]) -> list[Route]:
    """/spec and /docs, of these routes and themselves."""

    @described("This description, as OpenAPI 3.", answer={"type": "object"})
    async def specification(request: Request) -> Response:
        return JSONResponse(content)

    @described("This description, as a page.", answer_type="text/html")
    async def documentation(request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    found = [
        Route("/spec", specification, methods=["GET"]),
        Route("/docs", documentation, methods=["GET"]),
    ]
    content = openapi([*others, *found])
    page = _page(content)
    style = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; frame-ancestors 'none'; base-uri 'none'"
    return found


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document. Every route's endpoint must be `described`."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation: Operation = route.endpoint.operation  # type: ignore[attr-defined]
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(route.path, {})[method.lower()] = _operation(operation, route.path, method)
    return {"openapi": "3.0.3", "info": {"title": "Heed", "version": VERSION}, "paths": paths}


def _operation(operation: Operation, path: str, method: str) -> dict[str, Any]:
    phrase = HTTPStatus(operation.status).phrase
    answer = {"description": phrase, "content": {operation.answer_type: {"schema": operation.answer}}}
    name = "message" if path.startswith(DEEPL_PATHS) else "error"
    error = {"application/json": {"schema": record(**{name: TEXT}) | {"required": [name]}}}
    content: dict[str, Any] = {"summary": operation.summary, "responses": {str(operation.status): answer}}
    for status in sorted(operation.errors):
        content["responses"][str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    parameters = [_parameter(one, "path") for one in operation.in_path]
    if operation.fields and method == "GET":
        parameters += [_parameter(one, "query") for one in operation.fields]
    elif operation.fields:
        properties = {one.name: one.schema | {"description": one.meaning} for one in operation.fields}
        required = [one.name for one in operation.fields if one.required]
        schema = record(**properties) | ({"required": required} if required else {})
        types = FORM_TYPES[1:] if operation.only_parts else ("application/json", *FORM_TYPES)
        content["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in types}}
    return content | ({"parameters": parameters} if parameters else {})


def _parameter(one: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": place,
        "required": one.required,
        "schema": one.schema,
        "description": one.meaning,
    }


STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 0; font-size: 1.1rem; border-top: 1px solid #8886; padding-top: 1rem; overflow-wrap: anywhere; }
h2 b { display: inline-block; min-width: 3.5rem; }
p { margin: .25rem 0; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0; }
th { font-weight: 600; }
code, h2 { font-family: ui-monospace, monospace; }
"""


def _page(content: dict[str, Any]) -> str:
    """The document as HTML without a script."""
    info = content["info"]
    sections = [
        _section(method, path, operation)
        for path, operations in content["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{info['title']}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{info['title']}</h1>\n"
        "<p>Fields are taken from a JSON object, from a form or from the query. "
        'The same as OpenAPI 3: <a href="spec">/spec</a>.</p>\n'
        f"{''.join(sections)}</body>\n</html>\n"
    )


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    escape = html.escape
    fields = [
        (one["name"], one["schema"], one["required"], one["description"]) for one in operation.get("parameters", ())
    ]
    bodies = operation.get("requestBody", {}).get("content", {})
    for name, schema in next(iter(bodies.values()), {"schema": {"properties": {}}})["schema"]["properties"].items():
        required = name in next(iter(bodies.values()))["schema"].get("required", ())
        fields.append((name, schema, required, schema["description"]))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(schema))}</td>"
        f"<td>{'required' * required}</td><td>{escape(meaning)}</td></tr>\n"
        for name, schema, required, meaning in fields
    )
    head = "<tr><th>Parameter</th><th>Type</th><th></th><th>Meaning</th></tr>\n"
    [(status, good), *errors] = operation["responses"].items()
    [(kind, answer)] = good["content"].items()
    failed = ", ".join(f"{code} {escape(one['description'])}" for code, one in errors)
    return (
        f"<h2><b>{method.upper()}</b> {escape(path)}</h2>\n<p>{escape(operation['summary'])}</p>\n"
        + (f"<div><table>\n{head}{rows}</table></div>\n" if rows else "")
        + f"<p>{status}: {escape(kind)}, <code>{escape(_kind(answer['schema']))}</code></p>\n"
        + (f"<p>Errors: {failed}</p>\n" if failed else "")
    )


def _kind(schema: Schema) -> str:
    """A schema in a line."""
    if "enum" in schema:
        return " | ".join(schema["enum"])
    if "oneOf" in schema:
        return " or ".join(map(_kind, schema["oneOf"]))
    if schema["type"] == "array":
        return f"[{_kind(schema['items'])}, …]"
    if "properties" in schema:
        return "{" + ", ".join(f"{name}: {_kind(one)}" for name, one in schema["properties"].items()) + "}"
    return "file" if schema.get("format") == "binary" else str(schema["type"])
