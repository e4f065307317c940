#!/usr/bin/env bash
# srt.compose(srt.parse(text)) where a subtitle has no words, as tools for translation leave one that could not be
# translated, and where a subtitle has a blank line inside.
# Expected: the same subtitles; what srt.parse has read, srt.compose writes.
# Happens: the subtitle without words is left out and all later ones get other numbers, so that a file no longer fits its
# original subtitle by subtitle; the blank line inside is gone too. reindex=False keeps the one, strict=False the other.
# Seen with srt 3.5.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q srt==3.5.3
venv/bin/python - <<'EOP'
import srt

times = "00:00:0{0},000 --> 00:00:0{0},500"
texts = ["One", "", "Three\n\nstill three"]
text = "".join(f"{n}\n{times.format(n)}\n{words}\n\n" for n, words in enumerate(texts, start=1))
read = list(srt.parse(text))
written = list(srt.parse(srt.compose(read)))
print("read:", [(one.index, one.content) for one in read], "written:", [(one.index, one.content) for one in written])
assert [one.content for one in read] == texts
assert [(one.index, one.content) for one in written] == [(1, "One"), (2, "Three\nstill three")]
assert len(list(srt.parse(srt.compose(read, reindex=False)))) == 3
assert "Three\n\nstill" in srt.compose(read, strict=False)
EOP
