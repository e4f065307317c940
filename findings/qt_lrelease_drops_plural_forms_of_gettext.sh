#!/usr/bin/env bash
# Qt's lrelease compiles a .po file whose header states its language and the rule of its plural forms.
# Expected: all three forms of a Polish text, since "Language: pl" and "Plural-Forms: nplurals=3; …" say so.
# Happens: one form is kept, for 1, 3 and 5 alike; standard error remarks that plural forms were removed, status 0. Qt
# reads neither header: only its own "X-Language: pl" tells it the language, and then all three are there.
# Seen with PySide6 6.12.0 (Qt 6.12), Python 3.11. lconvert of Qt 5.15 does the same to a .po that it writes again.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q PySide6-Essentials==6.12.0
cat > gettext.po <<'EOF'
msgid ""
msgstr ""
"Language: pl\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\n"

msgid "one file"
msgid_plural "%n files"
msgstr[0] "plik"
msgstr[1] "pliki"
msgstr[2] "plików"
EOF
sed 's/^"Language/"X-Language/' gettext.po > qt.po
for name in gettext qt; do venv/bin/pyside6-lrelease $name.po -qm $name.qm; done
venv/bin/python - <<'EOF'
from PySide6.QtCore import QTranslator

forms = {}
for name in ("gettext", "qt"):
    translator = QTranslator()
    assert translator.load(f"{name}.qm")
    forms[name] = [translator.translate("", "one file", None, n) for n in (1, 3, 5)]
    print(name, forms[name])
assert forms == {"gettext": ["plik", "plik", "plik"], "qt": ["plik", "pliki", "plików"]}
EOF
