#!/usr/bin/env bash
# num2words: two different numbers, written in words, in each of its languages; here those whose words are equal though
# the language tells the numbers apart.
# Expected: other words for another number; digits that are spelled for speech or for training data keep their value.
# Happens: Azerbaijani writes 11,000 as "on min", which is 10,000, and leaves "bir" out before every thousand (21,000 is
# 20,000). Turkish writes 101,001 as 100,001. Welsh writes two thousand million as two million. The Belarusian ordinal of
# 80 is that of 70, and so of 180, 280 and on; Azerbaijani ordinals have the fault of its numbers.
# Seen with num2words 0.5.14, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q num2words==0.5.14
venv/bin/python - <<'EOP'
from num2words import num2words

pairs = [
    ("az", "cardinal", 10_000, 11_000),
    ("az", "cardinal", 20_000, 21_000),
    ("az", "ordinal", 100_000, 101_000),
    ("tr", "cardinal", 100_001, 101_001),
    ("cy", "cardinal", 2_000_000, 2_000_000_000),
    ("be", "ordinal", 70, 80),
    ("be", "ordinal", 170, 180),
]
for language, kind, one, other in pairs:
    words = {number: " ".join(num2words(number, lang=language, to=kind).split()) for number in (one, other)}
    print(language, kind, words)
    assert words[one] == words[other]
assert num2words(80, lang="be") != num2words(70, lang="be")
assert len({num2words(number, lang="en") for number in range(200_000)}) == 200_000
EOP
