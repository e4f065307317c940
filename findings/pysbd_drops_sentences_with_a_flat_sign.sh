#!/usr/bin/env bash
# pysbd divides "The clarinet is in B♭. It is loud." into sentences, with clean=False, the default.
# Expected: two sentences that joined are the text: only clean=True "will modify original text".
# Happens: one, "It is loud.", in each of its 23 languages. Twelve characters mark things inside, ♭ a colon, ♬ an Arabic
# comma, ☉ the signs ?!, ☝ an item of a list, and are replaced at the end, those of the text too. A piece that is then
# not found in the text is left out: of lyrics in subtitles that begin with ♬, nothing remains. Spans (char_span=True)
# have the same gap; clean=True writes "B:". A corpus divided so loses lines on one side only. syntok, sentence-splitter
# and sentencex keep every character.
# Seen with pysbd 0.3.4, syntok 1.4.4, sentence-splitter 1.4, sentencex 1.0.32, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv
venv/bin/pip install -q pysbd==0.3.4 syntok==1.4.4 sentence-splitter==1.4 sentencex==1.0.32
venv/bin/python -W ignore - <<'EOF'
import pysbd
import sentencex
from pysbd.languages import LANGUAGE_CODES
from sentence_splitter import SentenceSplitter
from syntok import segmenter

english = pysbd.Segmenter(language="en")
moses = SentenceSplitter(language="en")
others = {
    "syntok": lambda text: [token.spacing + token.value for paragraph in segmenter.process(text)
                            for sentence in paragraph for token in sentence],
    "sentence-splitter": moses.split,
    "sentencex": lambda text: list(sentencex.segment("en", text)),
}
found = {}
for text in ("The clarinet is in B♭. It is loud.", "♬ I am singing in the rain. ♬ What a feeling.",
             "Point ☝ here. Then go.", "☉ is the Sun. ☾ is the Moon.", "The flux is ∯ B · dA. It is zero."):
    found[text] = english.segment(text)
    print(text, "→", found[text])
    for split in others.values():
        assert "".join("".join(split(text)).split()) == "".join(text.split())
clarinet, song, *rest = found
assert found[clarinet] == ["It is loud."] and found[song] == []
assert all(len(found[text]) == 1 for text in rest)

lost = [code for code in LANGUAGE_CODES if "".join(pysbd.Segmenter(language=code).segment(clarinet)) != clarinet]
print("languages that lose a sentence:", len(lost), "of", len(LANGUAGE_CODES))
assert len(lost) == len(LANGUAGE_CODES) == 23
characters = [chr(i) for i in range(0xA1, 0x3000) if "".join(english.segment(f"It has {chr(i)} here. Good.")) !=
              f"It has {chr(i)} here. Good."]
print("characters that lose text:", *characters)
assert set("♭♬☉☝∯") < set(characters) and len(characters) == 12
EOF
