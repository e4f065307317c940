"""A model file from a stranger is refused in one line, or segments any text with ids of its own."""

import base64
import os
import random
import struct
import sys
import traceback
from pathlib import Path

import pytest
import sentencepiece
from tests.text.test_sentencepiece import ENGLISH, KINDS, ODD_LINES, trained

from heed.errors import HeedError
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    MAX_FILE_BYTES,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    _fields,
    _message,
    _number,
)
from heed.text.tokenizer import SpecialIds

TEXTS = [
    *ENGLISH[:3], *ODD_LINES[:5], "", "\0\1\x7f\ufffd", "".join(map(chr, range(0x20, 0x2000, 7))), "two " * 2000,
    "😀\u1100\u1161\u11a8ǆﷺ" * 50,
]  # fmt: skip


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


GOOD = trained([*ENGLISH, *ODD_LINES], **KINDS[0])


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


def mutated(random: random.Random) -> bytes:
    """The good model, cut, or with other bytes, or with other rules of normalisation."""
    fields = list(_fields(GOOD))
    if random.random() < 0.3:
        changed = bytearray(GOOD[: random.choice([len(GOOD), random.randrange(len(GOOD))])])
        for _ in range(random.randrange(20)):
            changed[-1 - random.randrange(min(len(changed), 4000))] = random.randrange(256)
        return bytes(changed)
    blob = bytearray(dict(_fields(dict(fields)[3]))[2])
    (n_bytes,) = struct.unpack_from("<I", blob)
    (root,) = struct.unpack_from("<I", blob, 4)
    first = (root >> 10) << ((root & 2**9) >> 6)
    for _ in range(random.randrange(1, 50)):
        near_root = random.random() < 0.5  # where nearly every text passes
        place = 4 + 4 * ((first ^ random.randrange(256)) if near_root else random.randrange(n_bytes // 4))
        (unit,) = struct.unpack_from("<I", blob, place)
        changed_unit = random.choice([unit ^ 1 << random.randrange(32), random.getrandbits(32), unit & 511])
        struct.pack_into("<I", blob, place, changed_unit)
    if random.random() < 0.2:
        struct.pack_into("<I", blob, 0, random.choice([0, 2**32 - 1, n_bytes - 1024, n_bytes + 1024]))
    return b"".join(_message(number, value) for number, value in fields if number != 3) + _message(
        3, _message(2, bytes(blob))
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_mutated_model_is_refused_or_segments_soundly(tmp_path):
    """In a child, since a fault of the library would be a signal."""
    child = os.fork()
    if child == 0:
        os._exit(_mutations_fail(tmp_path))
    assert os.waitpid(child, 0)[1] == 0


def _mutations_fail(folder: Path) -> int:
    try:
        draw = random.Random(7)
        n_good = 0
        for _ in range(300):
            path = written(mutated(draw), folder)
            try:
                vocabulary = Vocabulary(model=SentencePieceModel.read(path))
                tokenizer = SentencePieceTokenizer(vocabulary, vocabulary, SpecialIds(0, 0, 0, unk=1))
            except (HeedError, ValueError):
                continue
            n_good += 1
            for ids in tokenizer.encode_lines(TEXTS):
                assert all(0 < i < len(tokenizer) for i in ids)
                tokenizer.decode(ids)
        assert n_good >= 3
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        return 1
    return 0


def test_rules_that_normalise_are_accepted(tmp_path):
    for name in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"):
        content = trained([*ENGLISH, *ODD_LINES], vocab_size=150, normalization_rule_name=name)
        model = SentencePieceModel.read(written(content, tmp_path))
        assert len(base64.b64decode(model.normalizer)) > 200_000
