"""The OpenAPI 3 description at /spec: what each endpoint takes and answers.

An endpoint is described where it is written: `endpoint` notes it on the function, and all is collected from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel

from heed.apps.serving.http_error import DEEPL_PATHS

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
    """Describes an endpoint. answer: the schema of what it answers with `status`; errors: the other statuses.

    fields: what is read of its requests. is_open: for clients without a key too; nothing is read of their requests.
    """

    methods: tuple[str, ...]
    path: str
    summary: str
    fields: type[BaseModel] | None = None
    in_path: type[BaseModel] | None = None
    answer: Schema = field(default_factory=lambda: TEXT)
    answer_type: str = "application/json"
    errors: Sequence[int] = ()
    status: int = 200
    only_parts: bool = False  # it takes multipart/form-data alone
    is_open: bool = False


def endpoint(methods: str, path: str, summary: str, **parts: Any) -> Callable[[Endpoint], Endpoint]:
    """Notes an `Operation` on the function of an endpoint, which takes a request, the service and the fields."""

    def note(function: Endpoint) -> Endpoint:
        operation = Operation(methods=tuple(methods.split()), path=path, summary=summary, **parts)
        function.operation = operation  # type: ignore[attr-defined]
        return function

    return note


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for method in operation.methods:
            paths.setdefault(operation.path, {})[method.lower()] = _operation(operation, method)
    return {"openapi": "3.0.3", "info": {"title": "Heed", "version": VERSION}, "paths": paths}


def _operation(operation: Operation, method: str) -> dict[str, Any]:
    phrase = HTTPStatus(operation.status).phrase
    answer = {"description": phrase, "content": {operation.answer_type: {"schema": operation.answer}}}
    name = "message" if operation.path.startswith(DEEPL_PATHS) else "error"
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
    whole_schema = model.model_json_schema()
    properties = {
        name: {key: value for key, value in one.items() if key not in ("title", "default")}
        for name, one in whole_schema["properties"].items()
    }
    return record(**properties) | ({"required": whole_schema["required"]} if "required" in whole_schema else {})


def _parameters(model: type[BaseModel], place: str) -> list[dict[str, Any]]:
    schema = schema_of(model)
    required = schema.get("required", ())
    return [
        {"name": name, "in": place, "required": name in required, "description": one.pop("description"), "schema": one}
        for name, one in schema["properties"].items()
    ]
