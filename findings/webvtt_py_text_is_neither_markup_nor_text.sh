#!/usr/bin/env bash
# Caption.text of webvtt-py, which its documentation calls the text without tags.
# Expected: the words that a viewer sees.
# Happens: tags are gone but character references stay ("Tom &amp; Jerry", "&lt;b&gt;"), so it is neither text nor markup:
# a model is given "&amp;", and to unescape it without escaping it again makes a tag of "&lt;b&gt;". The reading of a word
# in <ruby> stands behind the word, without a space: 漢字かんじ.
# Seen with webvtt-py 0.6.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q webvtt-py==0.6.0
venv/bin/python - <<'EOP'
import webvtt

lines = "<v Ann>Tom &amp; Jerry: <i>&lt;b&gt;</i>", "<ruby>漢字<rt>かんじ</rt></ruby>です"
text = "WEBVTT\n\n" + "".join(f"00:0{n}.000 --> 00:0{n}.500\n{line}\n\n" for n, line in enumerate(lines))
found = [caption.text for caption in webvtt.from_string(text)]
print(found)
assert found == ["Tom &amp; Jerry: &lt;b&gt;", "漢字かんじです"]
EOP
