"""tokenizer.json, checked: it may come from a stranger, and its ids index the model's tables."""

import json
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer as Backend
from tokenizers import models

from heed.config import shown
from heed.errors import HeedError
from heed.runtime.reading import read_bounded
from heed.text.printable import check_tag
from heed.text.segmentation import (
    BOS,
    BYTES,
    CONTINUATION,
    EOS,
    MAX_PIECE,
    PAD,
    SYMBOL,
    TAG,
    check_symbol,
    make_backend,
    word_pieces,
)

MAX_FILE_BYTES = 2**26


def read_tokenizer_file(path: Path) -> Any:
    """The JSON of a tokenizer file. HeedError if it is missing, too long or no strict JSON."""
    content = read_bounded(path, MAX_FILE_BYTES)
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _not_a_tokenizer(path, error) from None


def _not_a_tokenizer(path: Path, error: Exception) -> HeedError:
    return HeedError(
        f"{path}: not a tokenizer file that Heed wrote ({error}); restore it from a backup, or train again."
    )


def check_backend(file: Any, *, where: Path) -> Backend:
    """A backend of the vocabulary and the merges in a file's JSON. HeedError if Heed would not write this file."""
    try:
        backend = _backend_of(file)
        if field := _difference(json.loads(backend.to_str()), file):
            raise ValueError(f"{shown(field[1:])} differs from what Heed writes")
    except (ValueError, RecursionError) as error:
        raise _not_a_tokenizer(where, error) from None
    return backend


def _backend_of(file: Any) -> Backend:
    """The backend of a vocabulary and its merges. ValueError if they are not as Heed makes them."""
    model: Any = file.get("model") if isinstance(file, dict) else None
    if not isinstance(model, dict) or model.get("type") not in ("BPE", "WordPiece"):
        raise ValueError("it holds neither byte pairs nor word pieces")
    vocab, merges = model.get("vocab", {}), model.get("merges", [])
    special = _check_special(vocab, "" if model["type"] == "BPE" else CONTINUATION)
    if model["type"] == "WordPiece":
        return make_backend(word_pieces(vocab), special)
    for merge in merges if isinstance(merges, list) else [merges]:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise ValueError(f"merge {shown(merge)} is not a pair of pieces")
        if not vocab.keys() >= {*merge, "".join(merge)} or not BYTES.issuperset("".join(merge)):
            raise ValueError(f"merge {shown(merge)} is not of pieces in the vocabulary")
    return make_backend(models.BPE(vocab, [(left, right) for left, right in merges]), special)


def _check_special(vocab: Any, continuation: str) -> list[str]:
    """The special symbols of a vocabulary. ValueError if its ids or pieces are not as Heed makes them."""
    if not isinstance(vocab, dict) or any(type(i) is not int for i in vocab.values()):
        raise ValueError("its vocabulary is not a table of pieces and ids")
    names = sorted(vocab, key=vocab.__getitem__)
    if any(vocab[name] != i for i, name in enumerate(names)):
        raise ValueError(f"its ids are not 0 to {len(names) - 1}, each once")
    if names[:3] != [PAD, BOS, EOS]:
        raise ValueError(f"its first three ids are not {PAD}, {BOS} and {EOS}")
    symbols = [name for name in names if name.startswith(SYMBOL)]
    for name in symbols:
        check_symbol(name.removeprefix(SYMBOL))
    tags = [name for name in names if name.startswith(TAG)]
    for name in tags:
        check_tag(name.removeprefix(TAG))
    special = [PAD, BOS, EOS, *symbols, *tags]
    for name in vocab.keys() - set(special):
        piece = name.removeprefix(continuation)
        if not 1 <= len(piece) <= MAX_PIECE or not BYTES.issuperset(piece):
            raise ValueError(f"piece {shown(name)} is not of 1 to {MAX_PIECE} bytes")
    missing = {prefix + byte for prefix in ("", continuation) for byte in BYTES} - vocab.keys()
    if missing:
        raise ValueError(f"its vocabulary lacks the byte {shown(min(missing))}")
    return special


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return members


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _difference(expected: Any, actual: Any, name: str = "") -> str:
    """The first field whose values differ, such as ".model.dropout", or nothing.

    Null, false and what is empty equal a missing field: versions of the library differ in which of these they write.
    """
    if expected == actual:
        return ""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in (*expected, *(actual.keys() - expected.keys())):
            if inner := _difference(expected.get(key), actual.get(key), f"{name}.{key}"):
                return inner
        return ""
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return next(filter(None, (_difference(*pair, f"{name}.{i}") for i, pair in pairs)), "")
    return "" if (expected or None) == (actual or None) else name
