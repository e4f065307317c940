"""config.json, the architecture and card of a model, and README.md, which says the same to people."""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from heed.config import Settings, validated
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters
from heed.runtime.json_files import read_json, write_json
from heed.runtime.manifest import check
from heed.text.languages import Languages
from heed.text.printable import check_language
from heed.text.tokenizer_kinds import AnyTokenizer

FORMAT = 1
# Settings that Heed 0.1 does not have: config.json holds those that differ from their defaults, so that it can read all
# the models that it can run.
SINCE_0_2 = (
    "n_encoder_layers",
    "n_decoder_layers",
    "activation",
    "norm",
    "attention_bias",
    "output_bias",
    "decoder_start",
    "network",
    "first_position",
    "embedding_norm",
)
EXAMPLES = "text such as"  # the key of a card's trained_on: three sources of dev, for people who try the model
IMPORTED_FROM = "imported from"  # what a card's trained_on says of a model of another program
UNKNOWN_LANGUAGES = ("source", "target")  # of a model that came without names of languages


@dataclass(frozen=True)
class ModelCard:
    """Facts for the reader of a model folder: languages, what it was trained on, what that cost, what it scores.

    parsing: of a parser, how trees are sequences and what words it knows (ParserCard). languages: of a model of
    several, how it is told which (text/languages.py); src and tgt are then "mul", or those that it takes if none is
    named.
    """

    src: str
    tgt: str
    decoding: dict[str, Any] = field(default_factory=dict)
    trained_on: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, str] = field(default_factory=dict)
    parsing: dict[str, Any] = field(default_factory=dict)
    languages: dict[str, Any] = field(default_factory=dict)

    @property
    def examples(self) -> list[str]:
        """Text that the model knows; none of a model that another program, or an older Heed, wrote."""
        texts = self.trained_on.get(EXAMPLES)
        return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []


_Fact = str | int | float | bool | None


class _Card(Settings):
    """The fields of a ModelCard as config.json must hold them: flat, so that writing takes about as long as reading."""

    src: Annotated[str, AfterValidator(check_language)]
    tgt: Annotated[str, AfterValidator(check_language)]
    decoding: dict[str, _Fact] = Field(default={})
    trained_on: dict[str, _Fact | list[_Fact]] = Field(default={})
    scores: dict[str, str] = Field(default={})
    parsing: dict[str, Any] = Field(default={})
    languages: Languages | None = None

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        try:
            json.dumps(self.model_dump(), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair, which is no text") from None
        return self


class _Config(Settings):
    """The content of config.json."""

    format: int
    architecture: Architecture
    vocab_size: int = Field(ge=1, lt=2**31)
    src_vocab_size: int | None = Field(default=None, ge=1, lt=2**31)
    card: _Card


def model_card(values: Any, *, where: str) -> ModelCard:
    """The card that these values describe. HeedError names one of another type."""
    return _of_fields(validated(_Card, {**values, "languages": values.get("languages") or None}, where=where))


def _of_fields(card: _Card) -> ModelCard:
    fields = card.model_dump()
    return ModelCard(**fields | {"languages": fields["languages"] or {}})


class ModelConfig(NamedTuple):
    """A model as config.json describes it. vocab_size: the target's; src_vocab_size: the source's, if it differs."""

    arch: Architecture
    vocab_size: int
    card: ModelCard
    src_vocab_size: int | None = None

    @classmethod
    def of(cls, arch: Architecture, tokenizer: AnyTokenizer, card: ModelCard) -> "ModelConfig":
        """For a model with this tokenizer."""
        vocab_size, src_vocab_size = len(tokenizer), tokenizer.src_vocab_size
        return cls(arch, vocab_size, card, None if src_vocab_size == vocab_size else src_vocab_size)


def write_config(folder: Path, config: ModelConfig) -> None:
    settings, default = config.arch.model_dump(), Architecture().model_dump()
    src_vocab_size = {} if config.src_vocab_size is None else {"src_vocab_size": config.src_vocab_size}
    content = {
        "format": FORMAT,
        "architecture": {
            name: value for name, value in settings.items() if name not in SINCE_0_2 or value != default[name]
        },
        "vocab_size": config.vocab_size,
        **src_vocab_size,
        "card": {name: value for name, value in vars(config.card).items() if name != "languages" or value},
    }
    write_json(folder / "config.json", content)
    (folder / "README.md").write_text(_readme(config), encoding="utf-8")


def read_config(folder: Path) -> ModelConfig:
    """The content of config.json, without reading weights. HeedError if the folder is no model."""
    path = folder / "config.json"
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        of_hub = re.search("opus-mt|nllb-200|m2m100|mbart-large|small-?100", str(folder))
        hint = f"to fetch it: heed import {folder}" if of_hub else "expected a model folder, such as runs/demo/model."
        raise HeedError(f"{folder}: no such folder; {hint}")
    if not path.is_file():
        inner = folder / "model" / "config.json"
        hint = f"did you mean {inner.parent}?" if inner.is_file() else "it has no config.json."
        raise HeedError(f"{folder}: not a model folder; {hint}")
    check(folder, ["config.json"])
    content = read_json(path)
    version = content.get("format")
    if type(version) is int and version != FORMAT:
        raise HeedError(f"{path}: format {version}; this Heed reads format {FORMAT}. Install the Heed that wrote it.")
    config = validated(_Config, content, where=str(path))
    if config.architecture.share == "all" and config.src_vocab_size not in (None, config.vocab_size):
        raise HeedError(f"{path}: vocab_size and src_vocab_size differ, which share = all does not allow.")
    if (languages := config.card.languages) is not None:
        n_ids = min(config.vocab_size, config.src_vocab_size or config.vocab_size)
        if max(languages.ids.values()) >= n_ids:
            raise HeedError(f"{path}: a language has an id beyond the vocabulary's {n_ids:,}.")
    card = _of_fields(config.card)
    return ModelConfig(config.architecture, config.vocab_size, card, config.src_vocab_size)


def _readme(config: ModelConfig) -> str:
    arch, card = config.arch, config.card
    n_weights = n_parameters(arch, config.vocab_size, config.src_vocab_size)
    vocabulary = f"{config.vocab_size:,} ids"
    if config.src_vocab_size is not None:
        vocabulary = f"{config.src_vocab_size:,} source ids, {config.vocab_size:,} target ids"
    trained = "" if IMPORTED_FROM in card.trained_on else ", trained with Heed"
    lines = [
        f"# Transformer {card.src} → {card.tgt}",
        "",
        f'A Transformer of "Attention Is All You Need" (Vaswani et al. 2017){trained}. '
        f"{arch.encoder_layers} + {arch.decoder_layers} layers, d_model {arch.d_model}, d_ff {arch.d_ff}, "
        f"{arch.n_heads} heads, {n_weights:,} parameters, {vocabulary}.",
        "",
        "Use: `heed parse FOLDER < sentences`."
        if card.parsing
        else "Use: `heed translate FOLDER < text`, or in Python `heed.load(FOLDER).translate([...])`.",
    ]
    for title, rows in (("Trained on", card.trained_on), ("Scores", card.scores), ("Decoding", card.decoding)):
        if rows:
            shown = {
                name: " · ".join(map(str, value)) if isinstance(value, list) else value for name, value in rows.items()
            }
            lines += ["", f"## {title}", *(f"- {name}: {value}" for name, value in shown.items())]
    return "\n".join(lines) + "\n"
