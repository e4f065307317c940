"""A model file from a stranger is refused in one line, or segments any text with ids of its own."""

import base64
import os
import struct
from pathlib import Path

import pytest
import sentencepiece
from tests.text.test_sentencepiece import ENGLISH, KINDS, ODD_LINES, trained

from heed.errors import HeedError
from heed.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    MAX_FILE_BYTES,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    _message,
    _number,
)


def written(content: bytes, folder: Path) -> Path:
    path = folder / "model.spm"
    path.write_bytes(content)
    return path


def refusal(content: bytes, folder: Path) -> str:
    path = written(content, folder)
    with pytest.raises(HeedError) as caught:
        SentencePieceModel.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < len(str(path)) + 400
    return message


def piece(text: bytes, score: float = -1.0, kind: int = NORMAL) -> bytes:
    return _message(1, _message(1, text) + b"\x15" + struct.pack("<f", score) + _number(3, kind))


SPECIAL = piece(b"</s>", 0, CONTROL) + piece(b"<unk>", 0, UNKNOWN)
AB = SPECIAL + piece(b"a") + piece(b"b") + piece(b"ab") + piece("▁".encode())


def with_rules(rules: bytes) -> bytes:
    return AB + _message(3, _message(2, rules))


def rules(units: list[int], replacements: bytes = b"x\0") -> bytes:
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + replacements


def test_a_model_that_heed_wrote_is_the_model_that_it_read(tmp_path):
    for kind in KINDS:
        model = SentencePieceModel.read(written(trained([*ENGLISH, *ODD_LINES], **kind), tmp_path))
        assert SentencePieceModel.read(written(model.protobuf(), tmp_path)) == model


def test_defaults_are_the_formats_own(tmp_path):
    model = SentencePieceModel.read(written(AB, tmp_path))
    assert (model.kind, model.unk_surface, model.normalizer) == ("unigram", " ⁇ ", "")
    assert model.add_dummy_prefix and model.remove_extra_whitespaces and model.escape_whitespaces
    library = sentencepiece.SentencePieceProcessor(model_proto=AB)
    assert library.encode("ab  ba c") == sentencepiece.SentencePieceProcessor(model_proto=model.protobuf()).encode(
        "ab  ba c"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "pieces"),
        (b"not a model", "not a SentencePiece model"),
        (b"\xff" * 100, "cut short"),
        (b"\x0b" * 10**5, "wire type 3"),
        (_message(1, _number(1, 5)), "a number where text is expected"),
        (AB + _message(2, _message(3, b"x")), "model type"),
        (AB + _message(2, _number(3, 3)), "model type is 3, expected 1 .unigram. or 2 .BPE."),
        (AB + _message(2, _message(35, b"x")), "text where a flag"),
        (AB + _message(2, _number(35, 1)), "pieces of bytes"),
        (AB + _message(2, _message(44, b"\xff")), "codec can't decode"),
        (AB + piece(b"<0x00>", 0, BYTE), "pieces of bytes"),
        (AB + piece(b"a"), "occurs twice"),
        (AB + piece(b""), "1 to 512 bytes"),
        (AB + piece(b"c" * 513), "1 to 512 bytes"),
        (AB + piece(b"c\0d"), "without NUL"),
        (AB + piece(b"\xff"), "codec can't decode"),
        (AB + piece(b"c", float("nan")), "scores"),
        (AB + piece(b"c", float("inf")), "scores"),
        (AB + piece(b"c", 3e38), "a score is beyond"),
        (AB + piece(b"c", 0, 7), "types of pieces"),
        (AB + piece(b"c", 0, UNKNOWN), "types of pieces"),
        (AB + piece(b"c", 0, 2**64 - 1), "types"),
        (piece(b"a"), "types of pieces"),
        (AB + b"".join(piece(b"z" * i, 0, USER_DEFINED) for i in range(1, 40)), "begin 'zzz"),
        (with_rules(b"abc"), "are damaged"),
        (with_rules(rules([])), "are damaged"),
        (with_rules(rules([0] * 256)[:-1]), "are damaged"),
        (with_rules(rules([0] * 255)), "are damaged"),
        (with_rules(rules([0] * 256, b"\xff\0")), "invalid UTF-8"),
        (with_rules(rules([0] * 256, b"x" * 300 + b"\0")), "more than 64 bytes"),
        (with_rules(rules([0] * 2**18)), "are damaged"),
        (with_rules(rules([2**31 - 1] * 256)), "beyond their end"),
        (with_rules(rules([0x100, *[5] * 255])), "beyond their replacements"),
        (with_rules(rules([i << 10 | i for i in range(256)])), "run in circles"),
        (AB + _message(5, _message(2, b"abc")), "are damaged"),
    ],
)
def test_a_damaged_or_hostile_model_is_refused(tmp_path, content, message):
    assert message.replace(".unigram. or 2 .BPE.", "(unigram) or 2 (BPE)") in refusal(content, tmp_path)


def test_only_a_regular_file_of_bounded_length_is_read(tmp_path):
    with (tmp_path / "long.spm").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    os.mkfifo(tmp_path / "fifo.spm")
    for name in ("long.spm", "fifo.spm", "missing.spm", ""):
        with pytest.raises(HeedError, match=f"^{tmp_path / name}: "):
            SentencePieceModel.read(tmp_path / name)


def test_rules_that_normalise_are_accepted(tmp_path):
    for name in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"):
        content = trained([*ENGLISH, *ODD_LINES], vocab_size=150, normalization_rule_name=name)
        model = SentencePieceModel.read(written(content, tmp_path))
        assert len(base64.b64decode(model.normalizer)) > 200_000
