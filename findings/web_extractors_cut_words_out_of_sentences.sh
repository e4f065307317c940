#!/usr/bin/env bash
# The main text of a web page, as Resiliparse's extract_plain_text(main_content=True) and trafilatura.extract() give it
# for corpora. The sentences have ordinary inline elements: <b>, <em>, <time>, <q>.
# Expected: each sentence with all of its words, on one line, as extract_plain_text(html) alone gives it.
# Happens: Resiliparse leaves out every inline element whose text is three bytes of UTF-8, the last of them not ASCII:
# one letter of Chinese, Japanese, Korean, Thai or Hindi ("<b>不</b>可" becomes the opposite, "可"), French "né", "là"
# and "où", "€", "–". "not", "été" and two letters of Chinese stay. Both leave out <time>, so that dates vanish from the
# middle of sentences, and trafilatura ends a line behind <q>, within a sentence. favor_recall changes nothing.
# Seen with Resiliparse 2.0.1, trafilatura 2.3.1, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q -U pip
venv/bin/pip install -q resiliparse==2.0.1 trafilatura==2.3.1
venv/bin/python - <<'EOP'
import trafilatura
from resiliparse.extract.html2text import extract_plain_text

AROUND = "<p>This paragraph of the article is long enough for every program to count it as a part of the main text.</p>"
SENTENCES = {
    "fr": "Victor Hugo est <b>né</b> à Besançon, <em>là</em> <i>où</i> il a vécu ; le billet coûte 3 <b>€</b>.",
    "fr 2": "Cet <b>été</b> il fait chaud ; <b>né</b>e en mai, elle a fêté son anniversaire dehors.",
    "zh": "这里<b>不</b>可以停车，请把车停在<b>那里</b>的停车场。",
    "ko": "이것은 <b>꼭</b> 필요한 일이고 <b>매우</b> 중요합니다.",
    "en": 'The treaty was signed on <time datetime="1648-10-24">24 October 1648</time> in Münster, <b>not</b> Paris.',
    "en 2": "She said <q>no, thank you</q> and left the room before noon.",
}


def texts(sentence):
    body = f"<main><article><h1>News</h1>{AROUND}<p>{sentence}</p>{AROUND}</article></main>"
    html = f"<!DOCTYPE html><html><head><title>News</title></head><body>{body}</body></html>"
    recall = trafilatura.extract(html, favor_recall=True)
    found = extract_plain_text(html), extract_plain_text(html, main_content=True), trafilatura.extract(html), recall
    lines = [[line for line in text.splitlines() if line and line not in ("News", AROUND[3:-4])] for text in found]
    return [" | ".join(own) for own in lines]


for name, sentence in SENTENCES.items():
    everything, main, extracted, recall = texts(sentence)
    print(f"{name}\n  {everything}\n  {main}\n  {extracted}")
    assert recall == extracted
    if name == "fr":
        assert main == "Victor Hugo est à Besançon, il a vécu ; le billet coûte 3 ." and "né à Besançon" in extracted
    elif name == "fr 2":
        assert "été" in main and "chaud ; e en mai" in main
    elif name == "zh":
        assert everything == extracted and main == everything.replace("不", "")
    elif name == "ko":
        assert "꼭" in everything and "꼭" not in main and "매우" in main
    elif name == "en":
        assert "1648" in everything and main == extracted == "The treaty was signed on in Münster, not Paris."
    else:
        assert main == everything and extracted == "She said no, thank you | and left the room before noon."
EOP
