#!/usr/bin/env bash
# torchmetrics' CHRFScore and chrf_score, whose source says that it follows sacrebleu, on short sentences.
# Expected: 1 for a translation that equals its reference, and sacrebleu's score for others.
# Happens: n-grams longer than the sentence count as not found. "Yes" against "Yes" has 0.5, "ja" 0.375 and, with
# characters alone, 0.333, where sacrebleu leaves such n-grams out and gives 100; so do texts of short sentences as a
# whole. From six letters and two words on, both scores are nearly the same, as they are for a text that has a longer
# sentence too. So sentence scores, and their mean, are too low for headings, dialogue and interfaces: use sacrebleu.
# Seen with torchmetrics 1.9.0, sacrebleu 2.6.0, torch 2.13.0, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q torchmetrics==1.9.0 sacrebleu==2.6.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - <<'EOP'
import sacrebleu
from torchmetrics.functional.text import chrf_score


def both(hypotheses, references, words):
    """Returns the score of torchmetrics and that of sacrebleu for lists of references by sentence."""
    own = sacrebleu.corpus_chrf(hypotheses, [list(x) for x in zip(*references, strict=True)], word_order=words).score
    return round(chrf_score(hypotheses, references, n_word_order=words).item(), 3), round(own / 100, 3)


expected = {"Yes": (0.5, 0.5), "ja": (0.333, 0.375), "Hello": (0.833, 0.75), "Guten Tag": (1, 1)}
for text, scores in expected.items():
    found = tuple(both([text], [[text]], words) for words in (0, 2))
    print(f"{text}: chrF {found[0]}, chrF++ {found[1]} (torchmetrics, sacrebleu)")
    assert found == tuple((score, 1) for score in scores)

dialogue = ["Yes", "No", "Why?", "Go!"]
found = both(dialogue, [[x] for x in dialogue], 2)
mixed = [*dialogue, "The committee meets on Friday."]
whole = both(mixed, [[x] for x in mixed], 2)
print("dialogue:", found, "with a longer sentence:", whole)
assert found[0] < 0.8 and found[1] == 1 and whole == (1, 1)

hypotheses, references = ["the cat sat on a mat", "dogs bark"], [["the cat sat on the mat"], ["dogs are barking"]]
found = both(hypotheses, references, 2)
print("longer sentences:", found)
assert abs(found[0] - found[1]) < 0.01
EOP
