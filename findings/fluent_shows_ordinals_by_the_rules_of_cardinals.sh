#!/usr/bin/env bash
# A message in Fluent with the ordinal selector of Fluent's own guide, NUMBER($place, type: "ordinal"), formatted by
# Fluent's libraries for JavaScript and Python.
# Expected: 1st, 2nd, 3rd, 4th, 21st.
# Happens: translations cannot set "type". The JavaScript library drops it without an error and selects by the cardinal
# rules: 1st, 2th, 3th, 4th, 21th. The Python library notes an error and takes the default for every number: 1th. So in
# languages in which each form of an ordinal differs (Italian, Swedish, Welsh), all but one are never shown. A program
# can pass FluentNumber(place, {type: "ordinal"}) in JavaScript, which the selector keeps.
# Seen with @fluent/bundle 0.19.1, fluent.runtime 0.4.0, Node 20, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit @fluent/bundle@0.19.1 >/dev/null
python3 -m venv venv && venv/bin/pip install -q fluent.runtime==0.4.0
cat >texts.ftl <<'FTL'
rank = { NUMBER($place, type: "ordinal") ->
    [one] { $place }st
    [two] { $place }nd
    [few] { $place }rd
   *[other] { $place }th
}
FTL
cat >show.mjs <<'JS'
import { FluentBundle, FluentNumber, FluentResource } from '@fluent/bundle';
import { readFileSync } from 'fs';
const bundle = new FluentBundle('en', { useIsolating: false });
const errors = bundle.addResource(new FluentResource(readFileSync('texts.ftl', 'utf8')));
const show = (place) => bundle.formatPattern(bundle.getMessage('rank').value, { place }, errors);
const places = [1, 2, 3, 4, 21];
console.log(places.map(show).join(' '));
console.log(places.map((n) => show(new FluentNumber(n, { type: 'ordinal' }))).join(' '), errors.length);
JS
cat >show.py <<'EOP'
from fluent.runtime import FluentBundle, FluentResource

bundle = FluentBundle(["en"], use_isolating=False)
bundle.add_resource(FluentResource(open("texts.ftl").read()))
shown = [bundle.format_pattern(bundle.get_message("rank").value, {"place": place}) for place in (1, 2, 3, 4, 21)]
print(*(text for text, _ in shown), sum(len(errors) for _, errors in shown))
EOP
node show.mjs | tee javascript.txt
venv/bin/python show.py | tee python.txt
[ "$(cat javascript.txt)" = "$(printf '1st 2th 3th 4th 21th\n1st 2nd 3rd 4th 21st 0')" ]
[ "$(cat python.txt)" = "1th 2th 3th 4th 21th 5" ]
