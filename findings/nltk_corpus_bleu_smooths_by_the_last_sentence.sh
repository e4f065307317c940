#!/usr/bin/env bash
# NLTK's corpus_bleu with smoothing_function=SmoothingFunction().method5, method6 or method7, on 50 sentences.
# Expected: a number from 0 to 1 that does not depend on the order of the sentences; 1 if translations equal their
# references.
# Happens: the function is given the n-gram precisions of the corpus, but of the sentences only the last, with which
# methods 5 and 7 compute a 5-gram precision and method 6 its number of n-grams. So the same translations get 0.49 to
# 0.60 by methods 5 and 7, and 3.5 to 8.6 by method 6, depending on which sentence is last. Copies of the references get
# 1.12 and 9.5. sentence_bleu depends on no order, but by methods 5 and 7 it is 1.12 for a copy as well, since they add
# one to the first precision. Methods 0 to 4 are right, and a corpus of real size hardly needs smoothing.
# Seen with nltk 3.10.4, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q nltk==3.10.4
venv/bin/python - <<'EOF'
import random

from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu, sentence_bleu

draw = random.Random(0)
words = [f"w{i}" for i in range(30)]


def translate(reference):
    """The reference without some of its words, and with others instead of some."""
    kept = [word for word in reference if draw.random() > 0.15]
    return [draw.choice(words) if draw.random() < 0.15 else word for word in kept]


references = [draw.choices(words, k=draw.randint(6, 20)) for _ in range(50)]
pairs = [(reference, translate(reference)) for reference in references]


def score(pairs, method):
    return corpus_bleu([[reference] for reference, _ in pairs], [translation for _, translation in pairs],
                       smoothing_function=method)


for number in range(8):
    method = getattr(SmoothingFunction(), f"method{number}")
    rotated = [score(pairs[i:] + pairs[:i], method) for i in range(len(pairs))]
    copies = score([(reference, reference) for reference in references], method)
    copy = sentence_bleu([references[0]], references[0], smoothing_function=method)
    print(f"method {number}: {min(rotated):.4f} to {max(rotated):.4f}; copies {copies:.4f}; a copy {copy:.4f}")
    if number < 5:
        assert max(rotated) - min(rotated) < 1e-9 and abs(copies - 1) + abs(copy - 1) < 1e-9
    elif number == 6:
        assert min(rotated) > 2 and max(rotated) > 2 * min(rotated) and copies > 5 and abs(copy - 1) < 1e-9
    else:
        assert max(rotated) - min(rotated) > 0.05 and copies > 1.1 and copy > 1.1
EOF
