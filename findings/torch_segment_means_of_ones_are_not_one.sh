#!/usr/bin/env bash
# Sums and means of the rows of each sentence on a CPU, in bf16 and fp16: segment_reduce, index_reduce_, index_add_,
# index_put_(accumulate=True) and the gradient of Embedding(sparse=True), for 10,000 rows of ones.
# Expected: 9,984 (10,000 in bf16) and a mean of 1, as by sum, mean, scatter_add_ and scatter_reduce_: sums in fp32,
# rounded once. The pages of these functions name no other precision.
# Happens: the sum is 256 in bf16 and 2,048 in fp16, where adding one changes nothing any more, and is then divided by
# the right count: segment_reduce's and index_reduce_'s mean of ones is 0.026 in bf16 and 0.2 in fp16; of 1,000 ones in
# bf16 0.26. index_add_ depends on the shape: a vector, such as log probabilities of tokens added up by sentence, is
# summed in bf16 (256), a matrix in fp32 (9,984), and so is a matrix of one column. Nothing warns.
# What helps: scatter_add_ and scatter_reduce_, or .float() before.
# Seen with torch 2.13.0 on a CPU, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'EOF'
import torch


def measure(dtype, n_rows):
    """The sum or mean of so many ones by each function."""
    rows = torch.ones(n_rows, 4, dtype=dtype)
    vector, sentence = rows[:, 0].clone(), torch.zeros(n_rows, dtype=torch.long)
    index, lengths = sentence[:, None].expand_as(rows).contiguous(), torch.tensor([n_rows])
    embedding = torch.nn.Embedding(1, 4, sparse=True, dtype=dtype)
    embedding(sentence).sum().backward()
    zeros, zero = torch.zeros(1, 4, dtype=dtype), torch.zeros(1, dtype=dtype)
    found = {
        "sum": rows.sum(0),
        "scatter_add_": zeros.scatter_add(0, index, rows),
        "scatter_add_, vector": zero.scatter_add(0, sentence, vector),
        "index_add_": zeros.index_add(0, sentence, rows),
        "index_add_, one column": zeros[:, :1].index_add(0, sentence, rows[:, :1]),
        "mean": rows.mean(0),
        "scatter_reduce_ mean": zeros.scatter_reduce(0, index, rows, "mean", include_self=False),
        "index_add_, vector": zero.index_add(0, sentence, vector),
        "index_put_": zeros.index_put((sentence,), rows, accumulate=True),
        "sparse gradient": embedding.weight.grad.coalesce().values(),
        "segment_reduce sum": torch.segment_reduce(rows, "sum", lengths=lengths),
        "segment_reduce mean": torch.segment_reduce(rows, "mean", lengths=lengths),
        "index_reduce_ mean": zeros.index_reduce(0, sentence, rows, "mean", include_self=False),
    }
    return {name: value.flatten()[0].item() for name, value in found.items()}


WRONG = ("index_add_, vector", "index_put_", "sparse gradient", "segment_reduce sum", "segment_reduce mean",
         "index_reduce_ mean")
for dtype, largest in ((torch.float32, 2**24), (torch.bfloat16, 2**8), (torch.float16, 2**11)):
    for n_rows in (200, 1000, 10_000):
        found = measure(dtype, n_rows)
        print(f"{n_rows} ones, {dtype}:", *(f"{name} {value:.4g};" for name, value in found.items()))
        for name, value in found.items():
            n_summed = min(n_rows, largest) if name in WRONG else n_rows
            right = n_summed / n_rows if "mean" in name else n_summed
            assert abs(value - right) <= 0.005 * right, (name, value, right)
EOF
