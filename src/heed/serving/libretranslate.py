"""LibreTranslate's interface (libretranslate.com/docs), for its clients."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import PurePath
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from heed.documents.formats import SUFFIXES
from heed.serving.documents import detect_html, translate_file, translate_html
from heed.serving.faults import Fault
from heed.serving.files import FileStore, disposition, translated_name
from heed.serving.languages import language_name
from heed.serving.requests import (
    check_key,
    check_languages,
    check_pair,
    check_size,
    number_field,
    parameters,
    text_field,
    texts_field,
    uploaded_file,
)
from heed.serving.service import Service, Translated
from heed.serving.specification import (
    BYTES,
    COUNT,
    FLAG,
    NUMBER,
    READ,
    TEXT,
    TEXTS,
    TRANSLATED,
    Parameter,
    choice,
    described,
    list_of,
    record,
)

UPLOAD_PATH = "/translate_file"
CHUNK_BYTES = 2**16  # of a file on its way to a client
SOURCE = Parameter("source", TEXT, 'Code of its language, or "auto".', required=True)
TARGET = Parameter("target", TEXT, "Code of the language to translate into.", required=True)
KEY = Parameter("api_key", TEXT, "The client's key, if the server asks for one.")
DETECTION = record(confidence=NUMBER, language=TEXT)

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(service: Service, files: FileStore) -> list[Route]:
    """The endpoints."""

    @described(
        "Translate a text, or several.",
        fields=(
            Parameter("q", TEXTS, "The text, or a list of texts.", required=True),
            SOURCE,
            TARGET,
            Parameter("format", choice("text", "html"), "Of html, tags keep their words. Default: text."),
            Parameter("alternatives", COUNT, "Other translations to give; none of html."),
            KEY,
        ),
        answer=record(translatedText=TEXTS, detectedLanguage=DETECTION, alternatives=list_of(TEXT)),
        errors=TRANSLATED,
    )
    async def translate(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        texts = texts_field(fields, "q")
        source, target = text_field(fields, "source"), text_field(fields, "target")
        check_size(service, texts)
        n_alternatives = number_field(fields, "alternatives", most=service.limits.max_alternatives)
        is_html = _format(fields) == "html"
        check_languages(service, source, target)
        deadline = service.deadline()
        tell = partial(detect_html, service, deadline=deadline) if is_html else service.detect_source
        detected = [await tell(text, target) for text in texts] if source == "auto" else []
        pairs = [(language, target) for language, _ in detected] or [(source, target)] * len(texts)
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)
        if is_html:
            found = [Translated(page, ()) for page in await translate_html(service, texts, pairs, deadline=deadline)]
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

    @described(
        "Tell a text's language.",
        fields=(Parameter("q", TEXT, "The text.", required=True), KEY),
        answer=list_of(DETECTION),
        errors=READ,
    )
    async def detect(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        text = text_field(fields, "q")
        check_size(service, [text])
        ranked = await service.detect(text)
        return JSONResponse([_detection(*one) for one in ranked if one[1] >= 0.01] or [_detection(*ranked[0])])

    @described(
        "The languages, each with those that it is translated into.",
        answer=list_of(record(code=TEXT, name=TEXT, targets=list_of(TEXT))),
    )
    async def languages(request: Request) -> Response:
        # Clients look for their target among the codes, too. A text stays as it is in its own language.
        only_targets = {tgt: [tgt] for _, tgt in sorted(service.engines) if tgt not in service.languages()}
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": targets}
                for code, targets in (service.languages() | only_targets).items()
            ]
        )

    @described(
        "What a page needs to know of the server.",
        answer=record(charLimit=COUNT, keyRequired=FLAG, filesTranslation=FLAG, supportedFilesFormat=list_of(TEXT)),
    )
    async def settings(request: Request) -> Response:
        src, tgt = next(iter(service.engines))
        return JSONResponse(
            {
                "apiKeys": service.keys is not None,
                "keyRequired": service.keys is not None,
                "charLimit": service.limits.max_chars,
                "filesTranslation": True,
                "supportedFilesFormat": list(SUFFIXES),
                "frontendTimeout": 500,
                "suggestions": False,
                "language": {
                    "source": {"code": src, "name": language_name(src)},
                    "target": {"code": tgt, "name": language_name(tgt)},
                },
            }
        )

    @described("Refused: this server takes no suggestions.", status=403, answer=record(error=TEXT))
    async def suggest(request: Request) -> Response:
        raise Fault(403, "Suggestions are disabled on this server.")

    @described(
        "Translate a file, which keeps its layout: " + ", ".join(SUFFIXES),
        fields=(Parameter("file", BYTES, "The file.", required=True), SOURCE, TARGET, KEY),
        answer=record(translatedFileUrl=TEXT),
        errors=TRANSLATED,
        only_parts=True,
    )
    async def upload(request: Request) -> Response:
        fields, name, content = await uploaded_file(request)
        check_key(service, request, fields)
        source, target = text_field(fields, "source"), text_field(fields, "target")
        kind = SUFFIXES.get(PurePath(name).suffix.lower())
        if kind is None:
            raise Fault(400, f"Invalid request: file format not supported; expected {', '.join(SUFFIXES)}")
        check_languages(service, source, target)
        address = "://".join(service.doors.reached_at(request.scope))
        translated = await translate_file(service, content, kind, source, target)
        key = await files.add(translated, translated_name(name, target))
        return JSONResponse({"translatedFileUrl": f"{address}/download_file/{key}"})

    @described(
        "A file that was translated, for half an hour.",
        in_path=(Parameter("name", TEXT, "As /translate_file gave it.", required=True),),
        answer=BYTES,
        answer_type="application/octet-stream",
        errors=(404,),
    )
    async def download(request: Request) -> Response:
        if (found := files.open(request.path_params["name"])) is None:
            raise Fault(404, "no such file, or no more")
        stored, opened = found

        async def content() -> AsyncGenerator[bytes]:
            with opened:
                while chunk := await asyncio.to_thread(opened.read, CHUNK_BYTES):
                    yield chunk

        headers = {"content-length": str(stored.size), "content-disposition": disposition(stored.name)}
        return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)

    return [
        Route("/translate", translate, methods=["POST"]),
        Route("/detect", detect, methods=["POST"]),
        Route("/languages", languages, methods=["GET"]),
        Route("/frontend/settings", settings, methods=["GET"]),
        Route("/suggest", suggest, methods=["POST"]),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
        Route("/download_file/{name}", download, methods=["GET"]),
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


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 2), "language": language}
