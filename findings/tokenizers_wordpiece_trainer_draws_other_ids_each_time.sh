#!/usr/bin/env bash
# A WordPiece vocabulary that Hugging Face's tokenizers learn twice from the same lines.
# Expected: the same file both times, as with the trainers for BPE and word-level vocabularies.
# Happens: the pieces are the same, but many ids are others in each process, whatever the number of threads: a model that
# was trained with one of the files reads other pieces with the other, and nothing tells. There is no seed to set.
# Seen with tokenizers 0.23.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q tokenizers==0.23.3
cat > learn.py <<'EOF'
import json
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

random.seed(1)
words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(3000)]
lines = [" ".join(random.choices(words, k=10)) for _ in range(5000)]
settings = {"vocab_size": 1000, "special_tokens": ["<unk>"], "show_progress": False}
learned = {}
for name, model, trainer in (
    ("BPE", models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**settings)),
    ("WordLevel", models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(**settings)),
    ("WordPiece", models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(**settings)),
):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(lines, trainer)
    learned[name] = tokenizer.get_vocab()
print(json.dumps(learned))
EOF
for run in 1 2; do TOKENIZERS_PARALLELISM=false venv/bin/python learn.py > $run.json; done
venv/bin/python - <<'EOF'
import json

first, second = (json.load(open(f"{run}.json")) for run in (1, 2))
for name, ids in first.items():
    moved = sum(second[name][piece] != i for piece, i in ids.items())
    print(f"{name}: {len(ids)} pieces, the same ones: {set(ids) == set(second[name])}; with another id: {moved}")
    assert set(ids) == set(second[name]) and (moved > 0) == (name == "WordPiece")
EOF
