"""Text → words → bytes → pieces, for byte pairs and word pieces alike: the pipeline of the library `tokenizers`."""

from collections.abc import Sequence

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from heed.config import shown

# Byte-level text holds no plain space, so no learned piece can ever equal one of these names.
PAD, BOS, EOS = "[padding symbol]", "[begin of sentence]", "[end of sentence]"
SYMBOL = "[symbol] "  # before the name of a target symbol, an id of its own
TAG = "[tag] "  # before the name of a tag, an id of its own, of a source that begins with it
TEXT = "▁"  # before a word that is text among symbols
CONTINUATION = "…"  # marks a word piece that does not begin a word; not among the 256 characters, so never in a text
# Runs of letters, of digits, of other characters, each with the space before it; other white space alone. Runs are
# cut at 64 characters: word pieces are matched in quadratic time.
WORDS = Regex(r" ?\p{L}[\p{L}\p{M}]{0,63}| ?\p{N}{1,64}| ?[^\s\p{L}\p{N}]{1,64}|\s{1,64}(?!\S)|\s")
BYTES = frozenset(pre_tokenizers.ByteLevel.alphabet())
# The byte that each of these stands for: printable ones for themselves, the others in order from 256 on.
_SHIFTED = [byte for byte in range(256) if chr(byte) not in BYTES]
BYTE_OF = {chr(byte): byte for byte in range(256)} | {chr(256 + n): byte for n, byte in enumerate(_SHIFTED)}
MAX_PIECE = 1 + 64 * 4  # bytes: of the longest of WORDS
MAX_SYMBOL = 256  # characters of a target symbol's name


def word_pieces(vocab: dict[str, int]) -> models.WordPiece:
    """The model of a vocabulary in which each byte may begin and continue a word."""
    return models.WordPiece(
        vocab,
        unk_token=PAD,  # required, never used
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=10_000,
    )


def make_backend(model: models.Model, special: Sequence[str] = ()) -> Backend:
    """The pipeline around a model: words cut by WORDS, as bytes; `special` get the ids behind the vocabulary's."""
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    if isinstance(model, models.WordPiece):
        backend.decoder = decoders.Sequence([decoders.Replace(CONTINUATION, ""), backend.decoder])
    backend.add_special_tokens(list(special))
    return backend


def check_symbol(name: str) -> None:
    """ValueError if the name of a target symbol is too long, or could not stand in a line of symbols."""
    name.encode("utf-8")  # half a surrogate pair is a ValueError as well
    if not 1 <= len(name) <= MAX_SYMBOL or name.startswith(TEXT) or " " in name or "\n" in name:
        raise ValueError(
            f"{shown(name)} is not a target symbol: it must have 1 to {MAX_SYMBOL} characters, no space or line end, "
            f"and not begin with {TEXT}"
        )
