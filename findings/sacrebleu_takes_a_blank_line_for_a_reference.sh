#!/usr/bin/env bash
# sacrebleu with two reference files, the second of which has a blank line where there is no second translation.
# Expected: the blank is no reference, as the docstring of sacrebleu's metrics says ("'' or None to allow the use of
# variable number of references").
# Happens: only None is left out, which no file can hold. A blank is a reference of length 0, the closest in length to
# any hypothesis of less than half the words, so it switches the brevity penalty off: BLEU is 100 for translations
# that stop after a third, 40 without the blank. The signature says nrefs:2; with None it is nrefs:var.
# Seen with sacrebleu 2.6.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q sacrebleu==2.6.0
printf 'a b c d e\nthe cat sat on the mat\n' > hyp
printf 'a b c d e f g h i j k l m n o\nthe cat sat on the mat today with a dog and a bird\n' > ref1
printf '\nthe cat is on the mat\n' > ref2
venv/bin/sacrebleu ref1 ref2 -i hyp -b | tee command
venv/bin/python - <<'EOP'
from sacrebleu.metrics import BLEU

hypotheses, first, second = (open(name).read().splitlines() for name in ("hyp", "ref1", "ref2"))
blank, none = BLEU(), BLEU()
scores = [
    blank.corpus_score(hypotheses, [first, second]).score,
    none.corpus_score(hypotheses, [first, [line or None for line in second]]).score,
]
print("blank:", scores[0], blank.get_signature(), "None:", scores[1], none.get_signature())
assert float(open("command").read()) == 100 and scores[0] > 99.9 and round(scores[1], 1) == 40.3
EOP
