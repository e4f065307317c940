#!/usr/bin/env bash
# html2po extracts the texts of an ordinary page, of which some stand beside blocks and not in one.
# Expected: all that a reader sees, and nothing that the page says is not to be translated.
# Happens: text directly in <body> before or between paragraphs is left out, so po2html leaves it in the source language;
# in a <div> the same text is taken. A field's placeholder is left out and its value, which may be data, is taken, and so
# is a paragraph with translate="no". A page that leaves out end tags, as HTML allows for <p> and <li>, gives no file at
# all; the exit status is 0 there, too.
# Seen with translate-toolkit 3.20.4, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q translate-toolkit==3.20.4
cat >page.html <<'HTML'
<!DOCTYPE html>
<html><head><title>Title</title></head><body>Before all
<p>Paragraph</p>
Between them
<div>In a div</div>
<p translate="no">Brand</p>
<form><input placeholder="Your name" value="a7"></form>
</body></html>
HTML
echo '<!DOCTYPE html><html><head><title>Title</title></head><body><p>One<p>Two</body></html>' >short.html
venv/bin/html2po --progress none page.html page.po
venv/bin/html2po --progress none short.html short.po
texts=$(sed -n 's/^msgid "\(..*\)"$/\1/p' page.po | paste -sd,)
echo "$texts"
[ "$texts" = "Title,Paragraph,In a div,Brand,a7" ]
[ ! -s short.po ]
