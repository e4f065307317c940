"""LibreTranslate's interface (libretranslate.com/docs), for its clients."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heed.serving.documents import detect_html, translate_html
from heed.serving.languages import language_name
from heed.serving.requests import Fault, check_key, check_size, number_field, parameters, text_field, texts_field
from heed.serving.service import Service, Translated

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def translate(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        texts = texts_field(fields, "q")
        source, target = text_field(fields, "source"), text_field(fields, "target")
        check_size(service, texts)
        n_alternatives = number_field(fields, "alternatives", most=service.limits.max_alternatives)
        is_html = _format(fields) == "html"
        check_languages(service, source, target)
        tell = detect_html if is_html else detect_language
        detected = [await tell(service, text) for text in texts] if source == "auto" else []
        pairs = [(language, target) for language, _ in detected] or [(source, target)] * len(texts)
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)
        if is_html:
            found = [Translated(page, ()) for page in await translate_html(service, texts, pairs)]
        else:
            found = await service.translate(texts, pairs, n_best=1 + n_alternatives)
        answer: dict[str, Any] = {"translatedText": [translated.text for translated in found]}
        if source == "auto":
            answer["detectedLanguage"] = [_detection(*one) for one in detected]
        if n_alternatives:
            answer["alternatives"] = [list(translated.alternatives) for translated in found]
        if not isinstance(fields["q"], list):
            answer = {name: values[0] for name, values in answer.items()}
        return JSONResponse(answer)

    async def detect(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        text = text_field(fields, "q")
        check_size(service, [text])
        ranked = await service.detect(text)
        return JSONResponse([_detection(*one) for one in ranked if one[1] >= 0.01] or [_detection(*ranked[0])])

    async def languages(request: Request) -> Response:
        # Clients look for their target among the codes, too. A text stays as it is in its own language.
        only_targets = {tgt: [tgt] for _, tgt in sorted(service.engines) if tgt not in service.languages()}
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": targets}
                for code, targets in (service.languages() | only_targets).items()
            ]
        )

    async def settings(request: Request) -> Response:
        src, tgt = next(iter(service.engines))
        return JSONResponse(
            {
                "apiKeys": service.keys is not None,
                "keyRequired": service.keys is not None,
                "charLimit": service.limits.max_chars,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "frontendTimeout": 500,
                "suggestions": False,
                "language": {
                    "source": {"code": src, "name": language_name(src)},
                    "target": {"code": tgt, "name": language_name(tgt)},
                },
            }
        )

    async def suggest(request: Request) -> Response:
        raise Fault(403, "Suggestions are disabled on this server.")

    return [
        Route("/translate", translate, methods=["POST"]),
        Route("/detect", detect, methods=["POST"]),
        Route("/languages", languages, methods=["GET"]),
        Route("/frontend/settings", settings, methods=["GET"]),
        Route("/suggest", suggest, methods=["POST"]),
    ]


def check_format(fields: dict[str, Any]) -> None:
    """Fault unless the text is plain."""
    if _format(fields) != "text":
        raise Fault(400, "html format is not supported here; /translate takes it")


def _format(fields: dict[str, Any]) -> str:
    kind = fields.get("format") or "text"
    if kind not in ("text", "html"):
        raise Fault(400, f"{str(kind)[:20]} format is not supported")
    return str(kind)


def check_languages(service: Service, source: str, target: str) -> None:
    """Fault if the server does not know one of them; the source may be "auto"."""
    for language in (source, target):
        if not service.knows(language) and (language, source) != ("auto", "auto"):
            raise Fault(400, f"{language[:20]} is not supported")


def check_pair(service: Service, src: str, tgt: str) -> None:
    """Fault unless the server translates from one to the other."""
    if not service.has(src, tgt):
        raise Fault(400, f"{tgt[:20]} is not available as a target language from {src[:20]}")


async def detect_language(service: Service, text: str) -> tuple[str, float]:
    """The language that a text is most probably in, of those that can be translated."""
    return (await service.detect(text))[0]


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 2), "language": language}
