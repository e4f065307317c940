#!/usr/bin/env bash
# csvsort and csvjson on a table of texts, such as a glossary or a parallel corpus.
# Expected: texts stay texts; at most a column in which all cells are numbers is written anew.
# Happens: every command that infers types takes a cell "." for nothing, as it does "none", "na", "n/a" and "null" in
# any capitals: the sentence or the German word "Na" is gone. A column of nothing but the words yes, no, true, false, y,
# n, t and f becomes True and False. --no-inference (-I) keeps those words; the empty cells need --blanks as well.
# csvcut, csvgrep and csvstack infer nothing, so it depends on the command whether cells are lost.
# Seen with csvkit 2.2.0, agate 1.14.2, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q csvkit==2.2.0 agate==1.14.2
printf 'en,de\nHello,Hallo\nnone,Keine\n.,.\nwell,Na\n' >sentences.csv
printf 'en,de\nyes,ja\nno,nein\ntrue,wahr\n' >glossary.csv
venv/bin/csvsort sentences.csv | tee sorted.csv
venv/bin/csvjson glossary.csv | tee glossary.json; echo
[ "$(grep -c '^,Keine$\|^,$\|^well,$' sorted.csv)" = 3 ]
[ "$(cat glossary.json)" = '[{"en": true, "de": "ja"}, {"en": false, "de": "nein"}, {"en": true, "de": "wahr"}]' ]
venv/bin/csvsort -I glossary.csv | grep -q '^yes,ja$'
venv/bin/csvsort -I sentences.csv | grep -q '^,Keine$'
venv/bin/csvsort -I --blanks sentences.csv | grep -q '^none,Keine$'
venv/bin/csvcut -c en,de sentences.csv | cmp - sentences.csv
