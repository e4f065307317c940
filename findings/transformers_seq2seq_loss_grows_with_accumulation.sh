#!/usr/bin/env bash
# Seq2SeqTrainer of a Marian, M2M100, mBART, BART or T5 model: 16 pairs as one batch, as 4 batches of 4, as 16 of one.
# Expected: the same loss and the same norm of the gradient. The Trainer gives a model the number of tokens of all
# accumulated batches to divide by, or else divides the loss by gradient_accumulation_steps itself.
# Happens: neither divides. The Trainer takes **kwargs in forward for the promise to use that number; these models have
# them, but their loss is the mean over one batch. Loss and gradient are multiplied by gradient_accumulation_steps, so
# max_grad_norm (by default 1) cuts nearly every gradient, and losses of runs with other batch sizes do not compare.
# GPT-2 is right. So is label_smoothing_factor=0.1, which replaces the model's loss; without smoothing,
# model.accepts_loss_kwargs = False helps. transformers' issue 47688, open at the time, says it of other models.
# Seen with transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, Python 3.11 (small models with random weights).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q transformers==5.24.0 accelerate==1.15.0
export TRANSFORMERS_VERBOSITY=error
venv/bin/python - <<'EOP' 2> log || { cat log; exit 1; }
import contextlib
import io

import torch
from transformers import BartConfig, GPT2Config, M2M100Config, MarianConfig, MBartConfig, T5Config
from transformers import BartForConditionalGeneration, GPT2LMHeadModel, M2M100ForConditionalGeneration, MarianMTModel
from transformers import MBartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers import T5ForConditionalGeneration

like_bart = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32), ("layerdrop", 0.0))}
like_bart |= dict(vocab_size=64, d_model=32, dropout=0.0, attention_dropout=0.0, pad_token_id=0, bos_token_id=2,
                  eos_token_id=1, forced_eos_token_id=1, decoder_start_token_id=0)
t5 = dict(vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
          decoder_start_token_id=0)
gpt2 = dict(vocab_size=64, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
pairs = [{"input_ids": [5 + i, 6, 7, 1], "attention_mask": [1] * 4, "labels": [9 + i, 10, 11, 1]} for i in range(16)]


def first_step(model_class, config, accumulation, smoothing=0.0, corrected=False):
    torch.manual_seed(0)
    model = model_class(config)
    if corrected:
        model.accepts_loss_kwargs = False
    read = {"decoder_input_ids"} if config.is_encoder_decoder else set()
    data = [pair | {name: [0, *pair["labels"][:3]] for name in read} for pair in pairs]
    settings = Seq2SeqTrainingArguments(
        "out", per_device_train_batch_size=16 // accumulation, gradient_accumulation_steps=accumulation, max_steps=1,
        logging_steps=1, label_smoothing_factor=smoothing, report_to=[], disable_tqdm=True, save_strategy="no",
        use_cpu=True,
    )
    trainer = Seq2SeqTrainer(model=model, args=settings, train_dataset=data)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return [round(trainer.state.log_history[0][name], 2) for name in ("loss", "grad_norm")]


def growth(*arguments, **options):
    found = [first_step(*arguments, n, **options) for n in (1, 4, 16)]
    print(arguments[0].__name__, options or "", "loss and gradient:", *found)
    return [[round(x / y) for x, y in zip(one, found[0])] for one in found[1:]]


marian = MarianMTModel, MarianConfig(**like_bart)
for case in (marian, (M2M100ForConditionalGeneration, M2M100Config(**like_bart)),
             (MBartForConditionalGeneration, MBartConfig(**like_bart)),
             (BartForConditionalGeneration, BartConfig(**like_bart)), (T5ForConditionalGeneration, T5Config(**t5))):
    assert growth(*case) == [[4, 4], [16, 16]]
for case, options in (((GPT2LMHeadModel, GPT2Config(**gpt2)), {}), (marian, {"smoothing": 0.1}),
                      (marian, {"corrected": True})):
    assert growth(*case, **options) == [[1, 1], [1, 1]]
EOP
