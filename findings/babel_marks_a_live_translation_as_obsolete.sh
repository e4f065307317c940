#!/usr/bin/env bash
# babel.messages.pofile reads and writes a .po file as `msgmerge --previous` leaves it.
# Expected: the same entries; at most other line breaks.
# Happens: a live entry that stands before an obsolete one with a previous msgid ("#~| msgid …") is written as obsolete
# itself ("#~ msgid …"), so the program loses that translation; a line on standard error speaks of a misformatted
# keyword. Besides, "#| msgid" of fuzzy entries becomes a translator's comment "# | msgid", headers other than the
# usual ones are dropped, and a text such as "100% sure" is marked python-format, since "% s" is read as a directive.
# Seen with Babel 2.19.0, Python 3.11; GNU gettext's msgcat keeps all of it.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q Babel==2.19.0
venv/bin/python - <<'EOF'
import io
from babel.messages import pofile

po = r'''msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"X-Poedit-Basepath: ../src\n"

#, fuzzy
#| msgid "Save"
msgid "Save as"
msgstr "Sichern"

msgid "100% sure"
msgstr "100 % sicher"

msgid "alive"
msgstr "lebendig"

#~| msgid "older"
#~ msgid "old"
#~ msgstr "alt"
'''
written = io.BytesIO()
pofile.write_po(written, pofile.read_po(io.BytesIO(po.encode())))
written = written.getvalue().decode()
print(written)
assert '#~ msgid "alive"\n#~ msgstr "lebendig"' in written
assert '# | msgid "Save"' in written and "X-Poedit-Basepath" not in written
assert '#, python-format\nmsgid "100% sure"' in written
EOF
