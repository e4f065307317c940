"""The OpenAPI 3 description at /spec: what each endpoint takes and answers.

An endpoint is described where it is written: `describe` notes it on the function, and all is collected from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heed.apps.serving.faults import DEEPL_PATHS

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


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Describes an endpoint. answer: the schema of what it answers with `status`; errors: the other statuses."""

    summary: str
    fields: type[BaseModel] | None = None
    in_path: type[BaseModel] | None = None
    answer: Schema = field(default_factory=lambda: TEXT)
    answer_type: str = "application/json"
    errors: Sequence[int] = ()
    status: int = 200
    only_parts: bool = False  # it takes multipart/form-data alone


def describe(summary: str, **parts: Any) -> Callable[[Endpoint], Endpoint]:
    """Notes an `Operation` on the function of an endpoint."""

    def note(endpoint: Endpoint) -> Endpoint:
        endpoint.operation = Operation(summary=summary, **parts)  # type: ignore[attr-defined]
        return endpoint

    return note


def routes(others: Sequence[Route]) -> list[Route]:
    """/spec, of these routes and itself."""

    @describe("This description, as OpenAPI 3.", answer={"type": "object"})
    async def specification(request: Request) -> Response:
        return JSONResponse(content)

    found = [Route("/spec", specification, methods=["GET"])]
    content = openapi([*others, *found])
    return found


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document. Every route's endpoint must have been given to `describe`."""
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
    parameters = [] if operation.in_path is None else _parameters(operation.in_path, "path")
    if operation.fields is not None and method == "GET":
        parameters += _parameters(operation.fields, "query")
    elif operation.fields is not None:
        types = FORM_TYPES[1:] if operation.only_parts else ("application/json", *FORM_TYPES)
        schema = schema_of(operation.fields)
        content["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in types}}
    return content | ({"parameters": parameters} if parameters else {})


def schema_of(model: type[BaseModel]) -> Schema:
    """The schema of a model without nested ones, as OpenAPI 3.0 has it: pydantic's without titles and null defaults."""
    found = model.model_json_schema()
    properties = {
        name: {key: value for key, value in one.items() if key not in ("title", "default")}
        for name, one in found["properties"].items()
    }
    return record(**properties) | ({"required": found["required"]} if "required" in found else {})


def _parameters(model: type[BaseModel], place: str) -> list[dict[str, Any]]:
    schema = schema_of(model)
    required = schema.get("required", ())
    return [
        {"name": name, "in": place, "required": name in required, "description": one.pop("description"), "schema": one}
        for name, one in schema["properties"].items()
    ]
