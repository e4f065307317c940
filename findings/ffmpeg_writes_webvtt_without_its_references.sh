#!/usr/bin/env bash
# ffmpeg converts subtitles: WebVTT to WebVTT (to cut or shift them, or through an .mp4) and to TTML, SubRip to WebVTT.
# Expected: the same words; "&nbsp;", as stands before French question marks, stays or is a no-break space, and "&", "<"
# and ">" are references in WebVTT, as its specification asks.
# Happens: "&nbsp;" comes out as the letters "\h", "{" as "\{{}", and every other backslash has an invisible word joiner
# behind it: viewers read "Ça va\h?". "&lt;" is written as "<", so that a player takes what follows for a tag and shows
# "5 " of "5 &lt; 6", and "I " of SubRip's "I <3 you". The reading of a ruby is glued to its word. In SubRip "\N" and
# "\n" are line breaks, so that "C:\news" loses a letter. These are the escapes of SubStation Alpha, which all text
# passes through; they are undone nowhere, and nothing is said.
# Seen with ffmpeg 9.0.2 (imageio-ffmpeg 0.8.1), Python 3.11; the specification's parser of npm, webvtt-parser 2.2.0.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q imageio-ffmpeg==0.8.1
npm install --silent --no-fund --no-audit webvtt-parser@2.2.0 > /dev/null
ffmpeg=$(venv/bin/python -c "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())")
printf 'WEBVTT\n\n00:01.000 --> 00:02.000\nÇa va&nbsp;? {rit} C:\\dos\n\n00:03.000 --> 00:04.000\n5 &lt; 6\n\n' > a.vtt
printf '00:05.000 --> 00:06.000\n<ruby>漢字<rt>かんじ</rt></ruby>\n' >> a.vtt
printf '1\n00:00:01,000 --> 00:00:02,000\nI <3 you\n\n2\n00:00:03,000 --> 00:00:04,000\nC:\\news\n' > b.srt
for step in a.vtt:a.mp4 a.mp4:c.vtt a.vtt:c.ttml b.srt:d.vtt; do
  codec=(); [[ $step != *mp4 ]] || codec=(-c:s mov_text)
  "$ffmpeg" -v error -i "${step%:*}" "${codec[@]}" "${step#*:}"
done
cat c.vtt d.vtt; grep 'span region' c.ttml
cat > show.mjs <<'EOJ'
import { readFileSync } from 'fs';
import parser from 'webvtt-parser';

const cues = (file) => new parser.WebVTTParser({}).parse(readFileSync(file, 'utf8'), 'subtitles').cues;
const shown = ['c.vtt', 'd.vtt'].flatMap(cues).map((cue) => cue.tree.children.map((child) => child.value).join('|'));
console.log(shown);
const expected = ['Ça va\\h? \\{{}rit} C:\\\u2060dos', '5 ', '漢字かんじ', 'I ', 'C:\news'];
process.exit(JSON.stringify(shown) === JSON.stringify(expected) ? 0 : 1);
EOJ
node show.mjs
grep -q 'Ça va\\h?' c.ttml
