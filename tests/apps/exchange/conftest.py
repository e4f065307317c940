"""Tokenizers of other programs' kinds."""

import pytest
from tests.apps.exchange.folders import ENGLISH
from tests.text.test_sentencepiece import GERMAN, trained

from heed.text.sentencepiece import SentencePieceTokenizer, marian_tokenizer


@pytest.fixture(scope="session")
def separate(tmp_path_factory) -> SentencePieceTokenizer:
    """A SentencePiece model a side."""
    folder = tmp_path_factory.mktemp("spm")
    for name, lines in (("src", ENGLISH), ("tgt", GERMAN)):
        (folder / f"{name}.spm").write_bytes(trained(lines, vocab_size=200))
    return marian_tokenizer(folder / "src.spm", folder / "tgt.spm")
