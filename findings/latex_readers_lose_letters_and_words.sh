#!/usr/bin/env bash
# Text of LaTeX sources, as corpora of papers are made of, by pandoc and by pylatexenc's latex2text.
# Expected: the letters and words that LaTeX prints; the accent on a dotless i, as \'{\i} was long written, gives í.
# Happens: pandoc writes that as ı (U+0131) and a combining accent, which no normalisation makes í of, so "país" and
# "naïve" become words that no dictionary has; it leaves \textendash and \textemdash out. pylatexenc reads these, but
# leaves out what stands in \texttt, \mbox and \verb, and the signs \S and \P, and puts the words of \index, which LaTeX
# does not print there, into the sentence. Neither says so.
# Seen with pypandoc_binary 1.17 (pandoc 3.9), pylatexenc 2.11, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q pypandoc_binary==1.17 pylatexenc==2.11
venv/bin/python - <<'EOP'
import unicodedata

import pypandoc
from pylatexenc.latex2text import LatexNodes2Text

sources = {
    "accent": r"pa\'{\i}s na\"{\i}ve",
    "plain i": r"pa\'{i}s na\"ive",
    "dash": r"one\textendash{}two\textemdash{}three",
    "words": r"call \texttt{main} of \mbox{Ann} \verb|x|",
    "sign": r"see \S 5",
    "index": r"corpus\index{corpora} text",
}


def by_pandoc(source):
    text = pypandoc.convert_text(source, "plain", "latex", extra_args=["--wrap=none"])
    return unicodedata.normalize("NFC", text).strip()


def by_pylatexenc(source):
    return unicodedata.normalize("NFC", LatexNodes2Text().latex_to_text(source)).strip()


pandoc = {name: by_pandoc(source) for name, source in sources.items()}
pylatexenc = {name: by_pylatexenc(source) for name, source in sources.items()}
print(pypandoc.get_pandoc_version(), pandoc, pylatexenc, sep="\n")
assert pandoc["accent"] == "pa\u0131\u0301s na\u0131\u0308ve" and pandoc["plain i"] == "país naïve"
assert pandoc["dash"] == "onetwothree"
assert pandoc["words"] == "call main of Ann x" and pandoc["sign"] == "see §5" and pandoc["index"] == "corpus text"
assert pylatexenc["accent"] == pylatexenc["plain i"] == "país naïve" and pylatexenc["dash"] == "one–two—three"
assert pylatexenc["words"].split() == ["call", "of"] and pylatexenc["sign"] == "see 5"
assert pylatexenc["index"] == "corpuscorpora text"
EOP
