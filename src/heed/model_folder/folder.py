"""The one thing users own: config.json, tokenizer.json, model.safetensors, their manifest.json, README.md.

Nothing in it can run code. What is read is first compared with the manifest, and no memory of the model's size is
taken before the shapes in config.json agree with those in the file. README.md is for people; Heed never reads it.
"""

import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, Self

import torch
from pydantic import AfterValidator, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heed.config import Settings, cut, validated
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters, weight_shapes
from heed.model.networks import network_of
from heed.model.transformer import Transformer
from heed.runtime.files import (
    MANIFEST,
    MAX_JSON_BYTES,
    check,
    manifest,
    read_json,
    regular_file,
    seal,
    whole_folder,
    write_json,
)
from heed.text.printable import checked_language
from heed.text.tokenizer_file import AnyTokenizer, load_tokenizer

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
)
MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")
MODEL_FOLDER_NAMES = (*MODEL_FILES, MANIFEST, "README.md")


IMPORTED_FROM = "imported from"  # what a card's trained_on says of a model of another program
UNKNOWN_LANGUAGES = ("source", "target")  # of a model that came without names of languages


@dataclass(frozen=True)
class ModelCard:
    """What a reader of the folder wants to know: languages, what it was trained on, what that cost, what it scores.

    parsing: of a parser, how trees are sequences and what words it knows (ParserCard).
    """

    src: str
    tgt: str
    decoding: dict[str, Any] = field(default_factory=dict)
    trained_on: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, str] = field(default_factory=dict)
    parsing: dict[str, Any] = field(default_factory=dict)


_Fact = str | int | float | bool | None


class _Card(Settings):
    """What a ModelCard is made of, as config.json must hold it: flat, so that it is written about as long as read."""

    src: Annotated[str, AfterValidator(checked_language)]
    tgt: Annotated[str, AfterValidator(checked_language)]
    decoding: dict[str, _Fact] = Field(default={})
    trained_on: dict[str, _Fact | list[_Fact]] = Field(default={})
    scores: dict[str, str] = Field(default={})
    parsing: dict[str, Any] = Field(default={})

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        try:
            json.dumps(self.model_dump(), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair, which is no text") from None
        return self


class _Config(Settings):
    """What config.json holds."""

    format: int
    architecture: Architecture
    vocab_size: int = Field(ge=1, lt=2**31)
    src_vocab_size: int | None = Field(default=None, ge=1, lt=2**31)
    card: _Card


def model_card(values: Any, *, where: str) -> ModelCard:
    """The card that these values describe. HeedError names one of another type."""
    return ModelCard(**validated(_Card, values, where=where).model_dump())


class ModelConfig(NamedTuple):
    """What config.json says of a model. vocab_size: the target's; src_vocab_size: the source's, if it differs."""

    arch: Architecture
    vocab_size: int
    card: ModelCard
    src_vocab_size: int | None = None

    @classmethod
    def of(cls, arch: Architecture, tokenizer: AnyTokenizer, card: ModelCard) -> "ModelConfig":
        """For a model with this tokenizer."""
        vocab_size, src_vocab_size = len(tokenizer), tokenizer.src_vocab_size
        return cls(arch, vocab_size, card, None if src_vocab_size == vocab_size else src_vocab_size)


@dataclass(frozen=True)
class ModelFolder:
    """A loaded folder: the model in fp32 and in evaluation mode, its tokenizer, its card."""

    model: Transformer
    tokenizer: AnyTokenizer
    card: ModelCard


def shared_weights(model: Transformer) -> dict[str, Tensor]:
    """The state of a model with each shared matrix once, under its first name, in fp32 on the CPU."""
    state, first_names = model.state_dict(), set(_first_names(model).values())
    return {name: state[name].to("cpu", torch.float32).contiguous() for name in state if name in first_names}


def _first_names(model: Transformer) -> dict[str, str]:
    """For each name in the model's state the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def load_weights(model: Transformer, weights: dict[str, Tensor], *, where: Path) -> None:
    """Fills the model. HeedError names a weight that is missing, left over, or of another shape."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    _compare_shapes(weight_shapes(model.arch, model.vocab_size, model.src_vocab_size), found, where=where)
    model.load_state_dict(weights, strict=False)


def _compare_shapes(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], *, where: Path) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        state = "missing" if name in expected else "not part of the architecture in config.json"
        raise HeedError(f"{where}: weight {cut(name)} is {state}.")
    for name, shape in found.items():
        if shape != expected[name]:
            raise HeedError(f"{where}: weight {name} has shape {shape}; config.json asks for {expected[name]}.")


# What weights may be stored as. A safetensors file is the length of its header in 8 bytes, the header in JSON, and the
# tensors, one behind the other. It is read, not mapped into memory, where another process that cuts it would end this
# one by a signal; each tensor enters memory once.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class _Stored(NamedTuple):
    """How a tensor is stored in a file, and where in it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. HeedError if it is missing, cut short or of another kind."""
    with _weights_file(path) as file:
        return {name: _read(file, stored) for name, stored in _contents(file).items()}


@contextmanager
def _weights_file(path: Path) -> Iterator[BinaryIO]:
    try:
        with regular_file(path) as file:
            yield file
    except FileNotFoundError:
        raise HeedError(
            f"{path}: missing; a model folder holds config.json, tokenizer.json, model.safetensors."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged or not a safetensors file ({error}).") from None


def _contents(file: BinaryIO) -> dict[str, _Stored]:
    """The tensors by name, none of which is read. ValueError unless they fill the file behind its header exactly."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_JSON_BYTES):
        raise ValueError(f"a header of {length:,} bytes")
    header = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise ValueError("its header does not list tensors")
    header.pop("__metadata__", None)
    found = {name: _stored(name, entry, file, behind=8 + length) for name, entry in header.items()}
    end = 8 + length
    for stored in sorted(found.values(), key=lambda stored: (stored.start, stored.end)):
        if stored.start != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = stored.end
    if end != size:
        raise ValueError(f"{size:,} bytes; its header speaks of {end:,}")
    return found


def _stored(name: str, entry: dict[str, Any], file: BinaryIO, *, behind: int) -> _Stored:
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, place = values
    if not isinstance(dtype, str):
        raise ValueError(f"tensor {cut(name)} has no type")
    if dtype not in _DTYPES:
        raise HeedError(
            f"{file.name}: tensor {cut(name)} is of type {cut(dtype)}; expected {', '.join(_DTYPES)}: take the "
            "model as it was before it was quantised."
        )
    # The bound on dimensions keeps the product from growing without end.
    if not (_counts(shape) and len(shape) <= 8 and _counts(place) and len(place) == 2):
        raise ValueError(f"tensor {cut(name)} has no good shape or place")
    start, end = place
    if math.prod(filter(None, shape)) >= 2**63:  # torch multiplies them also where one is 0
        raise ValueError(f"tensor {cut(name)} has no good shape")
    if math.prod(shape) * _DTYPES[dtype].itemsize != end - start:
        raise ValueError(f"tensor {cut(name)} does not have as many bytes as its shape asks for")
    return _Stored(_DTYPES[dtype], tuple(shape), behind + start, behind + end)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _read(file: BinaryIO, stored: _Stored) -> Tensor:
    buffer = torch.empty(stored.end - stored.start, dtype=torch.uint8)
    file.seek(stored.start)
    if file.readinto(buffer.numpy()) < len(buffer):  # type: ignore[attr-defined]  # a BufferedReader's
        raise ValueError("cut while it was read")
    return buffer.view(stored.dtype).view(stored.shape)


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file; a full disk is an OSError, as with any file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        raise OSError(0, str(error)) from error
    if path.stat().st_mode != mode:  # safetensors lets nobody but the owner read its files, whatever the umask says
        path.chmod(stat.S_IMODE(mode))


def save_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the folder, whole or not at all."""
    with whole_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, card)
        seal(temporary)


def write_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the files into an existing folder, to be sealed: checkpoints add theirs first."""
    src_vocab_size = None if model.src_vocab_size == model.vocab_size else model.src_vocab_size
    _write_config(folder, ModelConfig(model.arch, model.vocab_size, card, src_vocab_size))
    tokenizer.save(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", shared_weights(model))


def replace_card(folder: Path, card: ModelCard) -> None:
    """Writes another card into a model folder. HeedError if a file is damaged, which a new manifest would hide."""
    check(folder, MODEL_FILES)
    config = read_config(folder)
    with whole_folder(folder) as temporary:
        for name in MODEL_FILES[1:]:
            shutil.copyfile(folder / name, temporary / name)
        _write_config(temporary, config._replace(card=card))
        seal(temporary)


def _write_config(folder: Path, config: ModelConfig) -> None:
    settings, default = config.arch.model_dump(), Architecture().model_dump()
    src_vocab_size = {} if config.src_vocab_size is None else {"src_vocab_size": config.src_vocab_size}
    content = {
        "format": FORMAT,
        "architecture": {
            name: value for name, value in settings.items() if name not in SINCE_0_2 or value != default[name]
        },
        "vocab_size": config.vocab_size,
        **src_vocab_size,
        "card": vars(config.card),
    }
    write_json(folder / "config.json", content)
    (folder / "README.md").write_text(_readme(config), encoding="utf-8")


def read_config(folder: Path) -> ModelConfig:
    """What config.json says, without reading weights. HeedError if the folder is no model."""
    path = folder / "config.json"
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        raise HeedError(f"{folder}: no such folder; expected a model folder, such as runs/demo/model.")
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
    card = ModelCard(**config.card.model_dump())
    return ModelConfig(config.architecture, config.vocab_size, card, config.src_vocab_size)


def load_model(folder: Path) -> ModelFolder:
    """The folder's model, tokenizer and card. HeedError if any of it is damaged, or its network is missing."""
    network_of(read_config(folder).arch, where=str(folder))  # says what is wrong with a folder that is none
    sealed = manifest(folder)
    try:
        loaded = _loaded(folder, read_config(folder))
    except HeedError:
        _check_not_replaced(folder, sealed)  # else parts of two models would be called damaged
        raise
    _check_not_replaced(folder, sealed)
    return loaded


def _check_not_replaced(folder: Path, sealed: dict[str, dict[str, Any]]) -> None:
    if manifest(folder) != sealed:
        raise HeedError(f"{folder}: was replaced while it was read; try again.")


def _loaded(folder: Path, config: ModelConfig) -> ModelFolder:
    check(folder, MODEL_FILES[:2])
    with ThreadPoolExecutor(1) as pool:  # a large vocabulary takes as long as the weights
        reading = pool.submit(load_tokenizer, folder / "tokenizer.json")
        check(folder, MODEL_FILES[2:])
        weights = _checked_weights(folder / "model.safetensors", config)
        tokenizer = reading.result()
    sizes = (
        (len(tokenizer), config.vocab_size),
        (tokenizer.src_vocab_size, config.src_vocab_size or config.vocab_size),
    )
    for found, expected in sizes:
        if found != expected:
            raise HeedError(f"{folder}: tokenizer.json has {found:,} ids, config.json says {expected:,}.")
    return ModelFolder(_model_of(config, weights).eval(), tokenizer, config.card)


def _checked_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The weights that config asks for, in fp32. HeedError if the file holds others, or numbers that are not finite."""
    network = config.arch, config.vocab_size, config.src_vocab_size
    n_weights = n_parameters(*network)
    if n_weights > path.stat().st_size:
        raise HeedError(f"{path}: smaller than the {n_weights:,} weights that config.json asks for.")
    weights: dict[str, Tensor] = {}
    with _weights_file(path) as file:
        contents = _contents(file)
        shapes = {name: stored.shape for name, stored in contents.items()}
        _compare_shapes(weight_shapes(*network), shapes, where=path)
        for name, stored in contents.items():
            weights[name] = _read(file, stored).float()
            _check_finite(name, weights[name], where=path)
    return weights


def model_of(config: ModelConfig, weights: dict[str, Tensor], *, where: Path) -> Transformer:
    """The model of these weights, in evaluation mode. HeedError if they are not those that config asks for."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    _compare_shapes(weight_shapes(config.arch, config.vocab_size, config.src_vocab_size), found, where=where)
    for name, tensor in weights.items():
        _check_finite(name, tensor, where=where)
    return _model_of(config, weights).eval()


def _check_finite(name: str, tensor: Tensor, *, where: Path) -> None:
    if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # which spare a copy of its size
        raise HeedError(f"{where}: {name} holds numbers that are not finite; take an earlier checkpoint.")


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights: on the meta device it would import 70 MB of PyTorch, for nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _model_of(config: ModelConfig, weights: dict[str, Tensor]) -> Transformer:
    """The model whose weights are these tensors; they are not copied."""
    network = network_of(config.arch)
    if network is Transformer:
        with torch.device("meta"), _NothingDrawn():
            model = Transformer(config.arch, config.vocab_size, config.src_vocab_size)
    else:  # which may hold tensors of its own that are no weights
        model = network(config.arch, config.vocab_size, config.src_vocab_size)
    parameters = {name: nn.Parameter(tensor) for name, tensor in weights.items()}
    state = {name: parameters[first] for name, first in _first_names(model).items()}
    model.load_state_dict(state, assign=True)
    return model


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
    for title, facts in (("Trained on", card.trained_on), ("Scores", card.scores), ("Decoding", card.decoding)):
        if facts:
            lines += ["", f"## {title}", *(f"- {name}: {value}" for name, value in facts.items())]
    return "\n".join(lines) + "\n"
