#!/usr/bin/env bash
# A gettext catalogue with a text in two contexts and an obsolete entry goes to XLIFF and back (po2xliff, xliff2po), and
# to CSV and back (po2csv, csv2po), as when a translator works in another format.
# Expected: the catalogue that was there: the contexts are part of the keys that a program looks up.
# Happens: XLIFF and CSV are written without the names of contexts. On the way back both entries have the empty context,
# which is not the same as none, and only the first is kept: the program finds neither translation. The obsolete entry
# comes back alive. The exit status is 0; a warning speaks of a duplicate. csv2po -t with the old catalogue finds them.
# Seen with translate-toolkit 3.20.4, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q translate-toolkit==3.20.4
cat >de.po <<'PO'
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: de\n"

msgctxt "verb"
msgid "Open"
msgstr "Öffnen"

msgctxt "state"
msgid "Open"
msgstr "Geöffnet"

#~ msgid "Gone"
#~ msgstr "Weg"
PO
venv/bin/po2xliff --progress none de.po de.xlf
venv/bin/xliff2po --progress none de.xlf xliff.po
venv/bin/po2csv --progress none de.po de.csv
venv/bin/csv2po --progress none de.csv csv.po
for name in xliff csv; do
  sed -n '/^msgctxt/,$p' $name.po | tee $name.txt
  [ "$(cat $name.txt)" = 'msgctxt ""
msgid "Open"
msgstr "Öffnen"

msgid "Gone"
msgstr "Weg"' ]
done
