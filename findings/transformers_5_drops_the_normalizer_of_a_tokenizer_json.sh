#!/usr/bin/env bash
# A tokenizer.json with steps of its own: a normalizer that writes small letters, a pre-tokenizer that cuts numbers into
# digits. tokenizers reads it, and transformers' AutoTokenizer, where the tokenizer_class is NllbTokenizer or another.
# Expected: the same pieces, since tokenizer.json is the whole tokenizer.
# Happens: transformers 5 takes vocabulary and merges from the file, and builds normalizer and pre-tokenizer anew as the
# class has them, without a word: capitals come back (where the vocabulary has none, as <unk>), numbers stay whole. So a
# step that was added to backend_tokenizer works until save_pretrained, which writes it, and is gone after
# from_pretrained. So do NLLB, MBart, XLM-R, T5, Camembert, XGLM, Llama, GPT-2, RoBERTa and BART.
# With "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json everything stays.
# Seen with transformers 5.24.0, tokenizers 0.23.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q transformers==5.24.0 tokenizers==0.23.3
export TRANSFORMERS_VERBOSITY=error
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import json

import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers

TEXT = "A Cab 12"
letters = [*"abcdefghijklmnopqrstuvwxyz0123456789", "12"]
pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, *("▁" + letter for letter in letters)]
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
bytes_ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", *alphabet, "12"]
unigram = {"vocab": [(piece, -1.0 - (len(piece.strip("▁")) == 1)) for piece in pieces]}
of_pieces = {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [("1", "2")]}
of_bytes = {"vocab": {piece: i for i, piece in enumerate(bytes_)}, "merges": [("1", "2")]}
made = dict.fromkeys(("MBartTokenizer", "MBart50Tokenizer", "XLMRobertaTokenizer", "T5Tokenizer", "CamembertTokenizer",
                      "XGLMTokenizer"), unigram)
made |= dict.fromkeys(("NllbTokenizer", "LlamaTokenizer"), of_pieces)
made |= dict.fromkeys(("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer"), of_bytes)

for name, content in made.items():
    tokenizer = getattr(transformers, name)(**content)
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([*filter(None, [backend.normalizer]), normalizers.Lowercase()])
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    in_memory = tokenizer.tokenize(TEXT)
    tokenizer.save_pretrained(name)
    of_the_file = Tokenizer.from_file(f"{name}/tokenizer.json").encode(TEXT, add_special_tokens=False).tokens
    loaded = transformers.AutoTokenizer.from_pretrained(name)
    found = loaded.convert_ids_to_tokens(loaded(TEXT, add_special_tokens=False).input_ids)
    print(name, "tokenizers:", *of_the_file, "| AutoTokenizer:", *found)
    assert of_the_file == in_memory != found and "12" not in " ".join(in_memory)
    assert "12" in " ".join(found) and "a" not in found[0]
    settings = json.load(open(f"{name}/tokenizer_config.json")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    json.dump(settings, open(f"{name}/tokenizer_config.json", "w"))
    assert transformers.AutoTokenizer.from_pretrained(name).tokenize(TEXT) == in_memory
EOF
