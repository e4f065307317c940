"""Joint segmentation of both languages: byte-pair encoding (Sennrich et al. 2016) and word pieces (Wu et al. 2016).

Both work on bytes, written as 256 printable characters, so no text is unknown and `decode(encode(x)) == x` for any x.
A space belongs to the word that follows it; a text is encoded with one space put before it, which decoding takes away,
so a word has the same ids at the beginning of a line as within it.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heed.config import HeedError, Settings
from heed.files import whole_file

# Byte-level text holds no plain space, so no learned piece can ever equal one of these names.
PAD, BOS, EOS = "[padding symbol]", "[begin of sentence]", "[end of sentence]"
SYMBOL = "[symbol] "  # before the name of a target symbol, an id of its own
TEXT = "▁"  # before a word that is text among symbols
CONTINUATION = "…"  # marks a word piece that does not begin a word; not among the 256 characters, so never in a text
# Runs of letters, of digits, of other signs, each with the space before it; other white space by itself. Runs are
# cut at 64 characters: word pieces are matched in quadratic time.
WORDS = Regex(r" ?\p{L}[\p{L}\p{M}]{0,63}| ?\p{N}{1,64}| ?[^\s\p{L}\p{N}]{1,64}|\s{1,64}(?!\S)|\s")


class TokenizerSettings(Settings):
    """How to segment; the paper: byte pairs, about 37,000 for English-German; 32,000 word pieces for English-French."""

    kind: Literal["bpe", "wordpiece"] = Field("bpe", description="byte-pair encoding or word pieces")
    vocab_size: int = Field(37_000, ge=600, description="ids at most, special symbols and 256 bytes included")
    min_frequency: int = Field(2, ge=1, description="a pair seen less often is not merged")
    sample_pairs: int = Field(2_000_000, ge=1, description="learn from so many pairs of lines at most, evenly spread")


class Tokenizer:
    """Texts ↔ ids. Lossless; `pad`, `bos`, `eos` and `symbols` (name → id) are ids that no text can produce."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._backend.encode_special_tokens = True  # a text that spells a special symbol is text
        self.pad, self.bos, self.eos = (self._special_id(name) for name in (PAD, BOS, EOS))
        ids = backend.get_vocab(with_added_tokens=True)
        self.symbols = {name.removeprefix(SYMBOL): i for name, i in ids.items() if name.startswith(SYMBOL)}
        self._names = {i: name for name, i in self.symbols.items()}

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def __eq__(self, other: object) -> bool:
        """Whether every text has the same ids."""
        return isinstance(other, Tokenizer) and self._backend.to_str() == other._backend.to_str()

    __hash__ = None  # type: ignore[assignment]

    def _special_id(self, name: str) -> int:
        i = self._backend.token_to_id(name)
        if i is None:
            raise HeedError(f"the tokenizer lacks Heed's symbol {name!r}; was it made by Heed?")
        return int(i)

    def encode(self, text: str) -> list[int]:
        """Ids of one line, without bos and eos."""
        return list(self._backend.encode(" " + text).ids)

    def encode_lines(self, texts: list[str]) -> list[list[int]]:
        """Ids of many lines, on all cores."""
        return [list(encoding.ids) for encoding in self._backend.encode_batch_fast([" " + text for text in texts])]

    def encode_targets(self, lines: list[str]) -> list[list[int]]:
        """As `encode_lines`; with symbols, ids of lines of these, spaces between, or none if one is unknown.

        Among symbols a word with ▁ before it is text.
        """
        if not self.symbols:
            return self.encode_lines(lines)
        words: dict[str, list[int]] = {}
        encoded = []
        for line in lines:
            ids: list[int] = []
            for name in line.split(" "):
                if name.startswith(TEXT):
                    ids += words[name] if name in words else words.setdefault(name, self.encode(name[1:]))
                elif name in self.symbols:
                    ids.append(self.symbols[name])
                else:
                    ids = []
                    break
            encoded.append(ids)
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text, or a line of symbols; pad, bos and eos are left out. Ids that spell no UTF-8 show as U+FFFD."""
        special = {self.pad, self.bos, self.eos}
        kept = [i for i in ids if i not in special]
        if not any(i in self._names for i in kept):
            return str(self._backend.decode(kept)).removeprefix(" ")
        tokens: list[str] = []
        for is_symbol, run in groupby(kept, key=self._names.__contains__):
            if is_symbol:
                tokens += [self._names[i] for i in run]
            else:
                tokens += [TEXT + word for word in str(self._backend.decode(list(run))).split(" ") if word]
        return " ".join(tokens)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, readable; a space before what begins a word, as a symbol does."""
        names = {i: f" {name}" for i, name in self._names.items()}
        return [names.get(i) or str(self._backend.decode([i]) or self._backend.id_to_token(i)) for i in ids]

    def save(self, path: Path) -> None:
        with whole_file(path) as temporary:
            temporary.write_text(self._backend.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """HeedError if the file is missing or no tokenizer."""
        try:
            return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None
        except HeedError:
            raise
        except Exception as error:  # the library raises bare Exception for a broken file
            raise HeedError(f"{path}: not a tokenizer file ({error}).") from None


def train_tokenizer(lines: Iterable[str], settings: TokenizerSettings, symbols: Iterable[str] = ()) -> Tokenizer:
    """A tokenizer learned from the lines of both languages, with these target symbols.

    Deterministic. Smaller than asked if the lines give less.

    Memory grows with the number of different words, not of lines.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    common: dict[str, Any] = {
        "vocab_size": settings.vocab_size,
        "min_frequency": settings.min_frequency,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    special = [PAD, BOS, EOS, *(SYMBOL + name for name in symbols)]
    spaced_lines = (" " + line for line in lines)
    if settings.kind == "bpe":
        backend = _backend(models.BPE())
        backend.train_from_iterator(spaced_lines, trainer=trainers.BpeTrainer(special_tokens=special, **common))
        backend.decoder = decoders.ByteLevel()
    else:
        # Every byte is a continuation from the start: so nothing is unknown, and the ids, which decide between equally
        # frequent pairs, do not depend on the order in which the trainer meets them.
        special_and_bytes = special + [CONTINUATION + byte for byte in alphabet]
        trainer = trainers.WordPieceTrainer(
            special_tokens=special_and_bytes, continuing_subword_prefix=CONTINUATION, **common
        )
        learner = _backend(models.WordPiece(unk_token=PAD))
        learner.train_from_iterator(spaced_lines, trainer=trainer)
        backend = _backend(
            models.WordPiece(
                learner.get_vocab(),
                unk_token=PAD,  # required, never used
                continuing_subword_prefix=CONTINUATION,
                max_input_chars_per_word=10_000,
            )
        )
        backend.add_special_tokens(special)
        backend.decoder = decoders.Sequence([decoders.Replace(CONTINUATION, ""), decoders.ByteLevel()])
    return Tokenizer(backend)


def _backend(model: models.Model) -> Backend:
    """Words as bytes, for either model."""
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend
