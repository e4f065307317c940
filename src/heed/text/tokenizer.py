"""Joint segmentation of both languages: byte-pair encoding (Sennrich et al. 2016) and word pieces (Wu et al. 2016).

Both work on bytes, written as 256 printable characters, so no text is unknown and `decode(encode(x)) == x` for any x.
A space belongs to the word that follows it; a text is encoded with one space put before it, which decoding takes away,
so a word has the same ids at the beginning of a line as within it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers

from heed.config import Settings, shown
from heed.errors import HeedError, check_type, refuse_text
from heed.runtime.files import whole_file
from heed.text.prefix import Prefix, Spellings
from heed.text.segmentation import (
    BOS,
    BYTE_OF,
    BYTES,
    CONTINUATION,
    EOS,
    PAD,
    SYMBOL,
    TAG,
    TEXT,
    check_symbol,
    make_backend,
    word_pieces,
)
from heed.text.token_names import SPACE, TokenNames, readable
from heed.text.tokenizer_file import check_backend, read_tokenizer_file

MIN_VOCAB_SIZE, MAX_VOCAB_SIZE = 600, 2**18  # of a vocabulary to learn


class TokenizerSettings(Settings):
    """How text becomes tokens; the paper has 37,000 byte pairs for English-German, 32,000 word pieces for French."""

    kind: Literal["bpe", "wordpiece"] = Field(default="bpe", description="byte-pair encoding or word pieces")
    vocab_size: int = Field(
        default=37_000,
        ge=MIN_VOCAB_SIZE,
        le=MAX_VOCAB_SIZE,
        description="maximum number of ids, special symbols and 256 bytes included",
    )
    min_frequency: int = Field(
        default=2,
        ge=1,
        le=1_000_000_000,
        description="a pair seen less often is not merged; 1 lets a very small corpus fill its vocabulary",
    )
    sample_pairs: int = Field(
        default=2_000_000,
        ge=1,
        le=1_000_000_000,
        description="maximum number of line pairs to learn the vocabulary from, at equal distances through the corpus",
    )


@dataclass(frozen=True)
class SpecialIds:
    """Ids that no text can produce: padding, which every mask hides, begin of sentence and end of sentence.

    The defaults are those of every tokenizer that Heed trains. Those of imported models may be equal to each other.
    unk: the id of text that is not in the vocabulary, if the tokenizer has one; no search writes it.
    """

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int | None = None


class Tokenizer:
    """Texts ↔ ids. Lossless; `special` and `symbols` (name → id) are ids that no text can produce.

    tags: words (word → id) that are one id where a source begins with them.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._backend.encode_special_tokens = True  # a text that spells a special symbol is text
        ids = backend.get_vocab(with_added_tokens=True)
        self.special = SpecialIds(ids[PAD], ids[BOS], ids[EOS])
        self.symbols = {name.removeprefix(SYMBOL): i for name, i in ids.items() if name.startswith(SYMBOL)}
        self._names = {i: name for name, i in self.symbols.items()}
        self.tags = {name.removeprefix(TAG): i for name, i in ids.items() if name.startswith(TAG)}
        self._tag_names = {i: name for name, i in self.tags.items()}

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    @property
    def language_codes(self) -> dict[str, int]:
        """Words that say a target language where a source begins with them; no text that Heed learns has any."""
        return {}

    @property
    def without_codes(self) -> "Tokenizer":
        """The tokenizer for which a text that begins with such a word, or with a tag, is text."""
        if not self.tags:
            return self
        plain = object.__new__(Tokenizer)
        plain.__dict__.update(self.__dict__)
        plain.tags = {}
        return plain

    @property
    def src_vocab_size(self) -> int:
        """Number of different ids in sources; the same as in targets."""
        return len(self)

    def __eq__(self, other: object) -> bool:
        """Whether every text has the same ids."""
        return isinstance(other, Tokenizer) and self._backend.to_str() == other._backend.to_str()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._backend,)  # a backend's own pickle forgets what `__init__` sets

    def encode(self, text: str) -> list[int]:
        """Ids of one source line, without bos and eos. HeedError if it is not valid Unicode."""
        tag = self._tag(text)
        return [*([self.tags[tag]] if tag else []), *self._encode_spaced([_spaced(text, tag)])[0]]

    def encode_lines(self, texts: list[str]) -> list[list[int]]:
        """Ids of many source lines, on all cores. HeedError if one is not valid Unicode."""
        if not self.tags:
            return self._encode_spaced([" " + text for text in texts])
        tags = [self._tag(text) for text in texts]
        lines = self._encode_spaced([_spaced(text, tag) for text, tag in zip(texts, tags, strict=True)])
        return [[self.tags[tag], *ids] if tag else ids for tag, ids in zip(tags, lines, strict=True)]

    def _tag(self, text: str) -> str:
        """The tag that a source begins with, or an empty string."""
        word = text.partition(" ")[0] if self.tags else ""
        return word if word in self.tags else ""

    def _encode_spaced(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts that have the space before their first word."""
        try:
            if len(texts) == 1:
                return [list(self._backend.encode(texts[0]).ids)]
            return [list(encoding.ids) for encoding in self._backend.encode_batch_fast(texts)]
        except TypeError:  # what the library makes of half a surrogate pair
            for text in texts:
                check_unicode(text)
            raise

    def encode_targets(self, lines: list[str]) -> list[list[int]]:
        """Returns ids of target lines; a tokenizer with symbols takes lines of these, separated by spaces.

        Among symbols a word that begins with ▁ is text. A line with an unknown symbol has no ids.
        """
        if not self.symbols:
            return self._encode_spaced([" " + line for line in lines])
        words: dict[str, list[int]] = {}
        encoded = []
        for line in lines:
            ids: list[int] = []
            for name in line.split(" "):
                if name.startswith(TEXT):
                    ids += words[name] if name in words else words.setdefault(name, self.encode(name[1:]))
                elif name in self.symbols:
                    ids.append(self.symbols[name])
                elif name:  # not between two spaces
                    check_unicode(line)
                    ids = []
                    break
            encoded.append(ids)
        return encoded

    def prefix(self, text: str) -> Prefix:
        """The prefix that all targets with this beginning share; of symbols, their ids.

        HeedError if the text is not valid Unicode, or for an unknown symbol.
        """
        check_unicode(text)
        if not self.symbols:
            return self._spellings.prefix(text)
        ids = self.encode_targets([text])[0]
        if text.strip() and not ids:
            raise HeedError(f"the prefix {shown(text)} holds a symbol that the model's vocabulary lacks; take another.")
        return Prefix.of_ids(ids)

    @cached_property
    def _spellings(self) -> Spellings:
        special = {self.special.pad, self.special.bos, self.special.eos, *self._tag_names}
        return Spellings(
            (
                (i, bytes(BYTE_OF[character] for character in name.removeprefix(CONTINUATION)))
                for i, name in enumerate(self.id_names())
                if i not in special
            ),
            n_dropped_spaces=1,
        )

    def src_spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """For each id of each text the characters that it stands for, without the space before a word.

        Ids that are parts of one character have the same span.
        """
        return self._spans(texts, [self._tag(text) for text in texts])

    def tgt_spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Returns the spans of target ids, like `src_spans`; for text only, not for symbols."""
        return self._spans(texts, [""] * len(texts))

    def _spans(self, texts: list[str], tags: list[str]) -> list[list[tuple[int, int]]]:
        spaced = [_spaced(text, tag) for text, tag in zip(texts, tags, strict=True)]
        spans = []
        for text, tag, encoding in zip(texts, tags, self._backend.encode_batch(spaced), strict=True):
            begin = len(tag) or -1  # of what is encoded, in the text
            own_spans = [trim_span(text, begin + start, begin + end) for start, end in encoding.offsets]
            spans.append([(0, len(tag)), *own_spans] if tag else own_spans)
        return spans

    def decode(self, ids: Iterable[int]) -> str:
        """The text, or a line of symbols; pad, bos and eos are left out. Ids that spell no UTF-8 show as U+FFFD."""
        special = {self.special.pad, self.special.bos, self.special.eos}
        kept = [i for i in ids if i not in special]
        if not any(i in self._names for i in kept):
            if self._tag_names.keys().isdisjoint(kept):
                return str(self._backend.decode(kept)).removeprefix(" ")
            # A space stands before each word but a tag.
            runs = ((i, list(run)) for i, run in groupby(kept, key=lambda i: i if i in self._tag_names else -1))
            texts = (self._tag_names[i] * len(run) if i >= 0 else self._backend.decode(run) for i, run in runs)
            return "".join(texts).removeprefix(" ")
        tokens: list[str] = []
        for is_symbol, run in groupby(kept, key=self._names.__contains__):
            if is_symbol:
                tokens += [self._names[i] for i in run]
            else:
                tokens += [TEXT + word for word in str(self._backend.decode(list(run))).split(" ") if word]
        return " ".join(tokens)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id's text, readable; with a space before it if it begins a word, as a symbol does.

        An id that is a part of a character shows it with the bytes of that part: `spelled_bytes`.
        """
        words = self._names | self._tag_names
        special = {self.special.pad, self.special.bos, self.special.eos, *words}
        pieces: list[str] = []
        for is_special, run in groupby(ids, key=special.__contains__):
            if is_special:
                pieces += [f" {words[i]}" if i in words else str(self._backend.id_to_token(i)) for i in run]
            else:
                pieces += spelled_bytes([self._bytes(i) for i in run])
        return pieces

    def _bytes(self, i: int) -> bytes:
        """The text of an id of text, which need not be whole characters."""
        name = str(self._backend.id_to_token(i)).removeprefix(CONTINUATION)
        return bytes(BYTE_OF[letter] for letter in name)

    def src_pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of source ids, like `pieces`."""
        return self.pieces(ids)

    def id_names(self) -> list[str]:
        """The name of each id in tokenizer.json, no two alike."""
        return [str(self._backend.id_to_token(i)) for i in range(len(self))]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """A readable name for each id, no two ids alike and none with white space; pad, bos and eos are left out.

        A space is ▁, and a byte that is not a visible character alone is such as <0xC3>.
        """
        return self._token_names.tokens(ids)

    def token_ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of `tokens`. HeedError for one that the vocabulary lacks."""
        return self._token_names.ids(tokens)

    @cached_property
    def _token_names(self) -> TokenNames:
        left_out = {self.special.pad, self.special.bos, self.special.eos}
        return TokenNames(self._token_name, len(self), left_out=left_out)

    def _token_name(self, i: int) -> str:
        if i in self._names:
            return f"<symbol:{readable(self._names[i].encode())}>"
        if i in self._tag_names:
            return f"<tag:{readable(self._tag_names[i].encode())}>"
        name = str(self._backend.id_to_token(i))
        piece = name.removeprefix(CONTINUATION)
        return name[: -len(piece)] + readable(bytes(BYTE_OF[c] for c in piece), space=SPACE)

    def to_json(self) -> dict[str, Any]:
        """The contents of tokenizer.json."""
        file: dict[str, Any] = json.loads(self._backend.to_str())
        return file

    def save(self, path: Path) -> None:
        with whole_file(path) as temporary:
            temporary.write_text(self._backend.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """The tokenizer that `save` wrote. HeedError if the file is missing, or if Heed cannot have written it.

        A file may come from a stranger, and its ids index the model's tables: only the vocabulary and the merges are
        taken from it, after checks. Everything else is made anew and must equal what the file says.
        """
        return cls.from_json(read_tokenizer_file(path), where=path)

    @classmethod
    def from_json(cls, file: Any, *, where: Path) -> "Tokenizer":
        """The tokenizer in the JSON of a file."""
        return cls(check_backend(file, where=where))


def _spaced(text: str, tag: str) -> str:
    """The text without its tag, with the space before its first word."""
    return text[len(tag) :] if tag else " " + text


def train_tokenizer(
    lines: Iterable[str], settings: TokenizerSettings, symbols: Iterable[str] = (), *, tags: Iterable[str] = ()
) -> Tokenizer:
    """A tokenizer learned from the lines of both languages, with these target symbols, and tags of sources.

    Deterministic. Smaller than requested if the lines yield fewer pieces.

    Memory grows with the number of different words, not of lines.
    """
    refuse_text(lines=lines)
    check_type(TokenizerSettings, "TokenizerSettings", settings=settings)
    # Every byte is in the vocabulary, so that no text is unknown.
    alphabet = sorted(BYTES)
    common: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "min_frequency": settings.min_frequency,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    # Special and target symbols have ids of their own, before all pieces.
    symbols = list(symbols)
    try:
        for name in symbols:
            check_symbol(name)
    except ValueError as error:
        raise HeedError(f"{error}; change the target lines.") from None
    tags = list(tags)
    special = [PAD, BOS, EOS, *(SYMBOL + name for name in symbols), *(TAG + tag for tag in tags)]
    least = len(special) + len(alphabet) * (1 if settings.kind == "bpe" else 2)
    if settings.vocab_size < least:
        own = f"{len(tags):,} tags" if tags else f"{len(symbols):,} target symbols"
        raise HeedError(
            f"tokenizer.vocab_size={settings.vocab_size:,} has no room for {own}, {least - len(special)} bytes and 3 "
            f"special ids: {least:,} is the least; set more, to learn merges too."
        )
    # A line begins with a space, as `encode` writes it.
    spaced_lines = (" " + line for line in lines)
    if settings.kind == "bpe":
        backend = make_backend(models.BPE())
        backend.train_from_iterator(spaced_lines, trainer=trainers.BpeTrainer(special_tokens=special, **common))
        return Tokenizer(backend)
    # Every byte is a continuation from the start: so nothing is unknown, and the ids, which decide between equally
    # frequent pairs, do not depend on the order in which the trainer meets them.
    special_and_bytes = special + [CONTINUATION + byte for byte in alphabet]
    trainer = trainers.WordPieceTrainer(
        special_tokens=special_and_bytes, continuing_subword_prefix=CONTINUATION, **common
    )
    learner = make_backend(models.WordPiece(unk_token=PAD))
    learner.train_from_iterator(spaced_lines, trainer=trainer)
    return Tokenizer(make_backend(word_pieces(learner.get_vocab()), special))


def spelled_bytes(parts: Iterable[bytes]) -> list[str]:
    """The text of each part of a text's bytes.

    A character that lies in several parts is shown in each with the bytes that it has there: ไ⟨E0 B9⟩, ไ⟨84⟩; bytes
    that are not UTF-8 are shown alone: ⟨E0 B9⟩.
    """
    parts = list(parts)
    spelled: list[str] = []
    characters = iter(b"".join(parts).decode("utf-8", "surrogateescape"))
    character, rest = "", b""  # the one that is being read, and those of its bytes that no part has had yet
    for part in parts:
        text = ""
        while part:
            begins = not rest
            if begins:
                character = next(characters)
                rest = character.encode("utf-8", "surrogateescape")
            here, part, rest = rest[: len(part)], part[len(rest) :], rest[len(part) :]
            if is_valid := not "\udc80" <= character <= "\udcff":
                text += character
            if not (is_valid and begins and not rest):
                text += f"⟨{here.hex(' ').upper()}⟩"
        spelled.append(text)
    return spelled


def check_unicode(text: str) -> None:
    """HeedError if the text holds half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise HeedError(f"{shown(text)} is not valid Unicode text; write it in UTF-8.") from None


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the white space at its start, which may be before the text."""
    part = text[max(0, start) : end]
    return end - len(part.lstrip()), end
