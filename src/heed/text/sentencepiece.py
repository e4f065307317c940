"""Texts ↔ ids with SentencePiece models or tables of words, for models that Marian or Hugging Face trained.

Ids are exactly theirs, their normalisation included. So text is not always lossless: what the model does not know is
one id, and a normalisation such as NFKC replaces characters.
"""

import copy
import json
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from heed.config import Settings, reason, validated
from heed.errors import HeedError
from heed.runtime.files import whole_file
from heed.text.piece_table import read_table
from heed.text.prefix import NO_PREFIX, Prefix, Spellings
from heed.text.sentencepiece_model import (
    BYTE,
    CONTROL,
    MAX_PIECE,
    MAX_PIECES,
    UNKNOWN,
    SentencePieceModel,
    longest_in_bytes,
    places,
)
from heed.text.token_names import SPACE, TokenNames, readable
from heed.text.tokenizer import SpecialIds, check_unicode, spelled_bytes, trim_span

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"  # the names of special pieces in Marian's vocabularies
_CODE = re.compile("(?s)>>.+<<")
_LANGUAGE = re.compile(r">>[\w.@-]{1,60}<<")


class Vocabulary(Settings):
    """How the text of one side becomes ids.

    model: None splits a line at its spaces. pieces: by id, None for an id that no piece has; without this list the ids
    are the model's own.
    """

    model: SentencePieceModel | None = Field(default=None)
    pieces: list[str | None] | None = Field(default=None, min_length=1, max_length=MAX_PIECES)

    @model_validator(mode="after")
    def _check(self) -> "Vocabulary":
        if self.model is None and self.pieces is None:
            raise ValueError("a vocabulary has neither a model nor a list of pieces")
        known = [piece for piece in self.pieces or [] if piece is not None]
        if len(set(known)) < len(known):
            raise ValueError("a piece has two ids")
        if longest_in_bytes(known) > MAX_PIECE:
            raise ValueError(f"a piece has more than {MAX_PIECE} bytes")
        return self

    def __len__(self) -> int:
        return len(self.table)

    @property
    def table(self) -> Sequence[str | None]:
        """The pieces by id."""
        if self.pieces is not None:
            return self.pieces
        assert self.model is not None
        return self.model.pieces


class _Special(Settings):
    pad: int
    bos: int
    eos: int
    unk: int


class _File(Settings):
    """The contents of tokenizer.json. tgt: None if both sides have the same vocabulary."""

    sentencepiece: Literal[1]
    special: _Special
    src: Vocabulary
    tgt: Vocabulary | None


class SentencePieceTokenizer:
    """Texts ↔ ids, the sides with a vocabulary each. No text has pad, bos or eos among its ids.

    A side with a model alone has the model's ids. A side with a table has the ids of the table's pieces, as OPUS-MT: a
    language code before the text (>>fra<<) is a piece of its own, and decoding leaves out unk and spaces at the ends.
    """

    def __init__(self, src: Vocabulary, tgt: Vocabulary, special: SpecialIds):
        """ValueError if a special id is not one; HeedError if the package sentencepiece is not installed."""
        self.special = special
        self.symbols: dict[str, int] = {}
        self._tgt = _Side(tgt, special)
        self._src = self._tgt if src == tgt else _Side(src, replace(special, bos=special.eos))  # no source has bos

    def __len__(self) -> int:
        return len(self._tgt)

    @property
    def language_codes(self) -> dict[str, int]:
        """The codes such as >>fra<< that a source may begin with, and their ids."""
        return {code: i for code, i in self._src.codes.items() if _LANGUAGE.fullmatch(code)}

    @property
    def without_codes(self) -> "SentencePieceTokenizer":
        """The tokenizer for which a text that begins with such a code is text."""
        if not self._src.codes:
            return self
        plain = copy.copy(self)
        plain._src = self._src.without_codes()
        return plain

    @property
    def src_vocab_size(self) -> int:
        """The number of ids that a source may have."""
        return len(self._src)

    @cached_property
    def src(self) -> Vocabulary:
        """The source's vocabulary, made when it is asked for: a search needs no such lists of tens of megabytes."""
        return self.tgt if self._src is self._tgt else self._src.vocabulary()

    @cached_property
    def tgt(self) -> Vocabulary:
        """The target's vocabulary, made when it is asked for."""
        return self._tgt.vocabulary()

    def __eq__(self, other: object) -> bool:
        """Whether every text has the same ids."""
        return isinstance(other, SentencePieceTokenizer) and self._contents() == other._contents()

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        made_when_asked_for = {"src", "tgt", "_token_names"}
        return {name: value for name, value in vars(self).items() if name not in made_when_asked_for}

    def _contents(self) -> tuple[Any, ...]:
        return self._src.contents(), self._tgt.contents(), self.special

    def encode(self, text: str) -> list[int]:
        """Ids of one source line, without eos. HeedError if it is not valid Unicode."""
        return self._src.encode_lines([text])[0]

    def encode_lines(self, texts: list[str]) -> list[list[int]]:
        """Ids of many source lines, on all cores. HeedError if one is not valid Unicode."""
        return self._src.encode_lines(texts)

    def encode_targets(self, lines: list[str]) -> list[list[int]]:
        """Ids of many target lines, on all cores. HeedError if one is not valid Unicode."""
        return self._tgt.encode_lines(lines)

    def prefix(self, text: str) -> Prefix:
        """The prefix that all targets share which begin with this text, once it is normalised.

        HeedError if the text is not valid Unicode, or if no ids spell it.
        """
        return self._tgt.prefix(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids; pad, bos and eos are left out."""
        return self._tgt.decode(ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each target id's text, readable; with a space before it if it begins a word. Bytes: `spelled_bytes`."""
        return self._tgt.spell(ids)

    def src_pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of source ids, like `pieces`."""
        return self._src.spell(ids)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """A readable name for each target id, no two ids alike and none with white space; pad, bos and eos have none.

        It is the piece, where that is visible.
        """
        return self._token_names.tokens(ids)

    def token_ids(self, tokens: Iterable[str]) -> list[int]:
        """The target ids of `tokens`. HeedError for one that the vocabulary lacks."""
        return self._token_names.ids(tokens)

    @cached_property
    def _token_names(self) -> TokenNames:
        def name(i: int) -> str | None:
            piece = self._tgt.piece(i)
            if piece is None or (piece.isprintable() and " " not in piece):
                return piece
            return readable(piece.encode())

        return TokenNames(name, len(self), left_out={self.special.pad, self.special.bos, self.special.eos})

    def src_spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Which characters of each text each of its ids stands for, without the space before a word."""
        return [self._src.spans(text) for text in texts]

    def tgt_spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Returns the spans of target ids, like `src_spans`."""
        return [self._tgt.spans(text) for text in texts]

    def save(self, path: Path) -> None:
        src, tgt = self.src, self.tgt
        file = {
            "sentencepiece": 1,
            "special": asdict(self.special),
            "src": src.model_dump(),
            "tgt": None if tgt == src else tgt.model_dump(),
        }
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(file, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, file: Any, *, where: Path) -> "SentencePieceTokenizer":
        """The tokenizer in the JSON of a file. HeedError if its ids could not be trusted."""
        content = validated(_File, file, where=str(where))
        special = SpecialIds(**content.special.model_dump())
        try:
            return cls(content.src, content.tgt or content.src, special)
        except ValueError as error:
            raise HeedError(f"{where}: {error}.") from None


class _Side:
    """One side's segmentation and ids.

    The pieces of a model are held by the library alone: hundreds of thousands of texts. What `_ids` and `_other_pieces`
    say beside it is how a table numbers them.
    """

    def __init__(self, vocabulary: Vocabulary, special: SpecialIds):
        """ValueError if an id is beyond the vocabulary, or if a text could produce a special one."""
        model, pieces, self._size = vocabulary.model, vocabulary.pieces, len(vocabulary)
        for name, i in asdict(special).items():
            if i is None or not 0 <= i < self._size:
                raise ValueError(f"{name} is id {i}; the vocabulary has {self._size:,}")
        assert special.unk is not None
        self._unk, self._left_out = special.unk, {special.pad, special.bos, special.eos}
        if self._unk in self._left_out:
            raise ValueError(f"unk has the id {self._unk} of pad, bos or eos")
        self._processor: Any = None
        self._bytes: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        if model is not None:
            self._processor = _processor(model.protobuf())
            self._bytes = {piece: int(piece[1:-1], 16) for piece in _of_type(model, BYTE)}  # such as <0xF0>
            # No text; and decoding keeps the byte of a space, where it drops the space ▁.
            self._invisible = frozenset([*_of_type(model, CONTROL), "<0x20>"])
            self._model_unk, self._removes_spaces = model.types.index(UNKNOWN), model.remove_extra_whitespaces
            self._dummy: Literal["", "prefix", "suffix"] = ""
            if model.add_dummy_prefix:
                self._dummy = "suffix" if model.whitespace_as_suffix else "prefix"
        self._has_table = pieces is not None
        if pieces is None:
            assert model is not None
            if model.types[self._unk] != UNKNOWN or any(model.types[i] != CONTROL for i in self._left_out):
                raise ValueError("pad, bos and eos are not control symbols, or unk is not the unknown piece")
            return
        # Ids by the model's, and the model's by ids; -1 is none. A text that spells a special symbol is still text.
        of_model = {piece: i for i, piece in enumerate(model.pieces)} if model else {}
        self._model_ids = array("i", [-1 if piece is None else of_model.get(piece, -1) for piece in pieces])
        self._ids = array("i", [self._unk]) * len(of_model)
        self._other_pieces: dict[int, str] = {}
        for i, (piece, model_id) in enumerate(zip(pieces, self._model_ids, strict=True)):
            if model_id < 0 and piece is not None:
                self._other_pieces[i] = piece
            elif model_id >= 0 and i not in self._left_out:
                self._ids[model_id] = i
        self._other_ids = {piece: i for i, piece in self._other_pieces.items() if i not in self._left_out}
        codes = (piece for piece in pieces if piece and piece[0] == ">" and _CODE.fullmatch(piece))
        self.codes = {code: i for code in codes if (i := self._id(code)) != self._unk}

    def __len__(self) -> int:
        return self._size

    def __getstate__(self) -> dict[str, Any]:
        model = None if self._processor is None else self._processor.serialized_model_proto()
        return {name: value for name, value in vars(self).items() if name != "_spellings"} | {"_processor": model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state["_processor"]
        vars(self).update(state | {"_processor": None if model is None else _processor(model)})

    contents = __getstate__  # of which equal sides have equal ones

    def vocabulary(self) -> Vocabulary:
        """What the side was made from."""
        model = None
        if self._processor is not None:
            model = SentencePieceModel.of_protobuf(self._processor.serialized_model_proto(), where="the tokenizer")
        pieces = [self.piece(i) for i in range(self._size)] if self._has_table else None
        return Vocabulary(model=model, pieces=pieces)

    def without_codes(self) -> "_Side":
        """The side for which a text that begins with a code is text."""
        plain = object.__new__(_Side)  # a copy by its pickle would read the model again
        vars(plain).update(vars(self))
        plain._ids = array("i", self._ids)
        for code in self.codes.keys() - self._other_ids.keys():
            plain._ids[self._processor.piece_to_id(code)] = self._unk
        plain._other_ids = {piece: i for piece, i in self._other_ids.items() if piece not in self.codes}
        plain.codes = {}
        return plain

    def piece(self, i: int) -> str | None:
        """The piece of an id, None if it has none."""
        if self._has_table and (i := self._model_ids[own := i]) < 0:
            return self._other_pieces.get(own)
        piece: str = self._processor.id_to_piece(i)
        return piece

    def _id(self, piece: str) -> int:
        """The id that a table has for a piece, that of unk where there is none."""
        if self._processor is None or piece in self._other_ids:
            return self._other_ids.get(piece, self._unk)
        model_id: int = self._processor.piece_to_id(piece)
        return self._ids[model_id]

    def encode_lines(self, texts: list[str]) -> list[list[int]]:
        try:
            if self._processor is None:
                return [[self._id(word) for word in line] for line in self._words(texts)]
            if not self._has_table:
                lines: list[list[int]] = self._processor.encode(texts, out_type=int)
                return lines
            codes = [self._code(text) for text in texts]
            rests = [text[len(code) :] for text, code in zip(texts, codes, strict=True)]
            encoded: list[list[int]] = self._processor.encode(rests, out_type=int)
            for rest, ids in zip(rests, encoded, strict=True):
                if self._model_unk in ids:  # of text, which the table may have nevertheless
                    ids[:] = [self._id(piece) for piece in self._processor.encode(rest, out_type=str)]
                else:
                    ids[:] = [self._ids[i] for i in ids]
            return [[self.codes[code], *ids] if code else ids for code, ids in zip(codes, encoded, strict=True)]
        except (RuntimeError, TypeError):  # what the library makes of half a surrogate pair
            for text in texts:
                check_unicode(text)
            raise

    def _words(self, texts: list[str]) -> list[list[str]]:
        for text in texts:
            check_unicode(text)
        return [[word for word in text.split(" ") if word] for text in texts]

    def _segment(self, text: str) -> list[str]:
        """The pieces of a text; what a model does not know is a piece as it stands."""
        if self._processor is None:
            return self._words([text])[0]
        code = self._code(text)
        pieces: list[str] = self._processor.encode(text[len(code) :], out_type=str)
        return [code, *pieces] if code else pieces

    def prefix(self, text: str) -> Prefix:
        if not text:  # which spares a table of all spellings
            return NO_PREFIX
        check_unicode(text)
        pieces = self._segment(text)
        if self._processor is None:
            normalized = " ".join(pieces)
        else:
            normalized = b"".join(map(self._spelling, pieces)).decode("utf-8")
            if self._dummy == "suffix":
                normalized = normalized.removesuffix(" ")
            elif self._dummy == "prefix":
                normalized = normalized.removeprefix(" ")
        # Normalisation takes a space from the end of a text, but here more text follows.
        if text[-1:].isspace() and normalized and not normalized[-1].isspace():
            normalized += " "
        return self._spellings.prefix(normalized)

    @cached_property
    def _spellings(self) -> Spellings:
        invisible = frozenset() if self._processor is None else self._invisible
        spelled = (
            (i, self._spelling(piece))
            for i in range(self._size)
            if i != self._unk and i not in self._left_out and (piece := self.piece(i)) and piece not in invisible
        )
        if self._processor is None:
            return Spellings(spelled, n_dropped_spaces=1)
        if self._has_table or self._removes_spaces:
            return Spellings(spelled, n_dropped_spaces=None)
        return Spellings(spelled, n_dropped_spaces=int(self._dummy != ""))

    def _spelling(self, piece: str) -> bytes:
        """The bytes that a piece adds to the text, with a space before a word."""
        if self._processor is None:
            return f" {piece}".encode()
        return bytes([self._bytes[piece]]) if piece in self._bytes else piece.replace(SPACE, " ").encode()

    def spans(self, text: str) -> list[tuple[int, int]]:
        if self._processor is None:
            return [word.span() for word in re.finditer("[^ ]+", text)]
        code = self._code(text)
        rest = text[len(code) :]
        # The form that all versions have; it counts bytes.
        begins_character = np.frombuffer(rest.encode(), np.uint8) & 0xC0 != 0x80
        character = len(code) + np.concatenate([[0], begins_character.cumsum()])  # of each byte
        pieces = places(self._processor.encode(rest, out_type="serialized_proto"))
        spans = [trim_span(text, int(character[begin]), int(character[end])) for begin, end in pieces]
        return [(0, len(code)), *spans] if code else spans

    def _code(self, text: str) -> str:
        """The code such as >>fra<< that the text begins with, if the model knows it: a piece of its own.

        Hugging Face's MarianTokenizer treats whatever stands between >> and << as a code, and a quotation as unknown.
        """
        if not (self.codes and text.startswith(">>")):
            return ""
        code = text[: text.find("<<") + 2]
        return code if code in self.codes else ""

    def decode(self, ids: Iterable[int]) -> str:
        kept = [i for i in ids if i not in self._left_out]
        if not self._has_table:
            return str(self._processor.decode(kept)) if kept else ""
        # As in MarianTokenizer, which leaves out unk too.
        pieces = [piece for i in kept if i != self._unk and (piece := self.piece(i)) is not None]
        if self._processor is None or not pieces:
            return " ".join(pieces)
        return str(self._processor.decode(pieces)).replace(SPACE, " ").strip()

    def spell(self, ids: Iterable[int]) -> list[str]:
        """Each id's text, with spaces; bytes by `spelled_bytes`."""
        spelled: list[str] = []
        for is_byte, run in groupby((self.piece(i) or "" for i in ids), key=self._bytes.__contains__):
            if is_byte:
                spelled += spelled_bytes(bytes([self._bytes[piece]]) for piece in run)
            else:
                spelled += [piece.replace(SPACE, " ") if self._processor else f" {piece}" for piece in run]
        return spelled


def _of_type(model: SentencePieceModel, kind: int) -> list[str]:
    return [piece for piece, of_piece in zip(model.pieces, model.types, strict=True) if of_piece == kind]


def _processor(protobuf: bytes) -> Any:
    """The library's view of a model. HeedError if the library is not installed."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise HeedError(
            "this model's text needs SentencePiece, which is not installed: pip install 'heed-mt[sentencepiece]'."
        ) from None
    try:
        return SentencePieceProcessor(model_proto=protobuf)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"SentencePiece refuses the model ({reason(error)})") from None


def marian_tokenizer(src: Path, tgt: Path, *, sizes: tuple[int, int] | None = None) -> SentencePieceTokenizer:
    """The tokenizer of a model that Marian trained, of the two vocabularies in its settings, which may be one.

    Either may be a SentencePiece model (.spm) or a table of words (.yml, .json, or a word a line). Heed needs a pad
    and a bos, which Marian does not have: both are eos. OPUS-MT's tables are of pieces: its source.spm and target.spm
    lie beside them.
    sizes: how many ids the model has on each side; as in Marian, a longer table is cut, and ids behind a shorter one
    have no piece. HeedError if a file is damaged.
    """
    src_size, tgt_size = sizes or (None, None)
    sides = _read_vocabulary(src, src_size, "source"), _read_vocabulary(tgt, tgt_size, "target")
    return _tokenizer(*sides, where=tgt)


def opus_mt_tokenizer(
    folder: Path, *, n_src_rows: int | None = None, n_tgt_rows: int | None = None
) -> SentencePieceTokenizer:
    """The tokenizer of an OPUS-MT model in Hugging Face's form: source.spm, target.spm, vocab.json.

    A model whose sides have a vocabulary each has target_vocab.json too. HeedError if a file is missing or damaged.

    n_src_rows, n_tgt_rows: rows of the embeddings; those behind the table's ids pad it, and have no piece.
    """
    tgt_path = folder / "target_vocab.json"
    models = [SentencePieceModel.read(folder / f"{side}.spm") for side in ("source", "target")]
    tgt_path = tgt_path if tgt_path.exists() else folder / "vocab.json"
    src_pieces = _padded(read_table(folder / "vocab.json"), n_src_rows, folder / "vocab.json")
    tgt_pieces = _padded(read_table(tgt_path), n_tgt_rows, tgt_path)
    src, tgt = (
        validated(Vocabulary, {"model": model, "pieces": pieces}, where=str(folder))
        for model, pieces in zip(models, (src_pieces, tgt_pieces), strict=True)
    )
    return _tokenizer(src, tgt, where=folder)


def _padded(pieces: list[str | None], n_rows: int | None, path: Path) -> list[str | None]:
    if n_rows is not None and len(pieces) > n_rows:
        raise HeedError(f"{path}: has ids up to {len(pieces) - 1:,}, but the model's embedding has {n_rows:,} rows.")
    return pieces + [None] * ((n_rows or len(pieces)) - len(pieces))


def _read_vocabulary(path: Path, size: int | None, side: str) -> Vocabulary:
    if path.suffix != ".spm":
        pieces = read_table(path)
        if size is not None:
            pieces = [*pieces[:size], *[None] * (size - len(pieces))]
        model = path.parent / f"{side}.spm"
        if model.is_file():
            return validated(Vocabulary, {"model": SentencePieceModel.read(model), "pieces": pieces}, where=str(path))
        if 50 * sum(piece is not None and piece.startswith("▁") for piece in pieces) > len(pieces):
            raise HeedError(
                f"{path}: its entries are SentencePiece's pieces; put source.spm and target.spm next to it."
            )
        return validated(Vocabulary, {"pieces": pieces}, where=str(path))
    return Vocabulary(model=SentencePieceModel.read(path))


def _tokenizer(src: Vocabulary, tgt: Vocabulary, *, where: Path) -> SentencePieceTokenizer:
    """With the special ids of the target's vocabulary. HeedError if the source's has others, or if one lacks them."""
    pad, eos, unk = _special(tgt)
    if eos is None or unk is None or (eos, unk) != _special(src)[1:]:
        raise HeedError(f"{where}: both vocabularies must have {EOS} and {UNK}, with the same ids on both sides.")
    start = eos if pad is None else pad
    try:
        return SentencePieceTokenizer(src, tgt, SpecialIds(pad=start, bos=start, eos=eos, unk=unk))
    except ValueError as error:
        raise HeedError(f"{where}: {error}.") from None


def _special(vocabulary: Vocabulary) -> tuple[int | None, int | None, int | None]:
    """The ids of pad, eos and unk."""
    if vocabulary.pieces is not None:
        ids = {piece: i for i, piece in enumerate(vocabulary.pieces)}
        return ids.get(PAD), ids.get(EOS), ids.get(UNK)
    assert vocabulary.model is not None
    return None, vocabulary.model.find(EOS, kind=CONTROL), vocabulary.model.types.index(UNKNOWN)
