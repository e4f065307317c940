#!/usr/bin/env bash
# pycaption converts SubRip, written by most programs with <i>…</i> for italics, to WebVTT, which has the same tag.
# Expected: <i>Hello</i> stays.
# Happens: SRTReader keeps tags as plain text and WebVTTWriter escapes it: viewers see "<i>Hello</i>" on the screen. A
# subtitle without words, which hides the one before it, is shown as "&nbsp;".
# Seen with pycaption 2.3.14, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q pycaption==2.3.14
venv/bin/python - <<'EOF'
import pycaption

srt = "1\n00:00:01,000 --> 00:00:02,000\n<i>Hello</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n\n\n"
srt += "3\n00:00:05,000 --> 00:00:06,000\nBye\n"
vtt = pycaption.WebVTTWriter().write(pycaption.SRTReader().read(srt))
print(vtt)
assert "&lt;i>Hello&lt;/i>" in vtt and "\n&nbsp;\n" in vtt
EOF
