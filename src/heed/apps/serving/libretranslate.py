"""LibreTranslate's interface (libretranslate.com/docs), for its clients."""

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heed.apps.documents.formats import SUFFIXES
from heed.apps.documents.translation import DocumentOptions
from heed.apps.serving.documents import detect_html, translate_file, translate_html
from heed.apps.serving.faults import Fault
from heed.apps.serving.fields import (
    Alternatives,
    Attributes,
    Fields,
    Keep,
    Key,
    Source,
    Target,
    Text,
    Texts,
    Upload,
    read,
)
from heed.apps.serving.files import FileStore, kind_of_file, name_of_translation, send_file
from heed.apps.serving.languages import language_name
from heed.apps.serving.requests import (
    check_key,
    check_pair,
    check_size,
    known_languages,
    parameters,
    parameters_with_file,
)
from heed.apps.serving.service import Service, Translated
from heed.apps.serving.specification import (
    BYTES,
    COUNT,
    FLAG,
    READ,
    TEXT,
    TEXTS,
    TRANSLATED,
    describe,
    list_of,
    record,
)

DEEPLX = {"text": "q", "source_lang": "source", "target_lang": "target"}  # what its clients call these fields
UPLOAD_PATH = "/translate_file"
DETECTION = record(confidence=COUNT, language=TEXT)


class TranslateFields(Fields):
    q: Texts = Field(description="The text, or a list of texts.")
    source: Source
    target: Target
    format: Literal["text", "html"] = Field(
        default="text", description="Of html, tags keep their words. Default: text."
    )
    alternatives: Alternatives = Field(default=0, description="Other translations to give; none of html.")
    keep: Keep = ()
    api_key: Key = ""

    @field_validator("format", mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        if value not in ("text", "html"):
            raise Fault(400, f"{str(value)[:20]} format is not supported")
        return value


class DetectFields(Fields):
    q: Text = Field(description="The text.")
    api_key: Key = ""


class UploadFields(Fields):
    file: Upload = Field(description="The file.")
    source: Source
    target: Target
    keep: Keep = ()
    attributes: Attributes = "all"
    glossary_id: Text = Field(default="", description="A glossary of the two languages, made by /v2/glossaries.")
    api_key: Key = ""


class DownloadPath(BaseModel):
    name: str = Field(description="As /translate_file gave it.")


def routes(service: Service, files: FileStore) -> list[Route]:
    """The endpoints."""

    @describe(
        "Translate a text, or several.",
        fields=TranslateFields,
        answer=record(
            translatedText=TEXTS, detectedLanguage=DETECTION, alternatives=list_of(TEXT), code=COUNT, data=TEXTS
        ),
        errors=TRANSLATED,
    )
    async def translate(request: Request) -> Response:
        # Refusals come first, in the order of their cost.
        sent = await parameters(request)
        fields = {DEEPLX.get(name, name): value for name, value in sent.items()}
        check_key(service, request, fields)
        asked = read(TranslateFields, fields, max_alternatives=service.limits.max_alternatives)
        texts = asked.q
        check_size(service, texts)
        source, target = known_languages(service, asked.source, asked.target)
        deadline = service.deadline()

        # Languages: of each text where the source is "auto".
        detected = []
        if source == "auto" and asked.format == "html":
            detected = await detect_html(service, texts, target, deadline=deadline)
        elif source == "auto":
            detected = [await service.detect_source(text, target) for text in texts]
        pairs = [(language, target) for language, _ in detected] or [(source, target)] * len(texts)
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)

        # Pages keep their markup and have no alternatives.
        if asked.format == "html":
            found = [
                Translated(page, ())
                for page in await translate_html(service, texts, pairs, deadline=deadline, keep=asked.keep)
            ]
        else:
            found = await service.translate(texts, pairs, n_best=1 + asked.alternatives, keep=asked.keep)

        # Answers have a list where the question had one.
        answer: dict[str, Any] = {"translatedText": [translated.text for translated in found]}
        if source == "auto":
            answer["detectedLanguage"] = [_detection(*one) for one in detected]
        if asked.alternatives:
            answer["alternatives"] = [list(translated.alternatives) for translated in found]
        if not isinstance(fields["q"], list):
            answer = {name: values[0] for name, values in answer.items()}
        if "text" in sent and "q" not in sent:
            answer |= {"code": 200, "data": answer["translatedText"]}
        return JSONResponse(answer)

    @describe(
        "Tell a text's language.",
        fields=DetectFields,
        answer=list_of(DETECTION),
        errors=READ,
    )
    async def detect(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        text = read(DetectFields, fields).q
        check_size(service, [text])
        ranked = await service.detect(text)
        return JSONResponse([_detection(*one) for one in ranked if one[1] >= 0.01] or [_detection(*ranked[0])])

    @describe(
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

    @describe(
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

    @describe("Refused: this server takes no suggestions.", status=403, answer=record(error=TEXT))
    async def suggest(request: Request) -> Response:
        raise Fault(403, "Suggestions are disabled on this server.")

    @describe(
        "Translate a file, which keeps its layout: " + ", ".join(SUFFIXES),
        fields=UploadFields,
        answer=record(translatedFileUrl=TEXT),
        errors=TRANSLATED,
        only_parts=True,
    )
    async def upload(request: Request) -> Response:
        fields = await parameters_with_file(request)
        check_key(service, request, fields)
        asked = read(UploadFields, fields)
        name, content = asked.file
        kind = kind_of_file(name)
        source, target = known_languages(service, asked.source, asked.target)
        address = service.doors.base_address(request.scope)
        options = DocumentOptions(
            language=source,
            target=target,
            keep=asked.keep,
            terms=service.glossaries.terms(asked.glossary_id, source, target) or {},
            attributes=asked.attributes == "all",
        )
        translated, _ = await translate_file(service, content, kind, options)
        key = await files.add(translated, name_of_translation(name, target))
        return JSONResponse({"translatedFileUrl": f"{address}/download_file/{key}"})

    @describe(
        "A file that was translated, for half an hour.",
        in_path=DownloadPath,
        answer=BYTES,
        answer_type="application/octet-stream",
        errors=(404,),
    )
    async def download(request: Request) -> Response:
        if (found := files.open(request.path_params["name"])) is None:
            raise Fault(404, "no such file, or no more")
        return send_file(*found)

    return [
        Route("/translate", translate, methods=["POST"]),
        Route("/detect", detect, methods=["POST"]),
        Route("/languages", languages, methods=["GET"]),
        Route("/frontend/settings", settings, methods=["GET"]),
        Route("/suggest", suggest, methods=["POST"]),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
        Route("/download_file/{name}", download, methods=["GET"]),
    ]


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability), "language": language}  # a whole number of percent
