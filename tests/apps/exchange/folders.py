"""Model folders with random weights, biases and norms included, and what exports and imports make of them."""

import random
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from heed.apps.exchange.convert import ExportFormat, ImportFormat, export, import_
from heed.data.batches.batch import make_batch
from heed.data.batches.padded import PaddedBatch
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.numbers import english, german, number_splits
from heed.text.tokenizer_kinds import AnyTokenizer

NUMBERS = number_splits(n_train=3000, n_dev=10, n_test=200)
ENGLISH = [english(number) for number in NUMBERS.test]
# Without what only config.json and the manifest say of the folder: these hold the model.
MODEL_FILES = ("model.safetensors", "tokenizer.json", "config.json")


def random_network(vocab_size: int, src_vocab_size: int | None = None, *, seed: int = 5, **changes: Any) -> Transformer:
    """Sharp, so that hypotheses differ clearly in probability; nothing is 0 or 1 that training would change."""
    torch.manual_seed(seed)
    arch = Architecture(**({"n_layers": 2, "d_model": 32, "d_ff": 48, "n_heads": 4} | changes))
    model = Transformer(arch, vocab_size, src_vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(1.5)
    return model


def random_folder(
    folder: Path, tokenizer: AnyTokenizer, *, decoding: dict[str, Any] | None = None, seed: int = 5, **changes: Any
) -> Path:
    """A model folder; changes: of the architecture."""
    src_vocab_size = None if tokenizer.src_vocab_size == len(tokenizer) else tokenizer.src_vocab_size
    model = random_network(len(tokenizer), src_vocab_size, seed=seed, **changes)
    return written(folder, model, tokenizer, decoding)


def trained_folder(
    folder: Path, tokenizer: AnyTokenizer, *, decoding: dict[str, Any] | None = None, n_steps: int = 60, **changes: Any
) -> Path:
    """As `random_folder`, after some steps on number words: outputs are bits of words, and most end."""
    src_vocab_size = None if tokenizer.src_vocab_size == len(tokenizer) else tokenizer.src_vocab_size
    model = random_network(len(tokenizer), src_vocab_size, **({"n_layers": 1} | changes)).train()
    special, draw = tokenizer.special, random.Random(1)
    pairs = list(
        zip(
            tokenizer.encode_lines([english(number) for number in NUMBERS.train]),
            tokenizer.encode_targets([german(number) for number in NUMBERS.train]),
            strict=True,
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(n_steps):
        batch = make_batch(draw.sample(pairs, 48), special)
        rows = PaddedBatch.of(batch)
        logits = model(rows.src, rows.src_mask, rows.tgt_in)[rows.tgt_mask]
        loss = F.cross_entropy(logits, torch.from_numpy(batch.tgt_out))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return written(folder, model.eval(), tokenizer, decoding)


def written(folder: Path, model: Transformer, tokenizer: AnyTokenizer, decoding: dict[str, Any] | None = None) -> Path:
    """The model as a folder."""
    card = ModelCard("en", "de", decoding=decoding or {}, trained_on={"corpus": "none"}, scores={"dev": "0.1"})
    save_model(folder, model, tokenizer, card)
    return folder


def exported(folder: Path, out: Path, to: ExportFormat, *, int8: bool = False) -> list[str]:
    """What the export reports."""
    messages: list[str] = []
    export(folder, out, to, int8=int8, report=messages.append)
    return messages


def imported(path: Path, out: Path, kind: ImportFormat, *, messages: list[str] | None = None) -> Path:
    """The model folder that an import writes; messages: to which its report is added."""
    import_(path, out, kind, report=[].append if messages is None else messages.append)
    return out


def model_bytes(folder: Path) -> dict[str, bytes]:
    """The files that are the model."""
    return {name: (folder / name).read_bytes() for name in MODEL_FILES}
