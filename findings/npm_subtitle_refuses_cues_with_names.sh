#!/usr/bin/env bash
# The subtitle package of npm reads WebVTT, in which a cue may have a name (its identifier), a note may stand anywhere,
# and a file may begin with style sheets.
# Expected: the cues, whatever their names are.
# Happens: a name that is a number is read and lost; any other raises "expected timestamp", and no cue of the file is
# given. A name with digits first ("1a") raises, too. Notes are gone, and what is written has cues numbered anew.
# Seen with subtitle 4.2.2, Node 20.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm init -y >/dev/null && npm install --silent subtitle@4.2.2 >/dev/null
cat > read.mjs <<'EOF'
import assert from "node:assert";
import { parseSync, stringifySync } from "subtitle";

const file = name => `WEBVTT\n\nNOTE by Ann\n\n${name}\n00:01.000 --> 00:02.500 line:0\nWords.\n`;
const cues = parseSync(file("7"));
const again = stringifySync(cues, { format: "WebVTT" });
console.log(again);
assert.equal(again, "WEBVTT\n\n1\n00:00:01.000 --> 00:00:02.500 line:0\nWords.\n");
for (const name of ["intro", "1a", "scene 1"]) {
  assert.throws(() => parseSync(file(name)), error => {
    console.log(name, "-", error.message);
    return error.message.startsWith("expected timestamp at row");
  });
}
EOF
node read.mjs
