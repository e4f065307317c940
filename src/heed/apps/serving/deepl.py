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
from starlette.routing import Route

from heed.apps.documents.formats import SUFFIXES
from heed.apps.documents.markup import markup_options
from heed.apps.documents.translation import DocumentOptions
from heed.apps.serving.documents import detect_html, translate_file, translate_html
from heed.apps.serving.faults import Fault
from heed.apps.serving.fields import Attributes, Code, Fields, Keep, Target, Text, Texts, Upload, read
from heed.apps.serving.files import FileStore, StoredFile, kind_of_file, name_of_translation, send_file
from heed.apps.serving.glossary_routes import glossary_routes
from heed.apps.serving.languages import NAMES, known_code, language_name
from heed.apps.serving.requests import (
    check_bytes,
    check_key,
    check_pair,
    deepl_languages,
    parameters,
    parameters_with_file,
)
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
    describe,
    list_of,
    record,
)
from heed.errors import HeedError

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
    """Names, which a client may give as a list or in one text. Fault if they are too many or too long."""
    if not isinstance(value, list | str):
        return value
    parts = value if isinstance(value, list) else value.split(",")
    names = [part.strip() if isinstance(part, str) else part for part in parts if part not in ("", " ")]
    if len(names) > MAX_NAMES:
        raise Fault(400, f"{info.field_name} has {len(names)} names, more than {MAX_NAMES}")
    if (longest := max((len(name) for name in names if isinstance(name, str)), default=0)) > MAX_NAME:
        raise Fault(400, f"{info.field_name} has a name of {longest} characters, more than {MAX_NAME}")
    return names


Names = Annotated[list[Text], FailFast(), BeforeValidator(_as_names), WithJsonSchema(TEXTS)]


GLOSSARY_ID = Field(default="", description="A glossary of `source_lang`, which it needs, and `target_lang`.")


class Wishes(Fields):
    """DeepL's options that no model here has: refused, unless they are only hints."""

    formality: Annotated[str, WithJsonSchema(choice(*FORMALITIES))] = Field(
        default="default", description="Ignored: no model here has any."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_only_what_is_supported(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in NOT_SUPPORTED:
            if fields.get(name):
                raise Fault(400, f"{name} is not supported")
        return fields

    @field_validator("formality", mode="before")
    @classmethod
    def _is_ignored(cls, value: Any) -> Any:
        if value not in FORMALITIES:
            raise Fault(400, "formality is not supported; prefer_more and prefer_less are ignored")
        return value


class TranslateFields(Wishes):
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
            raise Fault(400, "tag_handling must be html or xml")
        return value

    @model_validator(mode="after")
    def _has_tags_to_split_at(self) -> Self:
        for name in ("splitting_tags", "non_splitting_tags"):
            if getattr(self, name) and self.tag_handling != "xml":
                raise Fault(400, f"{name} needs tag_handling=xml")
        return self

    def markup(self) -> bytes:
        """How the texts are read, and the translations written; b"" for plain texts."""
        if not self.tag_handling:
            return b""
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


class DocumentFields(Wishes):
    file: Upload = Field(description="The document.")
    target_lang: Target
    glossary_id: Text = GLOSSARY_ID
    keep: Keep = ()
    attributes: Attributes = "all"
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


def routes(service: Service, files: FileStore) -> list[Route]:
    """The endpoints."""

    @describe(
        "DeepL: translate texts.",
        fields=TranslateFields,
        answer=record(
            translations=list_of(
                record(
                    detected_source_language=TEXT,
                    text=TEXT,
                    billed_characters=COUNT,
                    model_type_used=TEXT,
                    message=TEXT,
                )
            )
        ),
        errors=TRANSLATED,
    )
    async def translate(request: Request) -> Response:
        # First what costs least to refuse.
        fields = await parameters(request)
        check_key(service, request, fields)
        asked = read(TranslateFields, fields)
        markup = asked.markup()
        texts = asked.text
        check_bytes(service, texts)
        given, target = deepl_languages(service, asked.source_lang, asked.target_lang)
        terms = service.glossaries.terms(asked.glossary_id, given, target)

        # Languages, by our codes; without a source, each text's own.
        deadline = service.deadline()
        faults: dict[int, HeedError] = {}
        if given:
            sources = [given] * len(texts)
        elif markup:
            detected = await detect_html(service, texts, target, deadline=deadline, markup=markup, faults=faults)
            sources = [language for language, _ in detected]
        else:
            sources = [(await service.detect_source(text, target))[0] for text in texts]
        pairs = [(source, target) for source in sources]
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)

        # Translations of pages keep their markup; of plain text, `split_sentences` decides what a line end means.
        if markup:
            found = await translate_html(
                service, texts, pairs, deadline=deadline, markup=markup, faults=faults, keep=asked.keep, terms=terms
            )
        else:
            joins = asked.split_sentences == "nonewlines"
            plain = [" ".join(text.splitlines()) for text in texts] if joins else texts
            by_line = asked.split_sentences == "0"
            results = await service.translate(plain, pairs, by_line=by_line, keep=asked.keep, terms=terms)
            found = [translated.text for translated in results]

        # DeepL bills the characters of the source. A text that could not be read comes back with its fault.
        used = {"model_type_used": asked.model_type.removeprefix("prefer_")} if asked.model_type else {}
        answers = [
            {"detected_source_language": source.upper(), "text": translation, "billed_characters": len(text)} | used
            for text, source, translation in zip(texts, sources, found, strict=True)
        ]
        for i, fault in faults.items():
            answers[i] |= {"billed_characters": 0, "message": str(fault)}
        return JSONResponse({"translations": answers})

    @describe(
        "DeepL: the languages.",
        fields=LanguagesFields,
        answer=list_of(record(language=TEXT, name=TEXT, supports_formality=FLAG)),
        errors=READ,
    )
    async def languages(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        if read(LanguagesFields, fields).type == "source":
            return JSONResponse([_entry(code.upper()) for code in service.languages()])
        # Clients look for their source language there, too; into itself, a text stays as it is.
        codes = sorted(service.codes())
        variants = [variant for code in codes for variant in VARIANTS.get(code, [code.upper()])]
        return JSONResponse([_entry(variant) | {"supports_formality": False} for variant in variants])

    @describe(
        "DeepL: characters translated since the server began; there is no quota.",
        answer=record(character_count=COUNT, character_limit=COUNT),
        errors=READ,
    )
    async def usage(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse({"character_count": service.n_characters, "character_limit": NO_LIMIT})

    # A document lies under its key, from which its id is derived: nothing is kept longer than the document, and no
    # address that has the id alone leads to it.
    secret = secrets.token_bytes(32)

    def id_of(key: str) -> str:
        return hmac.new(secret, key.encode(), "sha256").hexdigest()

    async def open_document(request: Request) -> tuple[str, StoredFile, BinaryIO]:
        """Its key, and what lies there. Fault unless the request has the key of a document that is still there."""
        fields = await parameters(request)
        check_key(service, request, fields)
        document, key = request.path_params["document_id"], read(DocumentKey, fields).document_key
        is_its_key = hmac.compare_digest(document.encode(errors="replace"), id_of(key).encode())
        if not is_its_key or (found := files.open(key)) is None:
            raise Fault(404, "no such document, or no more, or another key")
        return key, *found

    @describe(
        "DeepL: translate a document, which keeps its layout: " + ", ".join(SUFFIXES),
        fields=DocumentFields,
        answer=record(document_id=TEXT, document_key=TEXT),
        errors=TRANSLATED,
        only_parts=True,
    )
    async def upload(request: Request) -> Response:
        fields = await parameters_with_file(request)
        check_key(service, request, fields)
        asked = read(DocumentFields, fields)
        name = asked.filename or asked.file.name
        kind = kind_of_file(name)
        given, target = deepl_languages(service, asked.source_lang, asked.target_lang)
        if asked.output_format and SUFFIXES.get(f".{asked.output_format.lower()}") != kind:
            raise Fault(400, "output_format is not supported: a document keeps its format")
        options = DocumentOptions(
            language=given or "auto",
            target=target,
            keep=asked.keep,
            terms=service.glossaries.terms(asked.glossary_id, given, target) or {},
            attributes=asked.attributes == "all",
        )
        translated, n_characters = await translate_file(service, asked.file.content, kind, options)
        key = await files.add(translated, name_of_translation(name, target), n_characters=n_characters)
        return JSONResponse({"document_id": id_of(key), "document_key": key})

    @describe(
        "DeepL: a document's status, which is done once the upload has been answered.",
        in_path=DocumentPath,
        fields=DocumentKey,
        answer=record(document_id=TEXT, status=TEXT, billed_characters=COUNT),
        errors=(*READ, 404),
    )
    async def status(request: Request) -> Response:
        _, stored, opened = await open_document(request)
        opened.close()
        answer = {"document_id": request.path_params["document_id"], "status": "done"}
        return JSONResponse(answer | {"billed_characters": stored.n_characters})

    @describe(
        "DeepL: a translated document, once; after that it is deleted.",
        in_path=DocumentPath,
        fields=DocumentKey,
        answer=BYTES,
        answer_type="application/octet-stream",
        errors=(*READ, 404),
    )
    async def result(request: Request) -> Response:
        key, stored, opened = await open_document(request)
        files.remove(key)
        return send_file(stored, opened)

    return [
        *glossary_routes(service),
        Route(UPLOAD_PATH, upload, methods=["POST"]),
        Route("/v2/document/{document_id}", status, methods=["POST"]),
        Route("/v2/document/{document_id}/result", result, methods=["POST"]),
        Route("/v2/translate", translate, methods=["GET", "POST"]),  # deep-translator asks with GET
        Route("/v2/languages", languages, methods=["GET"]),
        Route("/v2/usage", usage, methods=["GET", "POST"]),
    ]


def _entry(code: str) -> dict[str, Any]:
    region = {"EN-GB": " (British)", "EN-US": " (American)", "PT-BR": " (Brazilian)", "PT-PT": " (European)"}
    return {"language": code, "name": language_name(known_code(code, NAMES)) + region.get(code, "")}
