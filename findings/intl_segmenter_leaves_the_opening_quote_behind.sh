#!/usr/bin/env bash
# Intl.Segmenter with granularity "sentence" (browsers, Node; ICU's rules of UAX 29) on Chinese and Japanese, where no
# space stands between sentences, and its locale extension for abbreviations.
# Expected: an opening quotation mark begins the next sentence; de-u-ss-standard knows "z. B." and "Dr.", as in ICU.
# Happens: opening and closing marks are one class to the rules, so the opening one stays at the end of the sentence
# before: 他说。“ | 不。”. The extension changes nothing. The locale does count elsewhere: only "el" ends a sentence at
# the Greek question mark.
# Seen with Node 20.20.2 (V8 11.3, ICU 78.2).
set -euo pipefail
node - <<'EOJ'
const cut = (locale, text) => [...new Intl.Segmenter(locale, { granularity: 'sentence' }).segment(text)]
  .map((sentence) => sentence.segment);
const found = [
  cut('zh', '她笑了。“不。”他说。'), cut('ja', 'はい。「いいえ。」と言った。'),
  cut('de', 'Es ist z. B. Dr. Weiß.'), cut('de-u-ss-standard', 'Es ist z. B. Dr. Weiß.'),
  cut('el', 'Πού πας; Πάω.'), cut('en', 'Πού πας; Πάω.'),
];
console.log(process.versions.icu, found);
const expected = [
  ['她笑了。“', '不。”', '他说。'], ['はい。「', 'いいえ。」', 'と言った。'],
  ['Es ist z. ', 'B. ', 'Dr. ', 'Weiß.'], ['Es ist z. ', 'B. ', 'Dr. ', 'Weiß.'],
  ['Πού πας; ', 'Πάω.'], ['Πού πας; Πάω.'],
];
process.exit(JSON.stringify(found) === JSON.stringify(expected) ? 0 : 1);
EOJ
