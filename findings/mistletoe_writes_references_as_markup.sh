#!/usr/bin/env bash
# A page of Markdown that speaks of tags and stars by references (&lt;title&gt;, &#42;), with a table that has escaped
# bars, written again by mistletoe's MarkdownRenderer, and by translate-toolkit's md2po and po2md, which are built on it,
# with nothing translated. Both pages are then made HTML by markdown-it-py, and one by mdformat for comparison.
# Expected: the same page: a renderer that writes Markdown keeps references, or escapes what they stand for.
# Happens: mistletoe writes what the references stand for. "&lt;title&gt;" is a tag now, whose word nobody sees and which
# hides the text behind it in a browser; "&#42;new&#42;" is emphasis, "&#35; 1" a heading. The texts in the .po have the
# references decoded too. po2md also takes the backslash from the bars of a table: the row has four cells, of which the
# last two are not shown, so words are lost. mdformat changes nothing that is shown.
# Seen with mistletoe 1.6.0, translate-toolkit 3.20.4, mdformat 1.0.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q mistletoe==1.6.0 translate-toolkit==3.20.4 mdformat==1.0.0 \
    markdown-it-py==4.3.0
cat > page.md <<'EOM'
Put &lt;title&gt; into the &lt;head&gt;.

Only &#42;new&#42; files are read.

&#35; 1 is the first.

| Key | Meaning |
|---|---|
| `a \| b` | either \| or |
EOM
venv/bin/md2po --progress=none page.md page.po && venv/bin/po2md --progress=none -t page.md page.po toolkit.md
venv/bin/python - <<'EOP'
from pathlib import Path

import mdformat
import mistletoe
from markdown_it import MarkdownIt
from mistletoe.markdown_renderer import MarkdownRenderer

page = Path("page.md").read_text()
with MarkdownRenderer() as renderer:
    pages = {"mistletoe": renderer.render(mistletoe.Document(page)), "po2md": Path("toolkit.md").read_text()}
reader = MarkdownIt().enable("table")
shown = {name: reader.render(text) for name, text in pages.items()}
print(pages["po2md"], shown["po2md"], sep="\n")
for html in shown.values():
    assert "Put <title> into the <head>." in html and "<em>new</em>" in html and "<h1>1 is the first.</h1>" in html
assert r"either \| or" in pages["mistletoe"] and "either | or" in shown["mistletoe"]
assert "| `a | b` | either | or |" in pages["po2md"] and "either" not in shown["po2md"]
assert 'msgid "Put <title> into the <head>."' in Path("page.po").read_text()
text = page.partition("| Key")[0]
assert reader.render(mdformat.text(text)) == reader.render(text)
assert "either | or" in reader.render(page)
EOP
