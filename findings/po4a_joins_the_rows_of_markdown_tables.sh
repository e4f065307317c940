#!/usr/bin/env bash
# po4a translates Markdown ("-o markdown") with a table, link references and a paragraph, which alone is translated.
# Expected: the file as it was, with the paragraph in German.
# Happens: what po4a takes for a paragraph is filled anew, to 76 characters a line. The rows of a table become one line,
# so there is no table (only blanks that align its cells save it). References are joined likewise, so the links to them are gone. A dash of the translation gets to
# the beginning of a line and makes a list of what follows. Nothing is said, and what is not translated changes, too.
# With "-o neverwrap" all of it stays.
# Seen with po4a 0.69 (Debian 12: apt-get install po4a), markdown-it-py 4.3.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q markdown-it-py==4.3.0
cat >en.md <<'MD'
Prices went up.

| en | de |
|----|----|
| one | eins |

See [one][a] and [two][b].

[a]: http://example.org/a
[b]: http://example.org/b
MD
printf '%s\n' '[po4a_langs] de' '[po4a_paths] po/en.pot $lang:po/$lang.po' '[type: text] en.md $lang:$lang.md' >po4a.cfg
cat >fill.py <<'EOP'
import re

text = "Der Preis für ein Kilo vom besten Mehl stieg seit dem vorigen Mai wieder an - und zwar um ein Drittel."
po = open("po/de.po", encoding="utf-8").read()
po = re.sub(r'(msgid "Prices went up\.(\\n)?"\nmsgstr )""', lambda m: f'{m[1]}"{text}{m[2] or ""}"', po)
open("po/de.po", "w", encoding="utf-8").write(po)
EOP
cat >show.py <<'EOP'
import sys

from markdown_it import MarkdownIt

page = MarkdownIt().enable("table").render(sys.stdin.read())
print(*(f"{name}: {page.count(name)}" for name in ("<table", "<a ", "<li>")))
EOP
translated() {  # the options of po4a
  rm -rf po && mkdir po
  po4a -q -f -k 0 "$@" po4a.cfg
  python3 fill.py
  po4a -q -f -k 0 "$@" po4a.cfg
  cat de.md
}
translated -o markdown | tee filled.md
translated -o markdown -o neverwrap >kept.md
filled=$(venv/bin/python show.py <filled.md) kept=$(venv/bin/python show.py <kept.md)
echo "$filled / with neverwrap $kept"
[ "$filled" = "<table: 0 <a : 0 <li>: 1" ] && [ "$kept" = "<table: 1 <a : 2 <li>: 0" ]
