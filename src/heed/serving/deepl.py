"""DeepL's interface (developers.deepl.com), for its official clients."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heed.serving.languages import language_name
from heed.serving.libretranslate import check_pair, detect_language
from heed.serving.requests import Fault, check_key, check_size, parameters, text_field, texts_field
from heed.serving.service import Service

# A client must not ask for English or Portuguese alone as a target.
VARIANTS = {"en": ["EN-GB", "EN-US"], "pt": ["PT-BR", "PT-PT"]}
NO_LIMIT = 1_000_000_000_000  # what DeepL reports where there is none
NOT_SUPPORTED = ("glossary_id", "tag_handling", "style_id", "custom_instructions", "translation_memory_id")


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    async def translate(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        for name in NOT_SUPPORTED:
            if fields.get(name):
                raise Fault(400, f"{name} is not supported")
        texts = texts_field(fields, "text")
        target = _code(text_field(fields, "target_lang"))
        check_size(service, texts)
        if fields.get("source_lang"):
            sources = [_code(text_field(fields, "source_lang"))] * len(texts)
        else:
            sources = [(await detect_language(service, text))[0] for text in texts]
        pairs = [(source, target) for source in sources]
        for src, tgt in set(pairs):
            check_pair(service, src, tgt)
        found = await service.translate(texts, pairs, by_line=str(fields.get("split_sentences")) == "0")
        return JSONResponse(
            {
                "translations": [
                    {
                        "detected_source_language": source.upper(),
                        "text": translated.text,
                        "billed_characters": len(text),
                    }
                    for text, source, translated in zip(texts, sources, found, strict=True)
                ]
            }
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

    async def usage(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse({"character_count": service.n_characters, "character_limit": NO_LIMIT})

    return [
        Route("/v2/translate", translate, methods=["POST"]),
        Route("/v2/languages", languages, methods=["GET"]),
        Route("/v2/usage", usage, methods=["GET", "POST"]),
    ]


def _code(language: str) -> str:
    """As the models name it: EN-GB is en."""
    return language.partition("-")[0].lower()


def _entry(code: str) -> dict[str, Any]:
    region = {"EN-GB": " (British)", "EN-US": " (American)", "PT-BR": " (Brazilian)", "PT-PT": " (European)"}
    return {"language": code, "name": language_name(_code(code)) + region.get(code, "")}
