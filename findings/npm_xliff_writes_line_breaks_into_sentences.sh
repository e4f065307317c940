#!/usr/bin/env bash
# The xliff package of npm: a file read with xliff12ToJs and written with jsToXliff12, unchanged.
# Expected: the same texts and the same states.
# Happens: wherever a segment has an inline element (<g>, <x/>, <ph>), the writer puts a line break and ten blanks into
# the sentence before it, and another before the end, under xml:space="preserve", too: "Press <g>Save</g>." comes back as
# four lines. The state of a target (final) and who wrote a note are gone, a segment of one blank is empty, and the
# file's datatype is plaintext.
# Seen with xliff 6.4.0, Node 20.20.2.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit xliff@6.4.0 > /dev/null
cat > show.cjs <<'EOJ'
const { jsToXliff12, xliff12ToJs } = require('xliff');

const text = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" datatype="html" '
  + 'source-language="en" target-language="de"><body><trans-unit id="1" xml:space="preserve">'
  + '<source>Press <g id="1">Save</g>.</source><target state="final">Hier <g id="1">Sichern</g>.</target>'
  + '<note from="Ann">a button</note></trans-unit></body></file></xliff>';
(async () => {
  const written = await jsToXliff12(await xliff12ToJs(text));
  console.log(written);
  const source = written.match(/<source>([^]*)<\/source>/)[1];
  const changed = /^Press \n +<g id="1">Save<\/g>\.\n +$/.test(source) && !/final|Ann|html/.test(written);
  process.exit(changed && written.includes('xml:space="preserve"') ? 0 : 1);
})();
EOJ
node show.cjs
