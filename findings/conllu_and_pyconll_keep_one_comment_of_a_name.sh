#!/usr/bin/env bash
# CoNLL-U files read and written with conllu and with pyconll, where two comments of a sentence have the same name, as
# annotators' notes have, and where a feature has two values in two entries.
# Expected: the same comments, in order; comments are free lines in the format.
# Happens: both keep comments in a dictionary, so only the last one of a name remains, in silence. A repeated feature
# keeps its last value, too; pyconll also sorts MISC, so a treebank that it has written differs all over.
# Seen with conllu 6.0.0, pyconll 3.3.1, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q conllu==6.0.0 pyconll==3.3.1
venv/bin/python - <<'EOP'
import conllu
import pyconll

text = (
    "# sent_id = 1\n# text = Ja\n# note = checked by A\n# note = to be split\n"
    "1\tJa\tja\tINTJ\t_\tA=1|A=2\t0\troot\t_\tZ=1|Gloss=yes\n\n"
)
for name, written in (
    ("conllu", conllu.parse(text)[0].serialize()),
    ("pyconll", pyconll.load_from_string(text).conll()),
):
    print(f"{name}:\n{written}")
    assert "to be split" in written and "checked by A" not in written and "A=1" not in written
    assert ("Gloss=yes|Z=1" in written) == (name == "pyconll")
EOP
