#!/usr/bin/env bash
# pycaption reads TTML (DFXP) whose paragraphs are written over several lines, as a formatter of XML leaves them, or
# whose times have seven digits behind the point, as some cloud services write them, and writes SubRip.
# Expected: white space in a paragraph counts as a blank, as in HTML and as TTML says (xml:space is "default"); a
# fraction is a fraction, however many digits it has.
# Happens: of a run of text, only its first line is read: "Nobody has / read this" becomes "Nobody has". A fraction is
# read as a count of milliseconds: 1.2500000 s becomes 41 min 41 s, so cues appear long after their end. Nothing is
# said. ttconv reads both as TTML says.
# Seen with pycaption 2.3.14, ttconv 1.2.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q pycaption==2.3.14 ttconv==1.2.3
venv/bin/python -W ignore - <<'EOP'
import xml.etree.ElementTree as ET

import ttconv.imsc.reader
import ttconv.srt.writer
from pycaption import DFXPReader, SRTWriter

TTML = """<?xml version="1.0" encoding="UTF-8"?>
<tt xmlns="http://www.w3.org/ns/ttml" xml:lang="en"><body><div>
<p begin="00:00:01.{fraction}" end="00:00:03.000">Nobody has
  read this <span>line to
  its end</span>.</p>
</div></body></tt>"""


def by_pycaption(text):
    return SRTWriter().write(DFXPReader().read(text)).strip().split("\n", 2)[1:]


def by_ttconv(text):
    model = ttconv.imsc.reader.to_model(ET.ElementTree(ET.fromstring(text.encode())))
    return ttconv.srt.writer.from_model(model).strip().split("\n", 2)[1:]


short, long = TTML.format(fraction="250"), TTML.format(fraction="2500000")
found = by_pycaption(short), by_pycaption(long), by_ttconv(short), by_ttconv(long)
print(*found, sep="\n")
times = "00:00:01,250 --> 00:00:03,000"
assert found[0] == [times, "Nobody has line to ."], found[0]
assert found[1][0] == "00:41:41,000 --> 00:00:03,000"
assert found[2] == found[3] == [times, "Nobody has read this line to its end."]
EOP
