"""The endpoints of DeepL's glossaries, version 2."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from heed.apps.documents.terms import read_terms
from heed.apps.serving.faults import Fault
from heed.apps.serving.fields import Fields, Target, Text, read
from heed.apps.serving.requests import check_key, deepl_languages, parameters
from heed.apps.serving.service import Service
from heed.apps.serving.specification import COUNT, FLAG, READ, TEXT, describe, list_of, record

GLOSSARIES_PATH = "/v2/glossaries"
GLOSSARY = record(
    glossary_id=TEXT,
    name=TEXT,
    ready=FLAG,
    source_lang=TEXT,
    target_lang=TEXT,
    creation_time=TEXT,
    entry_count=COUNT,
)


class GlossaryPath(BaseModel):
    glossary_id: str = Field(description="As its creation gave it.")


class GlossaryFields(Fields):
    name: Text = Field(description="A name, which several glossaries may have.")
    source_lang: Annotated[Text, Field(description="Code of the terms' language.")]
    target_lang: Target
    entries: Text = Field(description="A line for each term: the term and its translation.")
    entries_format: Literal["tsv", "csv"] = Field(default="tsv", description="Default: tsv.")


def glossary_routes(service: Service) -> list[Route]:
    """The endpoints."""
    store = service.glossaries

    @describe("DeepL: the glossaries.", answer=record(glossaries=list_of(GLOSSARY)), errors=READ)
    async def glossaries(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse({"glossaries": [glossary.facts() for glossary in store]})

    @describe("DeepL: make a glossary.", fields=GlossaryFields, answer=GLOSSARY, status=201, errors=READ)
    async def create(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        asked = read(GlossaryFields, fields)
        source, target = deepl_languages(service, asked.source_lang, asked.target_lang)
        if (source, target) not in service.engines:
            raise Fault(400, f"Value for 'source_lang' not supported in a glossary: {asked.source_lang[:20]}")
        glossary = await store.add(asked.name, source, target, read_terms(asked.entries, asked.entries_format))
        return JSONResponse(glossary.facts(), 201)

    @describe("DeepL: a glossary.", in_path=GlossaryPath, answer=GLOSSARY, errors=(*READ, 404))
    async def glossary(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse(store.find(request.path_params["glossary_id"]).facts())

    @describe(
        "DeepL: a glossary's entries, a line each, with a tab between a term and its translation.",
        in_path=GlossaryPath,
        answer_type="text/tab-separated-values",
        errors=(*READ, 404),
    )
    async def entries(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        found = store.find(request.path_params["glossary_id"])
        return PlainTextResponse(found.as_tsv(), media_type="text/tab-separated-values")

    @describe("DeepL: delete a glossary.", in_path=GlossaryPath, status=204, errors=(*READ, 404))
    async def delete(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        await store.remove(request.path_params["glossary_id"])
        return Response(status_code=204)

    @describe(
        "DeepL: the pairs of languages that glossaries are for.",
        answer=record(supported_languages=list_of(record(source_lang=TEXT, target_lang=TEXT))),
        errors=READ,
    )
    async def pairs(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        found = [{"source_lang": src, "target_lang": tgt} for src, tgt in service.engines]
        return JSONResponse({"supported_languages": found})

    # Newer clients look for glossaries of version 3 and go on if there are none.
    @describe(
        "DeepL: glossaries of version 3, of which this server has none.",
        answer=record(glossaries=list_of(TEXT)),
        errors=READ,
    )
    async def none(request: Request) -> Response:
        check_key(service, request, await parameters(request))
        return JSONResponse({"glossaries": []})

    one = f"{GLOSSARIES_PATH}/{{glossary_id}}"
    return [
        Route("/v2/glossary-language-pairs", pairs, methods=["GET"]),
        Route(GLOSSARIES_PATH, glossaries, methods=["GET"]),
        Route(GLOSSARIES_PATH, create, methods=["POST"]),
        Route(one, glossary, methods=["GET"]),
        Route(one, delete, methods=["DELETE"]),
        Route(f"{one}/entries", entries, methods=["GET"]),
        Route("/v3/glossaries", none, methods=["GET"]),
    ]
