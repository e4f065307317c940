"""The one thing users own: config.json, tokenizer.json, model.safetensors, their manifest.json, README.md.

Nothing in it can run code. What is read is first compared with the manifest, and nothing of the model's size is taken
before the shapes in config.json agree with those in the file.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from heed.config import HeedError, validated
from heed.files import check, read_json, seal, whole_folder, write_json
from heed.model.cost import n_parameters
from heed.model.transformer import Architecture, Transformer
from heed.text.tokenizer import Tokenizer

FORMAT = 1
MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True)
class ModelCard:
    """What a reader of the folder wants to know: languages, what it was trained on, what that cost, what it scores.

    parsing: of a parser, how trees are sequences (LinearisationSettings).
    """

    src: str
    tgt: str
    decoding: dict[str, Any] = field(default_factory=dict)
    trained_on: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, str] = field(default_factory=dict)
    parsing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFolder:
    """A loaded folder: the model in fp32 and in evaluation mode, its tokenizer, its card."""

    model: Transformer
    tokenizer: Tokenizer
    card: ModelCard


def shared_weights(model: Transformer) -> dict[str, Tensor]:
    """The state of a model with each shared matrix once, under its first name, in fp32 on the CPU."""
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor.detach().to("cpu", torch.float32).contiguous()
    return weights


def load_weights(model: Transformer, weights: dict[str, Tensor], *, where: Path) -> None:
    """Fills the model. HeedError names a weight that is missing, left over, or of another shape."""
    _compare_shapes(model, {name: tuple(tensor.shape) for name, tensor in weights.items()}, where=where)
    model.load_state_dict(weights, strict=False)


def _compare_shapes(model: Transformer, found: dict[str, tuple[int, ...]], *, where: Path) -> None:
    expected: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            expected[name] = tuple(tensor.shape)
    for name in sorted(expected.keys() ^ found.keys()):
        state = "missing" if name in expected else "not part of the architecture in config.json"
        raise HeedError(f"{where}: weight {name} is {state}.")
    for name, shape in found.items():
        if shape != expected[name]:
            raise HeedError(f"{where}: weight {name} has shape {shape}; config.json asks for {expected[name]}.")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. HeedError if it is missing, cut short or of another kind."""
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise HeedError(
            f"{path}: missing; a model folder holds config.json, tokenizer.json, model.safetensors."
        ) from None
    except (OSError, SafetensorError) as error:
        raise HeedError(f"{path}: damaged or not a safetensors file ({error}).") from None


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file; a full disk is an OSError, as with any file."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(0, str(error)) from error


def save_model(folder: Path, model: Transformer, tokenizer: Tokenizer, card: ModelCard) -> None:
    """Writes the folder, whole or not at all."""
    with whole_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, card)
        seal(temporary)


def write_model(folder: Path, model: Transformer, tokenizer: Tokenizer, card: ModelCard) -> None:
    """Writes the files into an existing folder, to be sealed: checkpoints add theirs first."""
    _write_card(folder, model.arch, model.vocab_size, card)
    tokenizer.save(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", shared_weights(model))


def replace_card(folder: Path, card: ModelCard) -> None:
    """Writes another card into a model folder."""
    arch, vocab_size, _ = read_config(folder)
    with whole_folder(folder) as temporary:
        for name in MODEL_FILES[1:]:
            shutil.copyfile(folder / name, temporary / name)
        _write_card(temporary, arch, vocab_size, card)
        seal(temporary)


def _write_card(folder: Path, arch: Architecture, vocab_size: int, card: ModelCard) -> None:
    config = {
        "format": FORMAT,
        "architecture": arch.model_dump(),
        "vocab_size": vocab_size,
        "card": vars(card),
    }
    write_json(folder / "config.json", config)
    (folder / "README.md").write_text(_readme(arch, vocab_size, card), encoding="utf-8")


def read_config(folder: Path) -> tuple[Architecture, int, ModelCard]:
    """(architecture, vocab_size, card) without reading weights. HeedError if the folder is no model."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise HeedError(f"{folder}: no such folder; expected a model folder, such as runs/demo/model.")
    if not path.is_file():
        inner = folder / "model" / "config.json"
        hint = f"did you mean {inner.parent}?" if inner.is_file() else "it has no config.json."
        raise HeedError(f"{folder}: not a model folder; {hint}")
    check(folder, ["config.json"])
    try:
        config = read_json(path)
        version = config["format"]
        architecture, vocab_size, card = config["architecture"], int(config["vocab_size"]), ModelCard(**config["card"])
    except (ValueError, KeyError, TypeError) as error:
        raise HeedError(f"{path}: not a Heed model's configuration ({error}).") from None
    if version != FORMAT:
        raise HeedError(f"{path}: format {version}; this Heed reads format {FORMAT}. Install the Heed that wrote it.")
    return validated(Architecture, architecture, where=str(path)), vocab_size, card


def load_model(folder: Path) -> ModelFolder:
    """The folder's model, tokenizer and card. HeedError if any of it is damaged."""
    arch, vocab_size, card = read_config(folder)
    check(folder, MODEL_FILES)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    if len(tokenizer) != vocab_size:
        raise HeedError(f"{folder}: tokenizer.json has {len(tokenizer):,} ids, config.json says {vocab_size:,}.")
    path = folder / "model.safetensors"
    n_weights = n_parameters(arch, vocab_size)
    if n_weights > path.stat().st_size:
        raise HeedError(f"{path}: smaller than the {n_weights:,} weights that config.json asks for.")
    with torch.device("meta"):
        _compare_shapes(Transformer(arch, vocab_size), _shapes(path), where=path)
    model = Transformer(arch, vocab_size)
    load_weights(model, read_weights(path), where=path)
    return ModelFolder(model.eval(), tokenizer, card)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of the tensors in a safetensors file, none of which is read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no dict
    except (OSError, SafetensorError) as error:
        raise HeedError(f"{path}: damaged or not a safetensors file ({error}).") from None


def _readme(arch: Architecture, vocab_size: int, card: ModelCard) -> str:
    lines = [
        f"# Transformer {card.src} → {card.tgt}",
        "",
        f'A Transformer of "Attention Is All You Need" (Vaswani et al. 2017), trained with Heed. {arch.n_layers} + '
        f"{arch.n_layers} layers, d_model {arch.d_model}, d_ff {arch.d_ff}, {arch.n_heads} heads, "
        f"{n_parameters(arch, vocab_size):,} parameters, {vocab_size:,} ids.",
        "",
        "Use: `heed parse FOLDER < sentences`."
        if card.parsing
        else "Use: `heed translate FOLDER < text`, or in Python `heed.load(FOLDER).translate([...])`.",
    ]
    for title, facts in (("Trained on", card.trained_on), ("Scores", card.scores), ("Decoding", card.decoding)):
        if facts:
            lines += ["", f"## {title}", *(f"- {name}: {value}" for name, value in facts.items())]
    return "\n".join(lines) + "\n"
