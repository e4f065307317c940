#!/usr/bin/env bash
# po2csv and csv2po, one after the other, with the table untouched in between, as for translators who work in a sheet.
# Expected: the translations of the first file; what is escaped for a spreadsheet on the way there is read back.
# Happens: a text that begins with -, + or = gets an apostrophe in front in the table, and csv2po keeps it: a line of
# dialogue "- Hallo" comes back as "'- Hallo". A backslash comes back doubled: "\d" as two backslashes and d. The exit
# status is 0, and nothing is said of the changed texts.
# Seen with translate-toolkit 3.20.4, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q translate-toolkit==3.20.4
cat >de.po <<'EOF'
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

msgid "- Hello"
msgstr "- Hallo"

msgid "+49 is the prefix"
msgstr "+49 ist die Vorwahl"

msgid "\\d is a digit"
msgstr "\\d ist eine Ziffer"

msgid "Hello"
msgstr "Hallo"
EOF
venv/bin/po2csv --progress none -i de.po -o de.csv
venv/bin/csv2po --progress none -i de.csv -t de.po -o back.po
grep '^msgstr "[^"]' back.po | tee texts
[ "$(cat texts)" = "$(printf '%s\n' "msgstr \"'- Hallo\"" "msgstr \"'+49 ist die Vorwahl\"" \
  'msgstr "\\\\d ist eine Ziffer"' 'msgstr "Hallo"')" ]
