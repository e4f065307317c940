"""Heed's own interface: translations sentence by sentence as they are made, and attention weights."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, WithJsonSchema, field_validator
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from heed.apps.documents.formats.plain_text import TextDraft, write_text
from heed.apps.documents.text.translation import LINE_ENDS_AS_SPACES, DocumentOptions
from heed.apps.serving.fields import Alternatives, Code, Fields, Keep, Key, MayBeEmpty, Text, Texts, as_list
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import as_http_error, check_pair, check_size, model_codes
from heed.apps.serving.service import Service
from heed.apps.serving.specification import COUNT, FLAG, NUMBER, TEXT, TRANSLATED, choice, endpoint, list_of, record
from heed.apps.visualization.trace import VIEWS, View, trace
from heed.decoding.translator import Translator

MAX_ATTENTION_CHARS = 600  # the weights grow with the square of the length
MAX_WEIGHTS = 2_000_000  # of an answer: some 14 MB of JSON
MAX_WEIGHTS_AT_ONCE = 4 * MAX_WEIGHTS  # of all answers that are not yet sent to their end
WEIGHTS = record(queries=list_of(TEXT), keys=list_of(TEXT), weights=list_of(list_of(list_of(list_of(NUMBER)))))


# Of a server of one pair both can be left out.
Source = Annotated[Code, Field(description='Code of its language, or "auto". Default: the only pair\'s, or auto.')]
Target = Annotated[Code, Field(description="Code of the language to translate into. Default: the only pair's.")]


class TranslateFields(Fields):
    q: Texts = Field(description="The text, or a list of texts.")
    source: Source = ""
    target: Target = ""
    format: Annotated[str, WithJsonSchema(choice("text"))] = Field(default="text", description="Plain text alone.")
    alternatives: Alternatives = Field(default=0, description="Other translations of each sentence to give.")
    prefix: Text = Field(default="", description="What every translation begins with.")
    keep: Keep = ()
    api_key: Key = ""

    @field_validator("format", mode="before")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        if value != "text":
            where = "here; /translate takes it" if value == "html" else ""
            raise HTTPError(400, f"{str(value)[:20]} format is not supported {where}".rstrip())
        return value


class AttentionFields(Fields):
    q: Text = Field(description=f"A sentence of at most {MAX_ATTENTION_CHARS} characters.")
    source: Source = ""
    target: Target = ""
    translation: Annotated[Text | None, WithJsonSchema(TEXT), MayBeEmpty] = Field(
        default=None, description="What is written. Default: what the model translates it to."
    )
    views: Annotated[list[View], WithJsonSchema(list_of(choice(*VIEWS)))] = Field(
        default=list(VIEWS), description="Whose weights to give, or [] for none. Default: all."
    )
    api_key: Key = ""

    @field_validator("views", mode="before")
    @classmethod
    def _are_known(cls, value: Any) -> list[Any]:
        if any(name not in VIEWS for name in as_list(value)):
            raise HTTPError(400, f"Invalid request: views parameter is not a list of {', '.join(VIEWS)}")
        return list(dict.fromkeys(as_list(value)))  # each once, however often it is named


@endpoint(
    "POST",
    "/v1/translate",
    'Translate texts sentence by sentence: a line of JSON for each as it is finished, {"done": true} at the end.',
    fields=TranslateFields,
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
        best=FLAG,
        alternatives=list_of(TEXT),
    ),
    answer_type="application/x-ndjson",
    errors=TRANSLATED,
)
async def translate(request: Request, service: Service, asked: TranslateFields) -> Response:
    texts, prefix = asked.q, asked.prefix
    check_size(service, texts)

    # Room is checked before the work of splitting, and the prefix as often as it will be searched.
    pairs = [await _pair(service, asked, text) for text in texts]
    check_size(service, [prefix])
    service.check_room(pairs)
    drafts = await service.drafts(texts, pairs, DocumentOptions(language="", keep=asked.keep))
    if len(prefix) * sum(len(draft.questions) for draft in drafts) > service.limits.max_chars:
        raise HTTPError(
            400, f"the prefix, given once for each sentence, has over {service.limits.max_chars} characters"
        )

    # An error that comes before the first sentence still has a status of its own.
    lines = _lines(service, drafts, pairs, n_best=1 + asked.alternatives, prefix=prefix)
    first = await anext(lines)
    return StreamingResponse(_with_first(first, lines), media_type="application/x-ndjson")


@endpoint(
    "POST",
    "/v1/attention",
    "Every head's weights while a translation is written.",
    fields=AttentionFields,
    answer=record(
        source=TEXT,
        translation=TEXT,
        **dict.fromkeys(VIEWS, WEIGHTS),
        alignment=list_of(list_of(COUNT)) | {"nullable": True},
    ),
    errors=TRANSLATED,
)
async def attention(request: Request, service: Service, asked: AttentionFields) -> Response:
    # A sentence of a wrapped text holds line ends, which the model reads as spaces.
    source, views, translation = asked.q.translate(LINE_ENDS_AS_SPACES), asked.views, asked.translation

    # All that can be refused before the work of translating. Room is checked again later: others may have taken it.
    pair = await _pair(service, asked, source)
    if pair not in service.engines:
        raise HTTPError(400, "source and target are the same language")
    deadline = service.deadline()
    service.attention.check_room()
    check_size(service, [source])
    _check_length(source, views)

    # Without a translation to look at, it is the model's own.
    if translation is None:
        async with aclosing(service.translations([source], [pair], deadline=deadline)) as results:
            _, own_translation = await anext(results)
            translation = own_translation.text

    # Either may be long, so both count, and so do the weights, which grow with the product of the lengths.
    check_size(service, [source, translation])
    _check_length(translation, views)
    translator = service.engines[pair].between(pair)
    service.attention.check_room()
    n_weights = _n_weights(translator, source, translation, views)
    if n_weights > MAX_WEIGHTS:
        raise HTTPError(400, f"Invalid request: {n_weights:,} weights, more than {MAX_WEIGHTS:,}; ask for fewer views")

    # An error before the first weights still has a status of its own.
    parts = _parts(service, translator, source, translation, views=views, n_weights=n_weights)
    async with service.in_time(deadline):
        first = await anext(parts)
    return StreamingResponse(_with_first(first, parts), media_type="application/json")


ENDPOINTS = (translate, attention)


async def _pair(service: Service, asked: TranslateFields | AttentionFields, text: str) -> tuple[str, str]:
    """The languages that a text is translated from and to; of a server of one pair they can be left out."""
    only = next(iter(service.engines)) if len(service.engines) == 1 else ("auto", "")
    source, target = asked.source or only[0], asked.target or only[1]
    if not target:
        raise HTTPError(400, "Invalid request: missing target parameter")
    source, target = model_codes(service, source, target)
    if source == "auto":
        source, _ = await service.detect_source(text, target)
    check_pair(service, source, target)
    return source, target


async def _lines(
    service: Service, drafts: list[TextDraft], pairs: list[tuple[str, str]], *, n_best: int, prefix: str
) -> AsyncGenerator[str]:
    # Before the first line an error is raised and gives the status; after it, it becomes the last line.
    async with aclosing(service.answers(drafts, pairs, n_best=n_best, prefix=prefix)) as results:
        started = False
        try:
            async for text, sentence, answer in results:
                started = True
                translation, draft = answer.translation, drafts[text]
                best, *others = map(write_text, answer.items)
                start, source = draft.sources[sentence]
                record = {
                    "text": text,
                    "sentence": sentence,
                    "start": start,
                    "language": pairs[text][0],
                    "source": source,
                    "translation": best,
                    "score": translation.score,
                    "ended": translation.ended,
                    "pieces": translation.n_pieces,
                    "best": translation.is_best,
                }
                if n_best > 1:
                    record["alternatives"] = list(dict.fromkeys(other for other in others if other != best))
                yield json.dumps(record, ensure_ascii=False) + "\n"
        except Exception as error:
            if not started:
                raise
            yield json.dumps({"error": as_http_error(error).message}) + "\n"
            return
    yield '{"done":true}\n'


async def _with_first(first: str, lines: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(lines):
        yield first
        async for line in lines:
            yield line


def _check_length(text: str, views: list[View]) -> None:
    if views and len(text) > MAX_ATTENTION_CHARS:
        raise HTTPError(400, f"Invalid request: more than {MAX_ATTENTION_CHARS} characters to look at")


async def _parts(
    service: Service, translator: Translator, source: str, translation: str, *, views: list[View], n_weights: int
) -> AsyncGenerator[str]:
    """JSON, a head at a time: which characters of the translation stand for which of the source, and these views.

    What is not read stays in numbers, a fifth of its text, and counts until it is.
    """
    run = service.attention.run
    with service.attention.holding(n_weights, most=MAX_WEIGHTS_AT_ONCE):
        alignment = await run(partial(translator.alignment, source, translation))
        traced = await run(partial(trace, translator, source, target=translation)) if views else None
        result = {"source": source, "translation": translation, "alignment": alignment}
        yield json.dumps(result)[:-1]
        for name in views:
            attention = traced.view(name)  # type: ignore[union-attr]
            words = json.dumps({"queries": attention.queries, "keys": attention.keys})
            yield f', "{name}": {words[:-1]}, "weights": ['
            for i, layer in enumerate(attention.weights):
                for j, head in enumerate(layer):
                    before = ", " * (i + j > 0) + "[" * (j == 0)
                    yield before + await run(partial(_matrix_json, head)) + "]" * (j == len(layer) - 1)
            yield "]}"
        yield "}"


def _matrix_json(head: NDArray[np.float32]) -> str:
    """The weights of a head, [query][key], to four digits."""
    return json.dumps([[round(weight, 4) for weight in row] for row in head.tolist()])


def _n_weights(translator: Translator, source: str, translation: str, views: list[View]) -> int:
    """How many weights these views have: rare characters are several tokens each."""
    n_src = 1 + len(translator.source_ids([source])[0])
    n_tgt = 1 + translator.direction.forced.end + len(translator.tokenizer.encode_targets([translation])[0])
    arch = translator.models[0].arch
    layers = {"encoder": arch.encoder_layers, "decoder": arch.decoder_layers, "cross": arch.decoder_layers}
    sizes = {"encoder": n_src * n_src, "decoder": n_tgt * n_tgt, "cross": n_src * n_tgt}
    return arch.n_heads * sum(layers[view] * sizes[view] for view in views)
