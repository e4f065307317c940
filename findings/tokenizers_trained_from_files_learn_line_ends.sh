#!/usr/bin/env bash
# Tokenizer.train(files) and Tokenizer.train_from_iterator(lines) of Hugging Face's tokenizers, the same text.
# Expected: the same vocabulary, since a line's end is no part of its text.
# Happens: train(files) keeps each line's "\n". With ByteLevel the vocabulary has the line end as a token; with
# Metaspace whole words are learned together with the line end behind them ("▁lowest\n"), which no line without its
# end can ever use. Whitespace, which drops the line end, hides the difference.
# Seen with tokenizers 0.23.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q tokenizers==0.23.3
venv/bin/python - <<'EOF'
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

lines = ["low lower lowest", "new newer newest"] * 50
open("text.txt", "w").write("".join(line + "\n" for line in lines))
only_in_files = {}
for split in (pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Metaspace(), pre_tokenizers.Whitespace()):
    vocabularies = []
    for from_files in (True, False):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = split
        trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
        if from_files:
            tokenizer.train(["text.txt"], trainer)
        else:
            tokenizer.train_from_iterator(lines, trainer)
        vocabularies.append(set(tokenizer.get_vocab()))
    only_in_files[type(split).__name__] = vocabularies[0] - vocabularies[1]
    print(type(split).__name__, "only from files:", sorted(only_in_files[type(split).__name__]))
assert "Ċ" in only_in_files["ByteLevel"] and "▁lowest\n" in only_in_files["Metaspace"]
assert not only_in_files["Whitespace"]
EOF
