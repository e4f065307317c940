#!/usr/bin/env bash
# html2text turns a page into Markdown, as people do for corpora and for language models.
# Expected: Markdown whose words are those of the page, as markdownify's are.
# Happens: behind each emphasised part that a letter or a sign follows stands a blank: "un<em>believ</em>able" becomes two
# words, <b>B</b>LEU "B LEU", 日<b>本</b>語 has a blank in it, and so do "Note :" and “ so ”. A text that spells a tag
# (&lt;b&gt;) or a reference (&amp;lt;) becomes one, in both programs: a reader of Markdown then shows "a c". html2text's
# escape_snob, which escapes "all special characters", changes neither; without emphasis (ignore_emphasis) no blank is
# written, and markdownify's escape_misc escapes the tag.
# Seen with html2text 2025.4.15 and markdownify 1.2.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q html2text==2025.4.15 markdownify==1.2.3
venv/bin/python - <<'EOP'
from html2text import HTML2Text
from markdownify import markdownify

EXPECTED = {
    "un<em>believ</em>able": "un _believ_ able",
    "<b>B</b>LEU": "**B** LEU",
    "日<b>本</b>語": "日**本** 語",
    "<b>Note</b>: all": "**Note** : all",
    "“<em>so</em>”": "“ _so_ ”",
    "a &lt;b&gt; c": "a <b> c",
    "&amp;lt;": "&lt;",
}


def written(html, **options):
    reader = HTML2Text(bodywidth=0)
    for name, value in options.items():
        setattr(reader, name, value)
    return reader.handle(f"<p>{html}</p>").strip()


for html, expected in EXPECTED.items():
    found = written(html)
    print(f"{html:24} {found:20} {markdownify(html)}")
    assert found == written(html, escape_snob=True) == expected
    if "&" in html:
        assert markdownify(html) == expected and r"\<b\>" in markdownify("&lt;b&gt;", escape_misc=True)
    else:
        words = markdownify(html).replace("*", "")
        assert words == written(html, ignore_emphasis=True) != expected.replace("*", "").replace("_", "")
EOP
