"""Heed's own interface: translations sentence by sentence as they are made, and what the model attends to."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from heed.decoding.translator import Translator
from heed.serving.faults import Fault
from heed.serving.libretranslate import KEY, check_format
from heed.serving.requests import (
    as_fault,
    check_key,
    check_pair,
    check_size,
    checked_text,
    number_field,
    parameters,
    text_field,
    texts_field,
)
from heed.serving.sentences import SplitText
from heed.serving.service import Service
from heed.serving.specification import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    TRANSLATED,
    Parameter,
    choice,
    described,
    list_of,
    record,
)
from heed.visualization.trace import VIEWS, Attention, View, trace

MAX_ATTENTION_CHARS = 600  # the weights grow with the square of the length
MAX_WEIGHTS = 8_000_000  # of an answer, which take some seconds and half a gigabyte
LANGUAGES = (
    Parameter("source", TEXT, 'Code of its language, or "auto". Default: the only pair\'s, or auto.'),
    Parameter("target", TEXT, "Code of the language to translate into. Default: the only pair's."),
)
WEIGHTS = record(queries=list_of(TEXT), keys=list_of(TEXT), weights=list_of(list_of(list_of(list_of(NUMBER)))))


def routes(service: Service) -> list[Route]:
    """The endpoints."""

    @described(
        'Translate texts sentence by sentence: a line of JSON for each as it is finished, {"done": true} at the end.',
        fields=(
            Parameter("q", TEXTS, "The text, or a list of texts.", required=True),
            *LANGUAGES,
            Parameter("alternatives", COUNT, "Other translations of each sentence to give."),
            Parameter("prefix", TEXT, "What every translation begins with."),
            KEY,
        ),
        answer=record(
            text=COUNT,
            sentence=COUNT,
            start=COUNT,
            language=TEXT,
            source=TEXT,
            translation=TEXT,
            score=NUMBER,
            ended=FLAG,
            pieces=COUNT,
            alternatives=list_of(TEXT),
        ),
        answer_type="application/x-ndjson",
        errors=TRANSLATED,
    )
    async def translate(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        texts = texts_field(fields, "q")
        check_size(service, texts)
        check_format(fields)
        pairs = [await _pair(service, fields, text) for text in texts]
        n_best = 1 + number_field(fields, "alternatives", most=service.limits.max_alternatives)
        prefix = checked_text(fields.get("prefix") or "", "prefix")
        check_size(service, [prefix])
        service.check_room(pairs)
        parts = await service.split(texts, pairs)
        if len(prefix) * sum(len(part.starts) for part in parts) > service.limits.max_chars:
            raise Fault(
                400, f"the prefix, once for every sentence, has more than {service.limits.max_chars} characters"
            )
        lines = _lines(service, parts, pairs, n_best=n_best, prefix=prefix)
        # An error that comes before the first sentence still has a status of its own.
        first = await anext(lines)
        return StreamingResponse(_with_first(first, lines), media_type="application/x-ndjson")

    @described(
        "Every head's weights while a translation is written.",
        fields=(
            Parameter("q", TEXT, f"A sentence of at most {MAX_ATTENTION_CHARS} characters.", required=True),
            *LANGUAGES,
            Parameter("translation", TEXT, "What is written. Default: what the model translates it to."),
            Parameter("views", list_of(choice(*VIEWS)), "Whose weights to give, or [] for none. Default: all."),
            KEY,
        ),
        answer=record(
            source=TEXT,
            translation=TEXT,
            **dict.fromkeys(VIEWS, WEIGHTS),
            alignment=list_of(list_of(COUNT)) | {"nullable": True},
        ),
        errors=TRANSLATED,
    )
    async def attention(request: Request) -> Response:
        fields = await parameters(request)
        check_key(service, request, fields)
        source = text_field(fields, "q")
        views = _views_field(fields)
        pair = await _pair(service, fields, source)
        if pair not in service.engines:
            raise Fault(400, "source and target are the same language")
        deadline = service.deadline()
        service.attention.check_room()  # before the work of translating
        check_size(service, [source])
        _check_length(source, views)
        translation = fields.get("translation")
        if translation is None:
            async with aclosing(service.translations([[source]], [pair], deadline=deadline)) as results:
                _, _, found = await anext(results)
                translation = found.text
        translation = checked_text(translation, "translation")
        check_size(service, [source, translation])
        _check_length(translation, views)
        translator = service.engines[pair].translator
        service.attention.check_room()
        async with service.in_time(deadline):
            content = await service.attention.run(partial(_attention, translator, source, translation, views))
        return Response(content, media_type="application/json")

    return [
        Route("/v1/translate", translate, methods=["POST"]),
        Route("/v1/attention", attention, methods=["POST"]),
    ]


async def _pair(service: Service, fields: dict[str, Any], text: str) -> tuple[str, str]:
    """The languages that a text is translated from and to; of a server of one pair they can be left out."""
    only = next(iter(service.engines)) if len(service.engines) == 1 else ("auto", "")
    source = checked_text(fields.get("source") or only[0], "source")
    target = checked_text(fields.get("target") or only[1], "target") or text_field(fields, "target")
    if source == "auto":
        source, _ = await service.detect_source(text, target)
    check_pair(service, source, target)
    return source, target


async def _lines(
    service: Service, parts: list[SplitText], pairs: list[tuple[str, str]], *, n_best: int, prefix: str
) -> AsyncGenerator[str]:
    starts = [part.starts for part in parts]
    async with aclosing(service.sentences(parts, pairs, n_best=n_best, prefix=prefix)) as results:
        started = False
        try:
            async for text, sentence, found in results:
                started = True
                record = {
                    "text": text,
                    "sentence": sentence,
                    "start": starts[text][sentence],
                    "language": pairs[text][0],
                    "source": found.source,
                    "translation": found.text,
                    "score": found.score,
                    "ended": found.ended,
                    "pieces": found.n_pieces,
                }
                if n_best > 1:
                    record["alternatives"] = [other.text for other in found.alternatives[1:]]
                yield json.dumps(record, ensure_ascii=False) + "\n"
        except Exception as error:
            if not started:
                raise
            yield json.dumps({"error": as_fault(error).message}) + "\n"
            return
    yield '{"done":true}\n'


async def _with_first(first: str, lines: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(lines):
        yield first
        async for line in lines:
            yield line


def _views_field(fields: dict[str, Any]) -> list[View]:
    """Those whose weights are asked for; all, if nothing is said."""
    asked = fields.get("views")
    names = list(VIEWS) if asked is None else asked if isinstance(asked, list) else [asked]
    if any(name not in VIEWS for name in names):
        raise Fault(400, f"Invalid request: views parameter is not a list of {', '.join(VIEWS)}")
    return names


def _check_length(text: str, views: list[View]) -> None:
    if views and len(text) > MAX_ATTENTION_CHARS:
        raise Fault(400, f"Invalid request: more than {MAX_ATTENTION_CHARS} characters to look at")


def _attention(translator: Translator, source: str, translation: str, views: list[View]) -> str:
    """In JSON: the weights of these views, and which characters of the translation stand for which of the source."""
    content: dict[str, Any] = {"source": source, "translation": translation}
    if views:
        _check_weights(translator, source, translation, views)
        traced = trace(translator, source, target=translation)
        content |= {name: _weights(traced.view(name)) for name in views}
    return json.dumps(content | {"alignment": translator.alignment(source, translation)})


def _check_weights(translator: Translator, source: str, translation: str, views: list[View]) -> None:
    """Fault if the answer would be too long: rare characters are several tokens each."""
    n_src = 1 + len(translator.tokenizer.encode(source))
    n_tgt = 1 + len(translator.tokenizer.encode_targets([translation])[0])
    arch = translator.models[0].arch
    layers = {"encoder": arch.encoder_layers, "decoder": arch.decoder_layers, "cross": arch.decoder_layers}
    sizes = {"encoder": n_src * n_src, "decoder": n_tgt * n_tgt, "cross": n_src * n_tgt}
    n_weights = arch.n_heads * sum(layers[view] * sizes[view] for view in views)
    if n_weights > MAX_WEIGHTS:
        raise Fault(400, f"Invalid request: {n_weights:,} weights, more than {MAX_WEIGHTS:,}; ask for fewer views")


def _weights(attention: Attention) -> dict[str, Any]:
    """Weights as [layer][head][query][key], to four digits."""
    return {
        "queries": attention.queries,
        "keys": attention.keys,
        "weights": [
            [[[round(float(w), 4) for w in row] for row in head] for head in layer] for layer in attention.weights
        ],
    }
