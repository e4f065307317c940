#!/usr/bin/env bash
# Transformers' NllbTokenizer from a folder that holds NLLB's SentencePiece model alone, as a conversion from fairseq or a
# model that was saved before tokenizer.json existed leaves it.
# Expected: what transformers 4 did and MBart50Tokenizer does still: the class knows its 202 languages, whose ids follow
# the pieces, and a source begins with the id of its language.
# Happens: no language is added. Every code is <unk>, so that a source in any language begins with the id of <unk>, and so
# would a target that is forced to any language; nothing is said. The list of languages in tokenizer_config.json
# (extra_special_tokens) brings them back one id too high, because <mask> goes before them: ace_Arab has the id of
# ace_Latn. Only the original tokenizer.json gives the right ids.
# Seen with transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3, protobuf 7.36.2, Python 3.11 (a small SentencePiece model).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
venv/bin/python - <<'EOP'
import io
import json
import os

import sentencepiece
from transformers import MBart50Tokenizer, NllbTokenizer
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

model = io.BytesIO()
lines = ["one hundred and two", "twenty three thousand", "four hundred and five", "sixty seven"] * 20
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines), model_writer=model, vocab_size=60, model_type="bpe", hard_vocab_limit=False,
    minloglevel=2,
)
n_pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
for name in ("alone", "listed"):
    os.mkdir(name)
    with open(f"{name}/sentencepiece.bpe.model", "wb") as file:
        file.write(model.getvalue())
with open("listed/tokenizer_config.json", "w") as file:
    json.dump({"tokenizer_class": "NllbTokenizer", "extra_special_tokens": FAIRSEQ_LANGUAGE_CODES}, file)

alone, listed = (NllbTokenizer.from_pretrained(name) for name in ("alone", "listed"))
codes = ["ace_Arab", "eng_Latn", "deu_Latn", "zul_Latn"]
found = {name: one.convert_tokens_to_ids(codes) for name, one in (("alone", alone), ("listed", listed))}
print("pieces:", n_pieces, found, "mask:", listed.convert_tokens_to_ids("<mask>"))
sources = {code: NllbTokenizer.from_pretrained("alone", src_lang=code)("one").input_ids[0] for code in codes}
print("sources begin with:", sources, "unk:", alone.unk_token_id)
assert set(found["alone"]) == {alone.unk_token_id} == set(sources.values())
right = [n_pieces + 1 + FAIRSEQ_LANGUAGE_CODES.index(code) for code in codes]  # ids 0 to 3 are <s>, <pad>, </s>, <unk>
assert found["listed"] == [i + 1 for i in right] and listed.convert_tokens_to_ids("<mask>") == right[0]
mbart = MBart50Tokenizer.from_pretrained("alone")
assert mbart.convert_tokens_to_ids("de_DE") != mbart.unk_token_id
EOP
