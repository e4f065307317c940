#!/usr/bin/env bash
# @plussub/srt-vtt-parser reads WebVTT whose times have no hours, as the format allows below an hour, and whose cues have
# settings, as YouTube's and most encoders' have.
# Expected: the end of "00:01.000 --> 00:02.500 line:0" is 2.5 seconds, as without settings or with "00:00:02.500 line:0".
# Happens: it is two minutes, as if its seconds were minutes, and NaN, which JSON writes as null, if the cue has two
# settings. Nothing is said, and all subtitles overlap or never end. The begin is right.
# Seen with @plussub/srt-vtt-parser 2.0.5, Node 20.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm init -y >/dev/null && npm install --silent @plussub/srt-vtt-parser@2.0.5 >/dev/null
cat > read.mjs <<'EOF'
import assert from "node:assert/strict";
import { parse } from "@plussub/srt-vtt-parser";

const EXPECTED = {
  "00:01.000 --> 00:02.500": [1000, 2500],
  "00:00:01.000 --> 00:00:02.500 line:0": [1000, 2500],
  "00:01.000 --> 00:02.500 line:0": [1000, 120000],
  "00:59.000 --> 01:04.750 align:start position:0%": [59000, NaN],
};
for (const [times, expected] of Object.entries(EXPECTED)) {
  const { entries } = parse(`WEBVTT\n\n${times}\nWords.\n`);
  console.log(times.padEnd(50), entries[0].from, entries[0].to);
  assert.deepEqual([entries[0].from, entries[0].to], expected);
}
EOF
node read.mjs
