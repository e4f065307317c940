"""LibreTranslate's interface (libretranslate.com/docs), for its clients."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heed.apps.documents.formats import SUFFIXES
from heed.apps.documents.text.translation import DocumentOptions
from heed.apps.serving.documents import DocumentFields, translate_file, translate_texts
from heed.apps.serving.fields import Alternatives, Fields, Keep, Key, Source, Target, Text, Texts, Upload
from heed.apps.serving.files import kind_of_file, name_of_translation, send_file
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import check_size, known_languages
from heed.apps.serving.service import Service
from heed.apps.serving.specification import BYTES, COUNT, FLAG, READ, TEXT, TEXTS, TRANSLATED, endpoint, list_of, record
from heed.text.languages import language_name

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

    @model_validator(mode="before")
    @classmethod
    def _as_ours(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {DEEPLX.get(name, name): value for name, value in fields.items()}

    @field_validator("format", mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        if value not in ("text", "html"):
            raise HTTPError(400, f"{str(value)[:20]} format is not supported")
        return value


class DetectFields(Fields):
    q: Text = Field(description="The text.")
    api_key: Key = ""


class UploadFields(DocumentFields):
    file: Upload = Field(description="The file.")
    source: Source
    target: Target
    api_key: Key = ""


class DownloadPath(BaseModel):
    name: str = Field(description="As /translate_file gave it.")


@endpoint(
    "POST",
    "/translate",
    "Translate a text, or several.",
    fields=TranslateFields,
    answer=record(translatedText=TEXTS, detectedLanguage=DETECTION, alternatives=list_of(TEXT), code=COUNT, data=TEXTS),
    errors=TRANSLATED,
)
async def translate(request: Request, service: Service, asked: TranslateFields) -> Response:
    check_size(service, asked.q)
    source, target = known_languages(service, asked.source, asked.target)
    options = DocumentOptions(language=source, target=target, keep=asked.keep)
    markup = b"" if asked.format == "html" else None
    languages, translations = await translate_texts(
        service, asked.q, options, markup=markup, n_best=1 + asked.alternatives
    )

    # Answers have a list where the question had one.
    answer: dict[str, Any] = {"translatedText": [translated.text for translated in translations]}
    if source == "auto":
        answer["detectedLanguage"] = [_detection(*one) for one in languages]
    if asked.alternatives:
        answer["alternatives"] = [list(translated.alternatives) for translated in translations]
    sent = request.state.fields
    if not isinstance(sent.get("q", sent.get("text")), list):
        answer = {name: values[0] for name, values in answer.items()}
    if "q" not in sent:
        answer |= {"code": 200, "data": answer["translatedText"]}
    return JSONResponse(answer)


@endpoint("POST", "/detect", "Tell a text's language.", fields=DetectFields, answer=list_of(DETECTION), errors=READ)
async def detect(request: Request, service: Service, asked: DetectFields) -> Response:
    check_size(service, [asked.q])
    ranked = await service.detect(asked.q)
    return JSONResponse([_detection(*one) for one in ranked if one[1] >= 0.01] or [_detection(*ranked[0])])


@endpoint(
    "GET",
    "/languages",
    "The languages, each with those that it is translated into.",
    answer=list_of(record(code=TEXT, name=TEXT, targets=list_of(TEXT))),
    is_open=True,
)
async def languages(request: Request, service: Service, _: None) -> Response:
    # Clients look for their target among the codes, too. A text stays as it is in its own language.
    only_targets = {tgt: [tgt] for _, tgt in sorted(service.engines) if tgt not in service.languages}
    every = (service.languages | only_targets).items()
    return JSONResponse([{"code": code, "name": language_name(code), "targets": targets} for code, targets in every])


@endpoint(
    "GET",
    "/frontend/settings",
    "What a page needs to know of the server.",
    answer=record(charLimit=COUNT, keyRequired=FLAG, filesTranslation=FLAG, supportedFilesFormat=list_of(TEXT)),
    is_open=True,
)
async def settings(request: Request, service: Service, _: None) -> Response:
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


NO_SUGGESTIONS = "Refused: this server takes no suggestions."


@endpoint("POST", "/suggest", NO_SUGGESTIONS, status=403, answer=record(error=TEXT), is_open=True)
async def suggest(request: Request, service: Service, _: None) -> Response:
    raise HTTPError(403, "Suggestions are disabled on this server.")


@endpoint(
    "POST",
    UPLOAD_PATH,
    "Translate a file, which keeps its layout: " + ", ".join(SUFFIXES),
    fields=UploadFields,
    answer=record(translatedFileUrl=TEXT),
    errors=(*TRANSLATED, 404),
    only_parts=True,
)
async def upload(request: Request, service: Service, asked: UploadFields) -> Response:
    name, content = asked.file
    kind = kind_of_file(name)
    options = asked.options(service, *known_languages(service, asked.source, asked.target))
    address = service.doors.base_address(request.scope)
    translated, _ = await translate_file(service, content, kind, options)
    key = await service.files.add(translated, name_of_translation(name, options.target))
    return JSONResponse({"translatedFileUrl": f"{address}/download_file/{key}"})


@endpoint(
    "GET",
    "/download_file/{name}",
    "A file that was translated, for half an hour.",
    in_path=DownloadPath,
    answer=BYTES,
    answer_type="application/octet-stream",
    errors=(404,),
    is_open=True,
)
async def download(request: Request, service: Service, _: None) -> Response:
    if (result := service.files.open(request.path_params["name"])) is None:
        raise HTTPError(404, "no such file, or no more")
    return send_file(*result)


ENDPOINTS = (translate, detect, languages, settings, suggest, upload, download)


def _detection(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability), "language": language}  # a whole number of percent
