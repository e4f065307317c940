#!/usr/bin/env bash
# @huggingface/tokenizers, the tokenizers of transformers.js, with a tokenizer_config.json that has split_special_tokens:
# true, so that a text that spells a special token is text.
# Expected: what Python's transformers makes of the same two files: the pieces of the spelled text.
# Happens: the setting is ignored: a sentence with "</s>" in it has the id of the end symbol in its middle, and decoding
# without special tokens loses the words. Python's `tokenizers` has encode_special_tokens for it; this package has nothing.
# Seen with @huggingface/tokenizers 0.2.0, Node 20.20.2; tokenizers 0.23.3, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
npm install --silent --no-fund --no-audit @huggingface/tokenizers@0.2.0 > /dev/null
python3 -m venv venv && venv/bin/pip install -q tokenizers==0.23.3
venv/bin/python - <<'EOP'
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({"</s>": 0} | {letter: i for i, letter in enumerate(letters, start=1)}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
tokenizer.save("tokenizer.json")
tokenizer.encode_special_tokens = True
ids = tokenizer.encode("a</s>b").ids
print("Python:", ids)
assert len(ids) == 6 and 0 not in ids
EOP
cat > show.mjs <<'EOJ'
import { readFileSync } from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';

const config = { tokenizer_class: 'PreTrainedTokenizerFast', eos_token: '</s>', split_special_tokens: true };
const tokenizer = new Tokenizer(JSON.parse(readFileSync('tokenizer.json')), config);
const { ids } = tokenizer.encode('a</s>b');
const text = tokenizer.decode(ids, { skip_special_tokens: true });
console.log('JavaScript:', ids, JSON.stringify(text));
process.exit(ids.length === 3 && ids[1] === 0 && !text.includes('</s>') ? 0 : 1);
EOJ
node show.mjs
