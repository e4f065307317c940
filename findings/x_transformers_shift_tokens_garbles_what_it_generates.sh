#!/usr/bin/env bash
# x-transformers' XTransformer with token shift, an option of its README (half of each vector is taken from the word
# before), on a small task: sentences of 3 to 8 words, written backwards.
# Expected: generate() writes what the loss promises, with or without its cache of keys and values, alone or in a batch.
# Happens: the cache is on by default, and a step with it sees one word, so its neighbour is zeros: with
# dec_shift_tokens=1 a model that is right 100 times of 100 without cache is right hardly once, as fluently as ever.
# Options that cannot be cached switch the cache off (attn_selective); this one does not. With enc_shift_tokens=1 the
# feed-forward layers do not get the mask: the last word of a sentence takes the vector of the padding behind it, the
# model learns to count on it, and a sentence alone, without padding, is wrong most of the time. No message in either.
# generate(…, cache_kv=False) helps the decoder; the encoder wants a word of padding behind every sentence.
# Seen with x-transformers 2.31.10, torch 2.13.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy && venv/bin/pip install -q x-transformers==2.31.10
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import torch
from x_transformers import XTransformer

PAD, START, END, WORDS, LONGEST = 0, 1, 2, 20, 8
torch.set_num_threads(1)


def pairs(n, draw):
    lengths = torch.randint(3, LONGEST + 1, (n,), generator=draw)
    src = torch.randint(3, WORDS, (n, LONGEST), generator=draw)
    src[torch.arange(LONGEST) >= lengths[:, None]] = PAD
    tgt = torch.full((n, LONGEST + 2), PAD)
    tgt[:, 0] = START
    for row, sentence, length in zip(tgt, src, lengths.tolist(), strict=True):
        row[1 : length + 1], row[length + 1] = sentence[:length].flip(0), END
    return src, tgt


def n_right(outputs, tgt):
    def text(ids):
        return ids[: ids.index(END)] if END in ids else None

    return sum(text(output) == text(right) for output, right in zip(outputs, tgt[:, 1:].tolist(), strict=True))


def learn(**options):
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    sizes = {"num_tokens": WORDS, "depth": 1, "heads": 4, "max_seq_len": LONGEST + 2}
    both = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in sizes.items()}
    model = XTransformer(dim=64, pad_value=PAD, ignore_index=PAD, **both, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(500):
        src, tgt = pairs(64, draw)
        optimizer.zero_grad()
        model(src, tgt, mask=src != PAD).backward()
        optimizer.step()
    model.eval()
    (src, tgt), found = pairs(100, draw), {}
    search = {"temperature": 0.0, "eos_token": END}
    for name, cache in (("cache (default)", {}), ("no cache", {"cache_kv": False})):
        batch = model.generate(src, tgt[:, :1], LONGEST + 1, mask=src != PAD, **search, **cache)
        alone = [model.generate(sentence[sentence != PAD][None], tgt[:1, :1], LONGEST + 1, **search, **cache)[0]
                 for sentence in src]
        found[f"{name}, a batch"] = n_right(batch.tolist(), tgt)
        found[f"{name}, alone"] = n_right([output.tolist() for output in alone], tgt)
    print(options or "no shift", "right of 100:", found)
    return list(found.values())


assert min(learn()) >= 90
cached_batch, cached_alone, batch, alone = learn(dec_shift_tokens=1)
assert max(cached_batch, cached_alone) <= 20 and min(batch, alone) >= 90
cached_batch, cached_alone, batch, alone = learn(enc_shift_tokens=1)
assert min(cached_batch, batch) >= 90 and max(cached_alone, alone) <= 75
EOF
