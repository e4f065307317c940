#!/usr/bin/env bash
# json2po on a locale file in which one value is no text: a number, true or false.
# Expected: a .po file of the texts, which leaves the number alone; or a failure.
# Happens: one such value ends the conversion: a warning ("expected string or bytes-like object, got 'int'"), exit
# status 0 and a .po file of 0 bytes, so all texts look as if they were gone. null is taken, and so is the same file
# as the template of po2json.
# Seen with translate-toolkit 3.20.4, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q translate-toolkit==3.20.4
echo '{"title": "Settings", "save": "Save", "hint": null}' >texts.json
for value in 5 1.5 true; do
  echo "{\"title\": \"Settings\", \"save\": \"Save\", \"retries\": $value}" >mixed.json
  venv/bin/json2po --progress none mixed.json mixed.po
  wc -c mixed.po
  [ -e mixed.po ] && [ ! -s mixed.po ]
done
venv/bin/json2po --progress none texts.json texts.po
grep -c 'msgid "S' texts.po
[ "$(grep -c 'msgid "S' texts.po)" = 2 ]
