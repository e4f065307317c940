"""The endpoints of DeepL's glossaries, version 2."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from heed.apps.documents.text.terms import read_terms
from heed.apps.serving.fields import Fields, Target, Text
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import deepl_languages
from heed.apps.serving.service import Service
from heed.apps.serving.specification import COUNT, FLAG, READ, TEXT, endpoint, list_of, record

GLOSSARIES_PATH = "/v2/glossaries"
GLOSSARY = record(
    glossary_id=TEXT, name=TEXT, ready=FLAG, source_lang=TEXT, target_lang=TEXT, creation_time=TEXT, entry_count=COUNT
)


class GlossaryPath(BaseModel):
    glossary_id: str = Field(description="As its creation gave it.")


class GlossaryFields(Fields):
    name: Text = Field(description="A name, which several glossaries may have.")
    source_lang: Annotated[Text, Field(description="Code of the terms' language.")]
    target_lang: Target
    entries: Text = Field(description="A line for each term: the term and its translation.")
    entries_format: Literal["tsv", "csv"] = Field(default="tsv", description="Default: tsv.")


ONE_PATH = GLOSSARIES_PATH + "/{glossary_id}"


@endpoint("GET", GLOSSARIES_PATH, "DeepL: the glossaries.", answer=record(glossaries=list_of(GLOSSARY)), errors=READ)
async def glossaries(request: Request, service: Service, _: None) -> Response:
    return JSONResponse({"glossaries": [glossary.as_json() for glossary in service.glossaries]})


@endpoint(
    "POST", GLOSSARIES_PATH, "DeepL: make a glossary.", fields=GlossaryFields, answer=GLOSSARY, status=201, errors=READ
)
async def create(request: Request, service: Service, asked: GlossaryFields) -> Response:
    source, target = deepl_languages(service, asked.source_lang, asked.target_lang)
    if (source, target) not in service.engines:
        raise HTTPError(400, f"Value for 'source_lang' not supported in a glossary: {asked.source_lang[:20]}")
    entries = read_terms(asked.entries, asked.entries_format)
    made = await service.glossaries.add(asked.name, source, target, entries)
    return JSONResponse(made.as_json(), 201)


@endpoint("GET", ONE_PATH, "DeepL: a glossary.", in_path=GlossaryPath, answer=GLOSSARY, errors=(*READ, 404))
async def glossary(request: Request, service: Service, _: None) -> Response:
    return JSONResponse(service.glossaries.find(request.path_params["glossary_id"]).as_json())


@endpoint(
    "GET",
    f"{ONE_PATH}/entries",
    "DeepL: a glossary's entries, a line each, with a tab between a term and its translation.",
    in_path=GlossaryPath,
    answer_type="text/tab-separated-values",
    errors=(*READ, 404),
)
async def entries(request: Request, service: Service, _: None) -> Response:
    glossary = service.glossaries.find(request.path_params["glossary_id"])
    return PlainTextResponse(glossary.as_tsv(), media_type="text/tab-separated-values")


@endpoint("DELETE", ONE_PATH, "DeepL: delete a glossary.", in_path=GlossaryPath, status=204, errors=(*READ, 404))
async def delete(request: Request, service: Service, _: None) -> Response:
    await service.glossaries.remove(request.path_params["glossary_id"])
    return Response(status_code=204)


@endpoint(
    "GET",
    "/v2/glossary-language-pairs",
    "DeepL: the pairs of languages that glossaries are for.",
    answer=record(supported_languages=list_of(record(source_lang=TEXT, target_lang=TEXT))),
    errors=READ,
)
async def pairs(request: Request, service: Service, _: None) -> Response:
    return JSONResponse(
        {"supported_languages": [{"source_lang": src, "target_lang": tgt} for src, tgt in service.engines]}
    )


# Newer clients look for glossaries of version 3 and go on if there are none.
@endpoint(
    "GET",
    "/v3/glossaries",
    "DeepL: glossaries of version 3, of which this server has none.",
    answer=record(glossaries=list_of(TEXT)),
    errors=READ,
)
async def none(request: Request, service: Service, _: None) -> Response:
    return JSONResponse({"glossaries": []})


ENDPOINTS = (pairs, glossaries, create, glossary, delete, entries, none)
