#!/usr/bin/env bash
# SentencePiece's Python package: which part of a text each piece stands for (begin and end), with out_type
# "immutable_proto" in 0.2.0 and, as the error of 0.2.3 says to do instead, with "proto".
# Expected: begin and end are indices of the Python text, as they were, and as those of normalize(with_offsets=True).
# Happens: in 0.2.3 they count UTF-8 bytes. Spans of ASCII are right, those behind an accent or in Chinese are not:
# text[begin:end] is another word or empty, without an error. Offsets of normalize are still characters, so the two do
# not fit together. Spans of decode are bytes, too.
# In 0.2.3, return_type="offset_mapping" has characters; `surface` is right in both; or cut text.encode()[begin:end].
# Seen with sentencepiece 0.2.0 and 0.2.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv old && old/bin/pip install -q sentencepiece==0.2.0
python3 -m venv new && new/bin/pip install -q sentencepiece==0.2.3
new/bin/pip install -q protobuf==6.33.1
cat > spans.py <<'EOF'
import random
import sys

import sentencepiece

WORDS = ["the", "café", "naïve", "über", "東京", "garden"]
if sys.argv[1] == "proto":
    draw = random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=8)) for _ in range(300))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix="m", vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
model = sentencepiece.SentencePieceProcessor(model_file="m.model")
text = "the café garden 東京 über"
pieces = model.encode(text, out_type=sys.argv[1]).pieces
by_index = [text[piece.begin : piece.end] for piece in pieces]
by_bytes = [text.encode()[piece.begin : piece.end].decode(errors="replace") for piece in pieces]
_, offsets = model.normalize(text, with_offsets=True)
print(sys.argv[1], "text[begin:end]:", by_index, "of bytes:", by_bytes, "last offset of normalize:", offsets[-1])
surfaces = [piece.surface for piece in pieces]
assert "".join(surfaces) == text and offsets[-1] == len(text)
assert pieces[-1].end == (len(text) if sys.argv[1] == "immutable_proto" else len(text.encode()))
right, wrong = (by_index, by_bytes) if sys.argv[1] == "immutable_proto" else (by_bytes, by_index)
assert right == surfaces != wrong
if sys.argv[1] == "proto":
    mapping = model.encode(text, return_type="offset_mapping")
    assert [text[begin:end] for begin, end in mapping["offsets"]] == surfaces
EOF
new/bin/python spans.py proto
old/bin/python spans.py immutable_proto
