#!/usr/bin/env bash
# gettext-parser (npm): a .po file with a fuzzy entry, and with two entries of one msgid, of which one has the empty
# context (msgctxt ""), compiled to .mo and written as .po again.
# Expected: as with GNU gettext: what is fuzzy is not compiled, since nobody has confirmed it; the two entries stay two.
# Happens: fuzzy translations, such as msgmerge's guesses from similar texts, are in the .mo and so on the screen. The
# entry with the empty context and the one without share a place: the later one replaces the other, in the .po, too.
# Seen with gettext-parser 10.0.0, Node 20.20.2; msgfmt of GNU gettext 0.21 for comparison, if it is there.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit gettext-parser@10.0.0 > /dev/null
cat > a.po <<'EOP'
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

#, fuzzy
msgid "Delete all"
msgstr "Alle behalten"

msgctxt ""
msgid "Open"
msgstr "Öffnen"

msgid "Open"
msgstr "Offen"
EOP
cat > show.mjs <<'EOJ'
import { readFileSync } from 'node:fs';
import { po, mo } from 'gettext-parser';

const read = po.parse(readFileSync('a.po'));
const compiled = mo.parse(mo.compile(read)).translations[''];
const written = po.compile(read).toString();
console.log(Object.values(compiled).map(({ msgid, msgstr }) => [msgid, msgstr[0]]), written);
process.exit(compiled['Delete all'].msgstr[0] === 'Alle behalten' && !written.includes('Öffnen') ? 0 : 1);
EOJ
node show.mjs
if command -v msgfmt > /dev/null; then
    msgfmt -o a.mo a.po && msgunfmt a.mo
    if msgunfmt a.mo | grep -q behalten || ! msgunfmt a.mo | grep -q Öffnen; then exit 1; fi
fi
