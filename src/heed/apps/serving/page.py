"""The page at /: one file, under a policy that lets it run its own script alone and fetch from this server alone."""

import base64
import hashlib
import json
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from heed.apps.serving.service import Service
from heed.apps.serving.specification import describe
from heed.apps.serving.streaming import MAX_ATTENTION_CHARS
from heed.apps.visualization.render import COLOURS, with_drawing


def routes(service: Service) -> list[Route]:
    """The page, if the server shows one."""
    settings = {
        "colours": COLOURS,
        "maxAlternatives": service.limits.max_alternatives,
        "maxAttentionChars": MAX_ATTENTION_CHARS,
    }
    template = (resources.files("heed") / "apps" / "serving" / "page.html").read_text(encoding="utf-8")
    content = with_drawing(template).replace("{{ settings }}", json.dumps(settings))
    headers = {"content-security-policy": _policy(content)}

    @describe("A page that translates while one types.", answer_type="text/html")
    async def page(request: Request) -> Response:
        return HTMLResponse(content, headers=headers)

    return [Route("/", page, methods=["GET"])] * service.show_page


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
