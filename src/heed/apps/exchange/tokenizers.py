"""Heed's tokenizers as other programs read them, and back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heed.config import shown
from heed.errors import HeedError
from heed.runtime.json_files import json_object, write_json
from heed.text.segmentation import BOS, EOS, PAD
from heed.text.sentencepiece import SentencePieceTokenizer, opus_mt_tokenizer
from heed.text.tokenizer import SpecialIds, Tokenizer
from heed.text.tokenizer_file import read_tokenizer_file
from heed.text.tokenizer_kinds import AnyTokenizer

MAX_TABLE_BYTES = 2**24  # of a file of settings or of added tokens
# Heed encodes a line with a space before it, and takes one away when it decodes.
PREPEND_SPACE: dict[str, Any] = {"type": "Prepend", "prepend": " "}
STRIP_SPACE: dict[str, Any] = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, an empty one if there is no such file. HeedError if it is damaged."""
    return json_object(path, MAX_TABLE_BYTES) if path.is_file() else {}


def tokenizer_json(tokenizer: Tokenizer, *, with_eos: bool) -> dict[str, Any]:
    """The content of a tokenizer.json that the library `tokenizers` reads, to give a line the ids that Heed gives it.

    But for the empty line, which Heed does not translate: the library puts no space before it.
    with_eos: whether eos stands behind them.
    """
    file = tokenizer.to_json()
    decoder = file["decoder"]
    chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    eos = {"SpecialToken": {"id": EOS, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {
        "type": "TemplateProcessing",
        "single": [first, eos],
        "pair": [first, eos, second, eos],
        "special_tokens": {EOS: {"id": EOS, "ids": [tokenizer.special.eos], "tokens": [EOS]}},
    }
    return file | {
        "normalizer": PREPEND_SPACE,
        "decoder": {"type": "Sequence", "decoders": [*chain, STRIP_SPACE]},
        "post_processor": template if with_eos else None,
    }


def _own_json(file: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `tokenizer_json`; what it would not have written is left as it is."""
    own = dict(file)
    if own.get("normalizer") == PREPEND_SPACE:
        own["normalizer"] = None
    chain = own["decoder"].get("decoders") if isinstance(own.get("decoder"), dict) else None
    if isinstance(chain, list) and chain[-1:] == [STRIP_SPACE]:
        rest = chain[:-1]
        own["decoder"] = rest[0] if len(rest) == 1 else {"type": "Sequence", "decoders": rest}
    own["post_processor"] = None
    return own


def write_hugging_face_tokenizer(tokenizer: AnyTokenizer, out: Path, *, max_positions: int) -> None:
    """The files that `AutoTokenizer` loads. HeedError for a tokenizer that MarianTokenizer cannot be."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        _write_marian_tokenizer(tokenizer, out, max_positions)
        return
    (out / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(tokenizer, with_eos=True), ensure_ascii=False, indent=1), encoding="utf-8"
    )
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "split_special_tokens": True,  # a text that spells a special symbol is text
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],  # what a Marian model takes
            "model_max_length": max_positions,
        },
    )


def _write_marian_tokenizer(tokenizer: SentencePieceTokenizer, out: Path, max_positions: int) -> None:
    src, tgt, special = tokenizer.src, tokenizer.tgt, tokenizer.special
    if not (src.model and tgt.model and src.pieces and tgt.pieces):
        raise HeedError("this model's tokenizer is not SentencePiece with a table of pieces, as MarianTokenizer needs.")
    for name, vocabulary in (("source", src), ("target", tgt)):
        assert vocabulary.model is not None
        (out / f"{name}.spm").write_bytes(vocabulary.model.protobuf())
    tables = {"vocab.json": src.pieces} | ({} if src.pieces == tgt.pieces else {"target_vocab.json": tgt.pieces})
    for name, pieces in tables.items():
        write_json(out / name, {piece: i for i, piece in enumerate(pieces) if piece is not None})
    names = [tgt.pieces[i] for i in (special.pad, special.eos, special.unk or 0)]
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            **dict(zip(("pad_token", "eos_token", "unk_token"), names, strict=True)),
            "separate_vocabs": len(tables) > 1,
            "model_max_length": max_positions,
        },
    )


def hugging_face_tokenizer(folder: Path, *, n_src_rows: int, n_tgt_rows: int) -> AnyTokenizer:
    """The tokenizer of a folder: SentencePiece models as OPUS-MT has them, or a tokenizer.json that Heed wrote.

    n_src_rows, n_tgt_rows: rows of the embeddings, which may be padded.
    """
    tokenizer: AnyTokenizer
    if (folder / "source.spm").is_file():
        tokenizer = opus_mt_tokenizer(folder, n_src_rows=n_src_rows, n_tgt_rows=n_tgt_rows)
        _check_added_tokens(folder, tokenizer)
    elif (folder / "tokenizer.json").is_file():
        file = read_tokenizer_file(folder / "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_json(_own_json(file) if isinstance(file, dict) else file, where=folder)
        except HeedError:
            raise HeedError(
                f"{folder / 'tokenizer.json'}: not a tokenizer that Heed exported, or damaged; Heed imports those "
                "alone, or source.spm, target.spm and vocab.json as OPUS-MT's models have them."
            ) from None
    else:
        raise HeedError(f"{folder}: holds neither source.spm, as an OPUS-MT model does, nor tokenizer.json.")
    return tokenizer


def check_special(folder: Path, special: SpecialIds, tokenizer: AnyTokenizer) -> None:
    """HeedError if config.json, which `special` is of, and the tokenizer differ."""
    own = tokenizer.special
    if (own.pad, own.bos, own.eos) != (special.pad, special.bos, special.eos):
        raise HeedError(
            f"{folder}: config.json has pad, start and eos {special.pad}, {special.bos}, {special.eos}; its tokenizer "
            f"{own.pad}, {own.bos}, {own.eos}."
        )


def _check_added_tokens(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    """HeedError for a token, but for pad, eos and unk, that transformers cuts out of a text before SentencePiece.

    Those are its added tokens, whether or not the table has them, and its special ones: listed, or as any NAME_token.
    """
    special = tokenizer.special
    own = {
        side.table[i] for side in (tokenizer.src, tokenizer.tgt) for i in (special.pad, special.eos, special.unk or 0)
    }
    for name in ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        content = optional_json(path)
        for token in content if name == "added_tokens.json" else _named_tokens(content):
            if token not in own:
                raise HeedError(
                    f"{path}: adds the token {shown(token)}, which transformers cuts out of a text before "
                    "SentencePiece; Heed has no such tokens. Import the model as it was before the token was added."
                )


def _named_tokens(config: dict[str, Any]) -> Iterator[str]:
    """The tokens that transformers adds when it reads these settings of a tokenizer."""
    values = [value for key, value in config.items() if key.endswith("_token")]
    for key in ("added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"):
        entry = config.get(key)
        values += entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ()
    for value in values:
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            yield token


def piece_names(tokenizer: AnyTokenizer, *, src: bool) -> list[str]:
    """A name for every id of one side, no two alike."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.id_names()
    pieces = (tokenizer.src if src else tokenizer.tgt).table
    prefix = "<no piece"
    while any(piece and piece.startswith(prefix) for piece in pieces):
        prefix = f"<{prefix}"
    return [f"{prefix} {i}>" if piece is None else piece for i, piece in enumerate(pieces)]
