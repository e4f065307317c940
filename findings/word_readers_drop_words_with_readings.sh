#!/usr/bin/env bash
# A .docx with a Japanese word that has its reading above it (Word's phonetic guide, w:ruby), read with python-docx,
# mammoth and docx2txt.
# Expected: the word, with or without its reading, in brackets perhaps.
# Happens: python-docx and mammoth leave out word and reading, so a children's book loses its nouns (mammoth says in its
# messages that it ignored w:ruby, python-docx says nothing); docx2txt has both, the reading first and glued to the word.
# The first two also leave out w:dir, in which Word keeps text of the other direction, and simple fields.
# Seen with python-docx 1.2.0, mammoth 1.13.0, docx2txt 0.9, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q python-docx==1.2.0 mammoth==1.13.0 docx2txt==0.9
venv/bin/python - <<'EOP'
import docx
import docx2txt
import mammoth
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

document = docx.Document()


def run(inner):
    return f"<w:r>{inner}</w:r>"


def text(words):
    return f'<w:t xml:space="preserve">{words}</w:t>'


ruby = f"<w:ruby><w:rubyPr/><w:rt>{run(text('かんじ'))}</w:rt><w:rubyBase>{run(text('漢字'))}</w:rubyBase></w:ruby>"
field = f'<w:fldSimple w:instr="TITLE">{run(text("title"))}</w:fldSimple>'
direction = f'<w:dir w:val="rtl">{run(text("שלום"))}</w:dir>'
content = run(text("read ")) + run(ruby) + run(text(" well ")) + field + direction
document.element.body.insert(0, parse_xml(f"<w:p {nsdecls('w')}>{content}</w:p>"))
document.save("a.docx")
found = {"python-docx": docx.Document("a.docx").paragraphs[0].text, "docx2txt": docx2txt.process("a.docx").strip()}
with open("a.docx", "rb") as file:
    result = mammoth.extract_raw_text(file)
found["mammoth"] = result.value.strip()
print(found, [message.message for message in result.messages])
assert found["python-docx"].rstrip() == "read  well" == found["mammoth"].rstrip()
assert found["docx2txt"] == "read かんじ漢字 well titleשלום"
EOP
