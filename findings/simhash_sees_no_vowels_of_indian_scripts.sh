#!/usr/bin/env bash
# simhash (Python), which finds near duplicates of texts by the distance of their fingerprints: pairs of sentences in
# Hindi, Thai and Telugu that differ in vowel or tone marks, and a pair in French that differs in accents.
# Expected: as for French, whose letters with accents are letters: fingerprints that differ.
# Happens: distance 0, as for copies. The text is cut down to what \w of Python's re matches, which are no combining
# marks (Mn, Mc): all vowels of Indian scripts but a word's first ones, and tones of Thai. "That boy is good" and "that
# girl is good" are one sentence in Hindi, and "Hindi" equals "h n d". Emoji and signs ("C++", "C#") count for nothing.
# SimhashIndex with k=0 reports such pairs as duplicates. A pattern that takes marks, such as \S+, tells them apart.
# Seen with simhash 2.1.2, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q simhash==2.1.2
venv/bin/python - <<'EOP'
from simhash import Simhash, SimhashIndex

pairs = {
    "Hindi, boy and girl": ("वह लड़का अच्छा है", "वह लड़की अच्छी है"),
    "Hindi, vowels left out": ("हिन्दी", "हनद"),
    "Thai, tone left out": ("ฉันไม่ชอบแมว", "ฉันไมชอบแมว"),
    "Telugu, vowels left out": ("నేను వచ్చాను", "నన వచచన"),
    "French, accents": ("le café est salé", "le cafe est sale"),
}
distances = {name: Simhash(one).distance(Simhash(other)) for name, (one, other) in pairs.items()}
told = {name: Simhash(one, reg=r"\S+").distance(Simhash(other, reg=r"\S+")) for name, (one, other) in pairs.items()}
boy, girl = pairs["Hindi, boy and girl"]
found = SimhashIndex([("boy", Simhash(boy))], k=0).get_near_dups(Simhash(girl))
print(distances, told, found)
assert found == ["boy"] and all(told.values())
assert all((distance == 0) == (name != "French, accents") for name, distance in distances.items())
EOP
