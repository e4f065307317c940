#!/usr/bin/env bash
# A .docx with a no-break hyphen (Ctrl+Shift+hyphen in Word), a line break in a paragraph (Shift+Enter) and a sentence
# that was moved with "Track changes" on, read by docx2python, docx2txt (the reader behind LangChain's loader) and
# mammoth.
# Expected: a hyphen, a line break or a blank, and the moved sentence once, at its new place.
# Happens: docx2python and docx2txt leave the hyphen out: the years 2019‑2020 are 20192020, and they have the moved
# sentence twice. mammoth's extract_raw_text leaves the line break out, so two words are one; its HTML has it, so
# markitdown does, too. Nothing is said.
# Seen with docx2python 3.7.1, docx2txt 0.9, mammoth 1.13.0, python-docx 1.2.0 (as writer), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv
venv/bin/pip install -q docx2python==3.7.1 docx2txt==0.9 mammoth==1.13.0 python-docx==1.2.0
venv/bin/python - <<'EOP'
import docx
import docx2txt
import mammoth
from docx2python import docx2python
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls


def run(inner):
    return f"<w:r>{inner}</w:r>"


def text(words):
    return f'<w:t xml:space="preserve">{words}</w:t>'


hyphen = run(text("2019")) + run("<w:noBreakHyphen/>") + run(text("2020"))
line_break = run(text("one")) + run("<w:br/>") + run(text("two"))
who = 'w:id="{}" w:author="Ann" w:date="2026-01-01T00:00:00Z"'
moved = f"<w:moveTo {who.format(1)}>{run(text('Moved.'))}</w:moveTo>"
moved += f"{run(text(' Stays. '))}<w:moveFrom {who.format(2)}>{run(text('Moved.'))}</w:moveFrom>"
document = docx.Document()
for place, content in enumerate((hyphen, line_break, moved)):
    document.element.body.insert(place, parse_xml(f"<w:p {nsdecls('w')}>{content}</w:p>"))
document.save("a.docx")
with open("a.docx", "rb") as file:
    raw, page = mammoth.extract_raw_text(file).value, mammoth.convert_to_html(file).value
with docx2python("a.docx") as content:
    found = {"docx2python": content.text, "docx2txt": docx2txt.process("a.docx"), "mammoth": raw}
found = {name: [line.strip() for line in content.split("\n\n") if line.strip()] for name, content in found.items()}
print(found, page)
assert found["docx2python"] == found["docx2txt"] == ["20192020", "one\ntwo", "Moved. Stays. Moved."]
assert found["mammoth"] == ["2019\N{NON-BREAKING HYPHEN}2020", "onetwo", "Moved. Stays."]
assert "one<br />two" in page
EOP
