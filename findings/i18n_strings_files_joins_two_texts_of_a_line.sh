#!/usr/bin/env bash
# i18n-strings-files (npm) on an ordinary .strings file of Apple's, which is an old-style property list: white space
# stands where it likes, and a key needs no quotes.
# Expected: the six texts; or a failure.
# Happens: two statements on one line become one text ("x\"; \"c\" = \"y"), a text on the line after its key gets the
# empty key and a quote of its own, a key without quotes is left out, and \U00e9 stays as it is written. Nothing is said;
# written again, the file has lost these texts.
# Seen with i18n-strings-files 2.0.0, Node 20.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit i18n-strings-files@2.0.0 >/dev/null
cat >a.strings <<'STRINGS'
"caf" = "caf\U00e9";
key.x = "plain key";
"two" =
  "lines";
"b" = "x"; "c" = "y";
"last" = "z";
STRINGS
cat >read.js <<'JS'
const found = require('i18n-strings-files').parse(require('fs').readFileSync('a.strings', 'utf8'));
console.log(JSON.stringify(found));
const seen = found.caf === 'caf\\U00e9' && found.b === 'x"; "c" = "y' && !('c' in found) && !('key.x' in found) &&
  !('two' in found) && '' in found && found.last === 'z';
process.exit(seen ? 0 : 1);
JS
node read.js
