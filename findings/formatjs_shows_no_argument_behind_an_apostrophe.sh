#!/usr/bin/env bash
# The French and Italian message "l'{name}" (an elided article before an argument), formatted by FormatJS
# (intl-messageformat, react-intl) and by @messageformat/core.
# Expected: "l'" and the name, as for "It's {name}"; at least the same with both, since both say ICU MessageFormat.
# Happens: in FormatJS an apostrophe directly before a brace begins quoted text: users read "l{name}". With
# @messageformat/core they read "l'Anna". "l''{name}" gives "l'Anna" with both. English texts rarely have an apostrophe
# there, so it appears in translations only.
# Seen with intl-messageformat 12.1.5, @messageformat/core 3.4.1, Node 20.20.2.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit intl-messageformat@12.1.5 @messageformat/core@3.4.1 > /dev/null
cat > show.cjs <<'EOJ'
const { IntlMessageFormat } = require('intl-messageformat');
const MessageFormat = require('@messageformat/core');

const texts = ["It's {name}", "l'{name}", "l''{name}"];
const found = [
  texts.map((text) => new IntlMessageFormat(text, 'fr').format({ name: 'Anna' })),
  texts.map((text) => new MessageFormat('fr').compile(text)({ name: 'Anna' })),
];
console.log(found);
const expected = [["It's Anna", 'l{name}', "l'Anna"], ["It's Anna", "l'Anna", "l'Anna"]];
process.exit(JSON.stringify(found) === JSON.stringify(expected) ? 0 : 1);
EOJ
node show.cjs
