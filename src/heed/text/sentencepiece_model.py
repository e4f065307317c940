"""SentencePiece models (Kudo and Richardson 2018): what decides their ids, read from and written as their protobuf.

The library that segments with them is C++ and trusts what it is given, and a model may come from a stranger. So the
library never sees a file: this module reads the few fields that matter, checks them, and writes a protobuf of its own.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from heed.config import Settings, shown, validated
from heed.errors import HeedError
from heed.runtime.reading import read_bounded

MAX_FILE_BYTES = 2**25
MAX_PIECES = 2**18
MAX_PIECE = 512  # bytes; segmenting takes time in proportion to the longest
MAX_SCORE = 1e9  # of byte pairs a score is minus their rank; sums of scores must stay finite
MAX_NESTED_SYMBOLS = 32  # user-defined symbols that begin alike; the library has room for 64
MAX_RULES_BYTES = 2**20  # of normalisation; NFKC with case folding has 250,000
MAX_RULE_BYTES = 31  # that a rule replaces; the library has room for 32 rules that begin alike
MAX_REPLACEMENT = 64  # bytes; NFKC's longest has 33

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces, in the protobuf's numbers
_KINDS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


class SentencePieceModel(Settings):
    """A unigram or byte-pair model with its own normalisation. Equal models give equal ids.

    pieces, scores, types: by id. normalizer, denormalizer: rules, compiled as SentencePiece compiles them, in base64.
    """

    kind: Literal["unigram", "bpe"]
    byte_fallback: bool = Field(default=False)
    whitespace_as_suffix: bool = Field(default=False)
    add_dummy_prefix: bool = Field(default=True)
    remove_extra_whitespaces: bool = Field(default=True)
    escape_whitespaces: bool = Field(default=True)
    unk_surface: str = Field(default=" \u2047 ", max_length=MAX_PIECE)
    normalizer: str = Field(default="", max_length=2 * MAX_RULES_BYTES)
    denormalizer: str = Field(default="", max_length=2 * MAX_RULES_BYTES)
    pieces: list[str] = Field(min_length=1, max_length=MAX_PIECES)
    scores: list[float]
    types: list[int]

    @model_validator(mode="after")
    def _check(self) -> "SentencePieceModel":
        n = len(self.pieces)
        if len(self.scores) != n or len(self.types) != n:
            raise ValueError(f"{n:,} pieces, {len(self.scores):,} scores, {len(self.types):,} types")
        if len(set(self.pieces)) != n:
            raise ValueError("a piece occurs twice")
        if longest_in_bytes(self.pieces) > MAX_PIECE or "" in self.pieces or "\0" in "".join(self.pieces):
            bad = next(p for p in self.pieces if not 1 <= len(p.encode()) <= MAX_PIECE or "\0" in p)
            raise ValueError(f"piece {shown(bad)} is not of 1 to {MAX_PIECE} bytes without NUL")
        if max(map(abs, self.scores)) > MAX_SCORE:
            raise ValueError(f"a score is beyond {MAX_SCORE:,.0f}")
        if not NORMAL <= min(self.types) <= max(self.types) <= BYTE or self.types.count(UNKNOWN) != 1:
            raise ValueError("types of pieces are not 1 to 6, of which one is 2, the unknown piece")
        self._check_bytes()
        self._check_symbols()
        encode_utf8(self.unk_surface)
        for rules in (self.normalizer, self.denormalizer):
            _check_rules(base64.b64decode(rules, validate=True))
        return self

    def _check_bytes(self) -> None:
        byte_pieces = {piece for piece, kind in zip(self.pieces, self.types, strict=True) if kind == BYTE}
        if byte_pieces != ({f"<0x{i:02X}>" for i in range(256)} if self.byte_fallback else set()):
            raise ValueError("pieces of bytes are <0x00> to <0xFF> with byte_fallback, else there are none")

    def _check_symbols(self) -> None:
        nested: list[str] = []  # each begins the next
        for symbol in sorted(p for p, kind in zip(self.pieces, self.types, strict=True) if kind == USER_DEFINED):
            while nested and not symbol.startswith(nested[-1]):
                nested.pop()
            nested.append(symbol)
            if len(nested) > MAX_NESTED_SYMBOLS:
                raise ValueError(f"more than {MAX_NESTED_SYMBOLS} user-defined symbols begin {shown(symbol)}")

    def find(self, piece: str, *, kind: int) -> int | None:
        """The id of this piece if it is of this type."""
        i = self.pieces.index(piece) if piece in self.pieces else None
        return i if i is not None and self.types[i] == kind else None

    @classmethod
    def read(cls, path: Path) -> "SentencePieceModel":
        """The model in an .spm file. HeedError if it is damaged, or of a kind that is neither unigram nor BPE."""
        return cls.of_protobuf(read_bounded(path, MAX_FILE_BYTES), where=str(path))

    @classmethod
    def of_protobuf(cls, data: bytes, *, where: str) -> "SentencePieceModel":
        """The model in a ModelProto. HeedError if it is damaged, or of a kind that is neither unigram nor BPE."""
        try:
            values = _parse_model(data)
        except ValueError as error:
            raise HeedError(f"{where}: not a SentencePiece model that Heed reads ({error}).") from None
        return validated(cls, values, where=where)

    def protobuf(self) -> bytes:
        """The model as the library reads it."""
        # Hundreds of thousands of messages: what many have in common is made once.
        scores, of_score = np.array(self.scores, "<f4").tobytes(), _key(2, 5)
        kinds = [_number(3, kind) for kind in range(BYTE + 1)]
        begins = [_key(1, 2) + _encode_varint(size) for size in range(MAX_PIECE + 32)]
        parts = list[bytes]()
        for i, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True)):
            text, end = piece.encode(), of_score + scores[4 * i : 4 * i + 4] + kinds[kind]
            begin = begins[len(text)]
            parts += (begins[len(begin) + len(text) + len(end)], begin, text, end)
        pieces = b"".join(parts)
        kind = next(number for number, name in _KINDS.items() if name == self.kind)
        trainer = _number(3, kind) + _number(24, self.whitespace_as_suffix) + _number(35, self.byte_fallback)
        normalizer = _message(2, base64.b64decode(self.normalizer)) + b"".join(
            _number(3 + i, flag)
            for i, flag in enumerate((self.add_dummy_prefix, self.remove_extra_whitespaces, self.escape_whitespaces))
        )
        denormalizer = _message(5, _message(2, base64.b64decode(self.denormalizer))) if self.denormalizer else b""
        return (
            pieces + _message(2, trainer + _message(44, self.unk_surface.encode())) + _message(3, normalizer)
        ) + denormalizer


def encode_utf8(text: str) -> bytes:
    """UTF-8. ValueError for half a surrogate pair, without the text: pydantic could not show it."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{shown(text)} is not valid Unicode text") from None


def longest_in_bytes(texts: Sequence[str]) -> int:
    """The bytes of the longest text, or a bound where none can be too long. ValueError for half a surrogate pair."""
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        for text in texts:
            encode_utf8(text)
    most = max(map(len, texts), default=0)
    return most if 4 * most <= MAX_PIECE else max(len(text.encode("utf-8")) for text in texts)


def _check_rules(blob: bytes) -> None:
    """ValueError if compiled rules of normalisation could lead the library out of their own memory, or to no end.

    They are the size of a trie in bytes, the trie, and the replacements, each with a NUL behind. The trie is a double
    array as of Darts-clone. A node at place p has its children at p ^ offset ^ byte, each labelled with its byte, and
    if it ends a rule, the place of its replacement at p ^ offset.
    """
    if not blob:
        return
    # The outer form: the trie in whole kilobytes, the replacements as valid UTF-8, each short.
    n_bytes, replacements = int.from_bytes(blob[:4], "little"), blob[4 + int.from_bytes(blob[:4], "little") :]
    if len(blob) > MAX_RULES_BYTES or not n_bytes or n_bytes % 1024 or not replacements.endswith(b"\0"):
        raise ValueError("its rules of normalisation are damaged")
    try:
        replacements.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("its rules of normalisation write invalid UTF-8") from None
    if max(map(len, replacements.split(b"\0"))) > MAX_REPLACEMENT:
        raise ValueError(f"its rules of normalisation write more than {MAX_REPLACEMENT} bytes")
    # The links of the double array, for all places at once.
    units = np.frombuffer(blob, "<u4", n_bytes // 4, offset=4)
    places = np.arange(len(units))
    targets = places ^ ((units >> 10) << ((units & 2**9) >> 6))
    parents = np.where(units < 2**31, places ^ (units & 255), -1)  # the target of which a place would be a child
    # A replacement begins with a whole character.
    starts = np.append(np.frombuffer(replacements, np.uint8) & 0xC0 != 0x80, False)
    # All nodes at each depth, from the root on; an endless trie is one that is too deep.
    nodes = places[:1]
    for _ in range(MAX_RULE_BYTES + 1):
        if (targets[nodes] >= len(units)).any():
            raise ValueError("its rules of normalisation point beyond their end")
        ends = targets[nodes[units[nodes] & 2**8 != 0]]
        if not starts[np.minimum(units[ends] & (2**31 - 1), len(replacements))].all():
            raise ValueError("its rules of normalisation point beyond their replacements")
        reached = np.zeros(len(units) + 1, np.bool_)  # one more, for the parent -1
        reached[targets[nodes]] = True
        nodes = np.flatnonzero(reached[parents])
        if not len(nodes):
            return
    raise ValueError(f"its rules of normalisation replace more than {MAX_RULE_BYTES} bytes, or run in circles")


# The wire format of protobufs: https://protobuf.dev/programming-guides/encoding; the fields' numbers are those of
# sentencepiece_model.proto.


def _parse_model(data: bytes) -> dict[str, Any]:
    """The fields of SentencePieceModel in a ModelProto. ValueError if it is none."""
    # The messages of a ModelProto: 1 pieces, 2 trainer, 3 normaliser, 5 denormaliser.
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: [], 5: []}
    for number, value in _fields(data):
        if number in parts:
            parts[number].append(_bytes(value))
            if len(parts[1]) > MAX_PIECES:
                raise ValueError(f"more than {MAX_PIECES:,} pieces")
    # Of a message that occurs twice the fields are merged.
    trainer, normalizer, denormalizer = (dict(_fields(b"".join(parts[number]))) for number in (2, 3, 5))
    # Fields that are missing have protobuf's defaults.
    kind = trainer.get(3, 1)
    if kind not in _KINDS:
        raise ValueError(f"its model type is {shown(kind)}, expected 1 (unigram) or 2 (BPE)")
    pieces = [dict(_fields(part)) for part in parts[1]]
    return {
        "kind": _KINDS[kind],
        "byte_fallback": _flag(trainer.get(35, 0)),
        "whitespace_as_suffix": _flag(trainer.get(24, 0)),
        "add_dummy_prefix": _flag(normalizer.get(3, 1)),
        "remove_extra_whitespaces": _flag(normalizer.get(4, 1)),
        "escape_whitespaces": _flag(normalizer.get(5, 1)),
        "unk_surface": _bytes(trainer.get(44, " \u2047 ".encode())).decode("utf-8"),
        "normalizer": base64.b64encode(_bytes(normalizer.get(2, b""))).decode("ascii"),
        "denormalizer": base64.b64encode(_bytes(denormalizer.get(2, b""))).decode("ascii"),
        "pieces": [_bytes(piece.get(1, b"")).decode("utf-8") for piece in pieces],
        "scores": [_float(piece.get(2, bytes(4))) for piece in pieces],
        "types": [piece.get(3, NORMAL) for piece in pieces],
    }


def places(segmented: bytes) -> list[tuple[int, int]]:
    """(begin, end) in bytes of the text for each piece of a SentencePieceText (field 2; in it, fields 4 and 5)."""
    pieces = [dict(_fields(_bytes(value))) for number, value in _fields(segmented) if number == 2]
    return [(int(piece.get(4, 0)), int(piece.get(5, 0))) for piece in pieces]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: (number, value), a value of fixed length as its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type} at byte {at:,}")
        at += size
        if at > len(data):
            raise ValueError("cut short")
        yield number, data[at - size : at]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number of up to 10 bytes, the place behind it)."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError("cut short")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text is expected")
    return value


def _float(value: int | bytes) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        raise ValueError("a score is not a number of 4 bytes")
    return float(struct.unpack("<f", value)[0])


def _flag(value: int | bytes) -> bool:
    if not isinstance(value, int):
        raise ValueError("text where a flag is expected")
    return value != 0


def _key(number: int, wire_type: int) -> bytes:
    return _encode_varint(number << 3 | wire_type)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _encode_varint(value)


def _message(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
