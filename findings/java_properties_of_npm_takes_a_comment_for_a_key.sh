#!/usr/bin/env bash
# npm's java-properties on an ordinary .properties file, as Java writes and reads it.
# Expected: the keys and texts that java.util.Properties reads.
# Happens: a comment that begins with "!" becomes a key; a key with an escaped blank or tab ("key\ with\ blank") keeps
# its backslashes, so it is not found by its name; blanks at the end of a text, which Java keeps, are cut off.
# dot-properties reads all of it as Java does.
# Seen with java-properties 1.0.2, dot-properties 1.1.2, Node 20.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit java-properties@1.0.2 dot-properties@1.1.2 >/dev/null
printf '%s\n' '! a note' 'key\ with\ blank = x' 'total = Total:  ' >texts.properties
cat >read.js <<'JS'
const fs = require('fs');
const own = require('java-properties').of('texts.properties').objs;
const right = require('dot-properties').parse(fs.readFileSync('texts.properties', 'utf8'));
console.log(JSON.stringify(own), JSON.stringify(right));
const expected = { 'key with blank': 'x', total: 'Total:  ' };
const seen = { '! a note': '', 'key\\ with\\ blank': 'x', total: 'Total:' };
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
process.exit(same(own, seen) && same(right, expected) ? 0 : 1);
JS
node read.js
