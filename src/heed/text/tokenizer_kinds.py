"""tokenizer.json → the tokenizer of whichever kind it holds."""

from pathlib import Path
from typing import TypeAlias

from heed.text.sentencepiece import SentencePieceTokenizer
from heed.text.tokenizer import Tokenizer
from heed.text.tokenizer_file import read_tokenizer_file

AnyTokenizer: TypeAlias = Tokenizer | SentencePieceTokenizer


def load_tokenizer(path: Path) -> AnyTokenizer:
    """The tokenizer in a file. HeedError if it is missing, or if Heed cannot have written it."""
    file = read_tokenizer_file(path)
    if isinstance(file, dict) and "sentencepiece" in file:
        return SentencePieceTokenizer.from_json(file, where=path)
    return Tokenizer.from_json(file, where=path)
