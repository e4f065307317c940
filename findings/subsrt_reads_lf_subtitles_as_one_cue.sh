#!/usr/bin/env bash
# subsrt reads SubRip and WebVTT files whose lines end in LF, as most programs on Linux and macOS write them.
# Expected: a caption for each cue, as for the same file with CRLF.
# Happens: one caption. Its text holds the numbers and times of all later cues; for WebVTT there is none at all, the
# whole file is a "meta" entry. Converted to another format, the file has one cue, with the others as its words.
# Seen with subsrt 1.1.1, Node.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm init -y >/dev/null && npm install --silent subsrt@1.1.1 >/dev/null
cat > read.mjs <<'EOF'
import assert from "node:assert";
import subsrt from "subsrt";

const srt = ["1", "00:00:01,000 --> 00:00:02,500", "One.", "", "2", "00:00:03,000 --> 00:00:04,000", "Two.", ""];
const vtt = ["WEBVTT", "", "00:01.000 --> 00:02.500", "One.", "", "00:03.000 --> 00:04.000", "Two.", ""];
const cues = {};
for (const [format, lines] of Object.entries({ srt, vtt })) {
  for (const [name, end] of [["LF", "\n"], ["CRLF", "\r\n"]]) {
    const found = subsrt.parse(lines.join(end), { format }).filter(entry => entry.type === "caption");
    cues[`${format} ${name}`] = found.length;
    console.log(format, name, found.length, "cues", JSON.stringify(found[0]?.text));
  }
}
assert.deepEqual(cues, { "srt LF": 1, "srt CRLF": 2, "vtt LF": 0, "vtt CRLF": 2 });
EOF
node read.mjs
