#!/usr/bin/env bash
# torchmetrics' translation error rate of a system that leaves lines empty.
# Expected: each word of the reference is an error, as in sacrebleu: a system that writes nothing has a rate of 100.
# Happens: an empty hypothesis has no errors, while its reference's words count in the divisor. The more lines are left
# empty, the better the rate: 0.0 is the best there is. With normalize=True other rates differ from sacrebleu's, too;
# chrF++ of short lines is lower (orders that a line is too short for count as 0), and of two spaces between words.
# Seen with torchmetrics 1.9.0, sacrebleu 2.6.0, torch 2.13.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 && venv/bin/pip install -q torchmetrics==1.9.0 sacrebleu==2.6.0
venv/bin/python - <<'EOF'
import sacrebleu
from torchmetrics.functional.text import chrf_score, translation_edit_rate

references = ["a small dog runs", "two women are walking", "it rains"]
def rates(hypotheses):
    other = translation_edit_rate(hypotheses, [[reference] for reference in references]).item()
    return round(sacrebleu.corpus_ter(hypotheses, [references]).score, 1), round(100 * other, 1)

one_wrong, one_empty, all_empty = (rates(h) for h in (
    ["a small dog sits", "two women are walking", "it rains"], ["", "two women are walking", "it rains"], ["", "", ""]))
short = (round(sacrebleu.corpus_chrf(["a b c"], [["a b d"]], word_order=2).score, 1),
         round(100 * chrf_score(["a b c"], [["a b d"]]).item(), 1))
print("sacrebleu, torchmetrics: one word wrong", one_wrong, "one line empty", one_empty, "all empty", all_empty)
print("chrF++ of a short line:", short)
assert one_wrong == (10.0, 10.0) and one_empty == (40.0, 0.0) and all_empty == (100.0, 0.0) and short == (46.7, 29.2)
EOF
