"""The pages: the one that translates, under a policy that lets it run its own script alone and fetch from this server
alone, and the description of the interface.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from heed.apps.serving.service import Service
from heed.apps.serving.specification import Operation, Schema, endpoint, schema_of
from heed.apps.serving.streaming import MAX_ATTENTION_CHARS
from heed.apps.visualization.render import COLOURS, page_of

DESCRIPTION_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; font: 1rem/1.5 system-ui, sans-serif; }
h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .925rem; }
th, td { text-align: start; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #8884; }
td { overflow-wrap: anywhere; }
"""


@endpoint("GET", "/", "A page that translates while one types.", answer_type="text/html", is_open=True)
async def page(request: Request, service: Service, _: None) -> Response:
    content, policy = _page(service.limits.max_alternatives)
    return HTMLResponse(content, headers={"content-security-policy": policy})


@cache
def _page(max_alternatives: int) -> tuple[str, str]:
    """The page and its policy."""
    settings = {"colours": COLOURS, "maxAlternatives": max_alternatives, "maxAttentionChars": MAX_ATTENTION_CHARS}
    template = page_of(resources.files("heed") / "apps" / "serving" / "web")
    content = template.replace("{{ settings }}", json.dumps(settings))
    return content, _policy(content)


def _policy(page: str) -> str:
    """The page's content security policy: its scripts and styles are named by their hashes."""

    def hashes(element: str) -> str:
        parts = re.findall(rf"(?s)<{element}>(.*?)</{element}>", page)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def description(operations: Sequence[Operation], *, has_page: bool) -> Response:
    """A page that describes each endpoint with its fields, without a script. has_page: whether there is one at /."""
    sections = "\n".join(map(_section, operations))
    back = '<a href="./">Translate</a> · ' if has_page else ""
    content = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Heed: the HTTP interface</title>
<style>{DESCRIPTION_STYLE}</style>
<h1>The HTTP interface</h1>
<p>{back}<a href="spec">for programs (OpenAPI 3)</a></p>
<p>A request's fields come as JSON, as a form or, with GET, in the address. Paths under /v2/ are DeepL's interface, the
others LibreTranslate's and Heed's own.</p>
{sections}
"""
    return HTMLResponse(content, headers={"content-security-policy": _policy(content)})


def _section(operation: Operation) -> str:
    statuses = ", ".join(f"{status} {HTTPStatus(status).phrase}" for status in operation.errors)
    models = [model for model in (operation.in_path, operation.fields) if model is not None]
    rows = [row for model in models for row in _rows(schema_of(model))]
    table = f"<table><tr><th>field<th>type<th>meaning</tr>{''.join(rows)}</table>" if rows else ""
    kind = _type(operation.answer) if operation.answer_type == "application/json" else operation.answer_type
    content = "" if operation.status == HTTPStatus.NO_CONTENT else f" with <code>{escape(kind)}</code>"
    return (
        f"<section><h2><code>{escape(' '.join(operation.methods))} {escape(operation.path)}</code></h2>"
        f"<p>{escape(operation.summary)}</p>{table}"
        f"<p>Answers {operation.status}{content}{f'; or {statuses}' if statuses else ''}.</p></section>"
    )


def _rows(schema: Schema) -> list[str]:
    required = schema.get("required", ())
    return [
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in required else ''}<td>{escape(_type(one))}"
        f"<td>{escape(one.get('description', ''))}</tr>"
        for name, one in sorted(schema["properties"].items(), key=lambda field: field[0] not in required)
    ]


def _type(schema: Schema) -> str:
    """A schema in a few words."""
    if either := schema.get("oneOf", schema.get("anyOf")):
        return " or ".join(_type(one) for one in either if one.get("type") != "null")
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object" if "properties" in schema:
            return "{" + ", ".join(schema["properties"]) + "}"
        case kind:
            return "file" if schema.get("format") == "binary" else str(kind or "any")
