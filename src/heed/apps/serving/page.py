"""The page at /: one file, under a policy that lets it run its own script alone and fetch from this server alone."""

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from heed.apps.serving.service import Service
from heed.apps.serving.specification import endpoint
from heed.apps.serving.streaming import MAX_ATTENTION_CHARS
from heed.apps.visualization.render import COLOURS, with_drawing


@endpoint("GET", "/", "A page that translates while one types.", answer_type="text/html", is_open=True)
async def page(request: Request, service: Service, _: None) -> Response:
    content, policy = _page(service.limits.max_alternatives)
    return HTMLResponse(content, headers={"content-security-policy": policy})


@cache
def _page(max_alternatives: int) -> tuple[str, str]:
    """The page and its policy."""
    settings = {
        "colours": COLOURS,
        "maxAlternatives": max_alternatives,
        "maxAttentionChars": MAX_ATTENTION_CHARS,
    }
    template = (resources.files("heed") / "apps" / "serving" / "page.html").read_text(encoding="utf-8")
    content = with_drawing(template).replace("{{ settings }}", json.dumps(settings))
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
