#!/usr/bin/env bash
# Papa Parse reads a short file of tab-separated sentence pairs, such as a glossary, and guesses the delimiter.
# Expected: the tab, whether or not the last line ends in a line feed, as lines of text files do.
# Happens: with the final line feed the guess fails and the comma is taken: every pair is one column, cut at the commas
# of its sentences. Without it, with skipEmptyLines, or with fifty lines more, the tab is found.
# Seen with papaparse 5.5.3, Node.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm init -y >/dev/null && npm install --silent papaparse@5.5.3 >/dev/null
cat > read.mjs <<'EOF'
import assert from "node:assert";
import Papa from "papaparse";

const text = "en\tde\nOne.\tEins.\nTwo, three.\tZwei, drei.\nFour.\tVier.";
const cases = [
  ["no line feed at the end", text, {}, "\t"],
  ["a line feed at the end", text + "\n", {}, ","],
  ["the same, skipEmptyLines", text + "\n", { skipEmptyLines: true }, "\t"],
  ["the same, fifty lines more", text + "\n" + "One.\tEins.\n".repeat(50), {}, "\t"],
];
for (const [name, input, options, delimiter] of cases) {
  const { data, errors, meta } = Papa.parse(input, options);
  console.log(`${name}: ${JSON.stringify(meta.delimiter)}, third line ${JSON.stringify(data[2])}, errors ${errors.length}`);
  assert.equal(meta.delimiter, delimiter);
}
EOF
node read.mjs
