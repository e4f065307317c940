#!/usr/bin/env bash
# torchmetrics' BLEU of a translation with several references.
# Expected: the order in which the references are given changes nothing, as in sacrebleu.
# Happens: where two references are equally far from the hypothesis in length, the first one given counts for the brevity
# penalty (sacrebleu and Moses' multi-bleu.perl take the shorter one), so the same references in another order give another
# score: 100 or 86.7 for a hypothesis all of whose words one of them holds in a row. SacreBLEUScore does the same.
# Seen with torchmetrics 1.9.0, sacrebleu 2.6.0, torch 2.13.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 && venv/bin/pip install -q torchmetrics==1.9.0 sacrebleu==2.6.0
venv/bin/python - <<'EOF'
import sacrebleu
from torchmetrics.functional.text import bleu_score, sacre_bleu_score

hypothesis = "a small dog runs on green grass"  # 7 words
shorter, longer = "a small dog runs on grass", "a small dog runs on green grass now"  # 6 and 8
scores = {}
for name, references in {"shorter first": [shorter, longer], "longer first": [longer, shorter]}.items():
    scores[name] = (
        round(sacrebleu.corpus_bleu([hypothesis], [[one] for one in references], tokenize="none").score, 1),
        round(100 * bleu_score([hypothesis], [references]).item(), 1),
        round(100 * sacre_bleu_score([hypothesis], [references], tokenize="none").item(), 1),
    )
    print(f"{name}: sacrebleu, bleu_score, sacre_bleu_score:", *scores[name])
assert scores == {"shorter first": (100.0, 100.0, 100.0), "longer first": (100.0, 86.7, 86.7)}
EOF
