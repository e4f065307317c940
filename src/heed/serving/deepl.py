"""DeepL's interface (developers.deepl.com), for its official clients."""

from collections.abc import Collection
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heed.serving.documents import detect_html, translate_html
from heed.serving.faults import Fault
from heed.serving.languages import language_name
from heed.serving.requests import check_key, check_pair, check_size, parameters, text_field, texts_field
from heed.serving.service import Service
from heed.serving.specification import (
    COUNT,
    FLAG,
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

# A client must not ask for English or Portuguese alone as a target.
VARIANTS = {"en": ["EN-GB", "EN-US"], "pt": ["PT-BR", "PT-PT"]}
NO_LIMIT = 1_000_000_000_000  # what DeepL reports where there is none
# What would change a translation and is not done, instead of ignored.
NOT_SUPPORTED = (
    "glossary_id", "style_id", "custom_instructions", "translation_memory_id", "ignore_tags", "splitting_tags",
    "non_splitting_tags", "context",
)  # fmt: skip


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    @described(
        "DeepL: translate texts.",
        fields=(
            Parameter("text", TEXTS, "The texts.", required=True),
            Parameter("target_lang", TEXT, "Code of the language to translate into.", required=True),
            Parameter("source_lang", TEXT, "Code of their language. Default: each text's is detected."),
            Parameter("tag_handling", choice("html"), "The texts are HTML."),
            Parameter(
                "split_sentences",
                choice("0", "1", "nonewlines"),
                "Of plain texts. 0: each line is a sentence; nonewlines: a line end is a space. Default: 1.",
            ),
        ),
        answer=record(translations=list_of(record(detected_source_language=TEXT, text=TEXT, billed_characters=COUNT))),
        errors=TRANSLATED,
    )
    async def translate(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        for name in NOT_SUPPORTED:
            if fields.get(name):
                raise Fault(400, f"{name} is not supported")
        texts = texts_field(fields, "text")
        target = _code(text_field(fields, "target_lang"), {tgt for _, tgt in service.engines})
        check_size(service, texts)
        is_html = _is_html(fields)
        splitting = _splitting(fields, is_html=is_html)
        deadline = service.deadline()
        if fields.get("source_lang"):
            sources = [_code(text_field(fields, "source_lang"), service.languages())] * len(texts)
        else:
            tell = partial(detect_html, service, deadline=deadline) if is_html else service.detect_source
            sources = [(await tell(text, target))[0] for text in texts]
        pairs = [(source, target) for source in sources]
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)
        if is_html:
            found = await translate_html(service, texts, pairs, deadline=deadline)
        else:
            asked = [" ".join(text.splitlines()) for text in texts] if splitting == "nonewlines" else texts
            results = await service.translate(asked, pairs, by_line=splitting == "0")
            found = [translated.text for translated in results]
        return JSONResponse(
            {
                "translations": [
                    {
                        "detected_source_language": source.upper(),
                        "text": translation,
                        "billed_characters": len(text),
                    }
                    for text, source, translation in zip(texts, sources, found, strict=True)
                ]
            }
        )

    @described(
        "DeepL: the languages.",
        fields=(Parameter("type", choice("source", "target"), "Of texts or of translations. Default: source."),),
        answer=list_of(record(language=TEXT, name=TEXT, supports_formality=FLAG)),
        errors=READ,
    )
    async def languages(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        kind = fields.get("type") or "source"
        if kind not in ("source", "target"):
            raise Fault(400, "type must be source or target")
        if kind == "source":
            return JSONResponse([_entry(code.upper()) for code in service.languages()])
        codes = sorted({tgt for _, tgt in service.engines})
        variants = [variant for code in codes for variant in VARIANTS.get(code, [code.upper()])]
        return JSONResponse([_entry(variant) | {"supports_formality": False} for variant in variants])

    @described(
        "DeepL: characters translated since the server began; there is no quota.",
        answer=record(character_count=COUNT, character_limit=COUNT),
        errors=READ,
    )
    async def usage(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse({"character_count": service.n_characters, "character_limit": NO_LIMIT})

    return [
        Route("/v2/translate", translate, methods=["GET", "POST"]),  # deep-translator asks with GET
        Route("/v2/languages", languages, methods=["GET"]),
        Route("/v2/usage", usage, methods=["GET", "POST"]),
    ]


def _is_html(fields: dict[str, Any]) -> bool:
    """Whether the texts are HTML. Fault for other markup, and for a formality that no model here has."""
    if fields.get("formality") not in (None, "", "default", "prefer_more", "prefer_less"):
        raise Fault(400, "formality is not supported; prefer_more and prefer_less are ignored")
    handling = fields.get("tag_handling") or None
    if handling not in (None, "html"):
        raise Fault(400, "tag_handling: only html is supported")
    return handling == "html"


def _splitting(fields: dict[str, Any], *, is_html: bool) -> str:
    """The value of split_sentences. Fault for one that DeepL does not know, and for 0 in HTML."""
    value = fields.get("split_sentences")
    splitting = "1" if value in (None, "", True) else "0" if value is False else str(value)
    if splitting not in ("0", "1", "nonewlines"):
        raise Fault(400, "split_sentences must be 0, 1 or nonewlines")
    if is_html and splitting == "0":
        raise Fault(400, "split_sentences: 0 is not supported in HTML")
    return splitting


def _code(language: str, known: Collection[str] = ()) -> str:
    """As the models name it: EN-GB is en, unless there is a model for EN-GB."""
    code = language.lower()
    return {name.lower(): name for name in known}.get(code, code.partition("-")[0])


def _entry(code: str) -> dict[str, Any]:
    region = {"EN-GB": " (British)", "EN-US": " (American)", "PT-BR": " (Brazilian)", "PT-PT": " (European)"}
    return {"language": code, "name": language_name(_code(code)) + region.get(code, "")}
