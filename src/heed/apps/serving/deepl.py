"""DeepL's interface (developers.deepl.com), for its official clients."""

import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from heed.apps.documents.formats import SUFFIXES
from heed.apps.documents.markup import markup_options
from heed.apps.documents.text.translation import DocumentOptions
from heed.apps.serving.documents import DocumentFields, translate_file, translate_texts
from heed.apps.serving.fields import GLOSSARY_ID, Code, Fields, Keep, Target, Text, Texts, Upload
from heed.apps.serving.files import StoredFile, kind_of_file, name_of_translation, send_file
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import check_bytes, deepl_languages
from heed.apps.serving.service import Service
from heed.apps.serving.specification import (
    BYTES,
    COUNT,
    FLAG,
    READ,
    TEXT,
    TEXTS,
    TRANSLATED,
    choice,
    endpoint,
    list_of,
    record,
)
from heed.errors import HeedError
from heed.text.languages import language_name

UPLOAD_PATH = "/v2/document"
# A client must not ask for English or Portuguese alone as a target.
VARIANTS = {"en": ["EN-GB", "EN-US"], "pt": ["PT-BR", "PT-PT"]}
ModelType = Literal["quality_optimized", "prefer_quality_optimized", "latency_optimized"]
NO_LIMIT = 1_000_000_000_000  # what DeepL reports where there is none
FORMALITIES = ("default", "prefer_more", "prefer_less")
# What would change a translation and is not done, instead of ignored.
NOT_SUPPORTED = ("glossary_ids", "style_id", "custom_instructions", "translation_memory_id")
MAX_NAMES = 100  # of tags in a list
MAX_NAME = 100  # characters of a tag's name


def _as_names(value: Any, info: ValidationInfo) -> Any:
    """Names, which a client may give as a list or in one text. HTTPError if they are too many or too long."""
    if not isinstance(value, list | str):
        return value
    parts = value if isinstance(value, list) else value.split(",")
    names = [part.strip() if isinstance(part, str) else part for part in parts if part not in ("", " ")]
    if len(names) > MAX_NAMES:
        raise HTTPError(400, f"{info.field_name} has {len(names)} names, more than {MAX_NAMES}")
    if (longest := max((len(name) for name in names if isinstance(name, str)), default=0)) > MAX_NAME:
        raise HTTPError(400, f"{info.field_name} has a name of {longest} characters, more than {MAX_NAME}")
    return names


Names = Annotated[list[Text], FailFast(), BeforeValidator(_as_names), WithJsonSchema(TEXTS)]


class UnsupportedOptions(Fields):
    """DeepL's options that no model here has: refused, unless they are only hints."""

    formality: Annotated[str, WithJsonSchema(choice(*FORMALITIES))] = Field(
        default="default", description="Ignored: no model here has any."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_only_what_is_supported(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in NOT_SUPPORTED:
            if fields.get(name):
                raise HTTPError(400, f"{name} is not supported")
        return fields

    @field_validator("formality", mode="before")
    @classmethod
    def _is_ignored(cls, value: Any) -> Any:
        if value not in FORMALITIES:
            raise HTTPError(400, "formality is not supported; prefer_more and prefer_less are ignored")
        return value


class TranslateFields(UnsupportedOptions):
    text: Texts = Field(description="The texts.")
    target_lang: Target
    source_lang: Code = Field(default="", description="Code of their language. Default: each text's is detected.")
    tag_handling: Annotated[Literal["", "html", "xml"], WithJsonSchema(choice("html", "xml"))] = Field(
        default="", description="The texts are HTML or XML."
    )
    ignore_tags: Names = Field(
        default=[],
        description=f"Tags, apart by commas or in a list, whose content is not translated: at most {MAX_NAMES}.",
    )
    splitting_tags: Names = Field(default=[], description="Of XML: tags that always end a sentence.")
    non_splitting_tags: Names = Field(default=[], description="Of XML: tags that never end a sentence.")
    outline_detection: Literal["0", "1"] = Field(
        default="1", description="Of XML. 0: only `splitting_tags` end a sentence. Default: 1."
    )
    split_sentences: Literal["0", "1", "nonewlines"] = Field(
        default="1",
        description="Of plain texts. 0: each line is a sentence; nonewlines: a line end is a space. Default: 1.",
    )
    glossary_id: Text = GLOSSARY_ID
    keep: Keep = ()
    context: Text = Field(default="", description="Ignored: a hint that no model here can take.")
    model_type: Annotated[ModelType | None, WithJsonSchema(choice(*get_args(ModelType)))] = Field(
        default=None, description="Answered by `model_type_used`; each pair of languages has one model."
    )

    @field_validator("tag_handling", mode="before")
    @classmethod
    def _is_markup(cls, value: Any) -> Any:
        if value not in ("html", "xml"):
            raise HTTPError(400, "tag_handling must be html or xml")
        return value

    @model_validator(mode="after")
    def _has_tags_to_split_at(self) -> Self:
        for name in ("splitting_tags", "non_splitting_tags"):
            if getattr(self, name) and self.tag_handling != "xml":
                raise HTTPError(400, f"{name} needs tag_handling=xml")
        return self

    def markup(self) -> bytes | None:
        """How the texts are read, and the translations written; None for plain texts."""
        if not self.tag_handling:
            return None
        return markup_options(
            self.tag_handling,
            ignored=self.ignore_tags,
            splitting=self.splitting_tags,
            non_splitting=self.non_splitting_tags,
            outline=self.outline_detection == "1",
        )

    @field_validator("split_sentences", "outline_detection", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> str:
        return str(int(value)) if isinstance(value, bool) else str(value)


class UploadFields(DocumentFields, UnsupportedOptions):
    file: Upload = Field(description="The document.")
    target_lang: Target
    source_lang: Code = Field(default="auto", description="Code of its language. Default: it is detected.")
    filename: Text = Field(default="", description="Its name, which says its format. Default: that of the part.")
    output_format: Text = Field(default="", description="The translation's format, which must be the document's.")


class DocumentPath(BaseModel):
    document_id: str = Field(description="As the upload gave it.")


class DocumentKey(Fields):
    document_key: Text = Field(description="As the upload gave it.")


class LanguagesFields(Fields):
    type: Literal["source", "target"] = Field(
        default="source", description="Of texts or of translations. Default: source."
    )


@endpoint(
    "GET POST",  # deep-translator asks with GET
    "/v2/translate",
    "DeepL: translate texts.",
    fields=TranslateFields,
    answer=record(
        translations=list_of(
            record(
                detected_source_language=TEXT, text=TEXT, billed_characters=COUNT, model_type_used=TEXT, message=TEXT
            )
        )
    ),
    errors=(*TRANSLATED, 404),
)
async def translate(request: Request, service: Service, asked: TranslateFields) -> Response:
    check_bytes(service, asked.text)
    source, target = deepl_languages(service, asked.source_lang, asked.target_lang)
    terms = service.glossaries.terms(asked.glossary_id, source, target) or {}
    options = DocumentOptions(language=source, target=target, keep=asked.keep, terms=terms)

    # Of plain texts, `split_sentences` decides what a line end means.
    markup, faults = asked.markup(), dict[int, HeedError]()
    joins = markup is None and asked.split_sentences == "nonewlines"
    languages, translations = await translate_texts(
        service,
        [" ".join(text.splitlines()) for text in asked.text] if joins else asked.text,
        options,
        markup=markup,
        by_line=asked.split_sentences == "0",
        faults=faults,
    )

    # DeepL bills the characters of the source. A text that could not be read comes back with its fault.
    used = {"model_type_used": asked.model_type.removeprefix("prefer_")} if asked.model_type else {}
    answers = [
        {"detected_source_language": language.upper(), "text": made.text, "billed_characters": len(text)} | used
        for text, (language, _), made in zip(asked.text, languages, translations, strict=True)
    ]
    for i, fault in faults.items():
        answers[i] |= {"billed_characters": 0, "message": str(fault)}
    return JSONResponse({"translations": answers})


@endpoint(
    "GET",
    "/v2/languages",
    "DeepL: the languages.",
    fields=LanguagesFields,
    answer=list_of(record(language=TEXT, name=TEXT, supports_formality=FLAG)),
    errors=READ,
)
async def languages(request: Request, service: Service, asked: LanguagesFields) -> Response:
    if asked.type == "source":
        return JSONResponse([_entry(code.upper()) for code in service.languages])
    # Clients look for their source language there, too; into itself, a text stays as it is.
    variants = [variant for code in sorted(service.codes) for variant in VARIANTS.get(code, [code.upper()])]
    return JSONResponse([_entry(variant) | {"supports_formality": False} for variant in variants])


@endpoint(
    "GET POST",
    "/v2/usage",
    "DeepL: characters translated since the server began; there is no quota.",
    answer=record(character_count=COUNT, character_limit=COUNT),
    errors=READ,
)
async def usage(request: Request, service: Service, _: None) -> Response:
    return JSONResponse({"character_count": service.n_characters, "character_limit": NO_LIMIT})


@endpoint(
    "POST",
    UPLOAD_PATH,
    "DeepL: translate a document, which keeps its layout: " + ", ".join(SUFFIXES),
    fields=UploadFields,
    answer=record(document_id=TEXT, document_key=TEXT),
    errors=(*TRANSLATED, 404),
    only_parts=True,
)
async def upload(request: Request, service: Service, asked: UploadFields) -> Response:
    name = asked.filename or asked.file.name
    kind = kind_of_file(name)
    options = asked.options(service, *deepl_languages(service, asked.source_lang, asked.target_lang))
    if asked.output_format and SUFFIXES.get(f".{asked.output_format.lower()}") != kind:
        raise HTTPError(400, "output_format is not supported: a document keeps its format")
    translated, n_characters = await translate_file(service, asked.file.content, kind, options)
    name = name_of_translation(name, options.target)
    key = await service.files.add(translated, name, n_characters=n_characters)
    return JSONResponse({"document_id": _id_of(key), "document_key": key})


@endpoint(
    "POST",
    UPLOAD_PATH + "/{document_id}",
    "DeepL: a document's status, which is done once the upload has been answered.",
    in_path=DocumentPath,
    fields=DocumentKey,
    answer=record(document_id=TEXT, status=TEXT, billed_characters=COUNT),
    errors=(*READ, 404),
)
async def status(request: Request, service: Service, asked: DocumentKey) -> Response:
    stored, opened = _open_document(request, service, asked.document_key)
    opened.close()
    answer = {"document_id": request.path_params["document_id"], "status": "done"}
    return JSONResponse(answer | {"billed_characters": stored.n_characters})


@endpoint(
    "POST",
    UPLOAD_PATH + "/{document_id}/result",
    "DeepL: a translated document, once; after that it is deleted.",
    in_path=DocumentPath,
    fields=DocumentKey,
    answer=BYTES,
    answer_type="application/octet-stream",
    errors=(*READ, 404),
)
async def result(request: Request, service: Service, asked: DocumentKey) -> Response:
    stored, opened = _open_document(request, service, asked.document_key)
    service.files.remove(asked.document_key)
    return send_file(stored, opened)


ENDPOINTS = (translate, languages, usage, upload, status, result)

# A document lies under its key, from which its id is derived: nothing is kept longer than the document, and no address
# that has the id alone leads to it.
_SECRET = secrets.token_bytes(32)


def _id_of(key: str) -> str:
    return hmac.new(_SECRET, key.encode(), "sha256").hexdigest()


def _open_document(request: Request, service: Service, key: str) -> tuple[StoredFile, BinaryIO]:
    """What lies under a key. HTTPError unless it is that of the document in the path, which is still there."""
    document = request.path_params["document_id"]
    is_its_key = hmac.compare_digest(document.encode(errors="replace"), _id_of(key).encode())
    if not is_its_key or (result := service.files.open(key)) is None:
        raise HTTPError(404, "no such document, or no more, or another key")
    return result


def _entry(code: str) -> dict[str, Any]:
    region = {"EN-GB": " (British)", "EN-US": " (American)", "PT-BR": " (Brazilian)", "PT-PT": " (European)"}
    return {
        "language": code,
        "name": language_name(code.partition("-")[0] if code in region else code) + region.get(code, ""),
    }
