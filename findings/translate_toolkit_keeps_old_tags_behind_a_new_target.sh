#!/usr/bin/env bash
# translate-toolkit: unit.target = "…" in an XLIFF file whose old target has inline elements (<g>, <x/>), as every CAT
# tool's files have.
# Expected: the new words replace the old target, or an error if the elements have no place in them.
# Happens: the words replace what stood before the first element; the element stays behind them with its old words, and
# the unit is marked as approved and translated: "Save now" with "alt <g>Datei</g>" becomes "Speichern<g>Datei</g>".
# Without an old target, the words alone are written and the source's elements are lost.
# Seen with translate-toolkit 3.20.4, lxml 6.1.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q translate-toolkit==3.20.4 lxml==6.1.3
venv/bin/python - <<'EOP'
from translate.storage import xliff

HEAD = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" datatype="html" '
HEAD += 'source-language="en" target-language="de"><body><trans-unit id="1"><source>Save <g id="1">now</g></source>'


def written(target):
    store = xliff.xlifffile.parsestring(f"{HEAD}{target}</trans-unit></body></file></xliff>".encode())
    store.units[0].target = "Jetzt speichern"
    text = bytes(store).decode()
    return text[text.index("<trans-unit") : text.index("</trans-unit>")]


old, new = written('<target>alt <g id="1">Datei</g></target>'), written("")
print(old, new, sep="\n")
assert '>Jetzt speichern<g id="1">Datei</g></target>' in old and 'approved="yes"' in old
assert ">Jetzt speichern</target>" in new
EOP
