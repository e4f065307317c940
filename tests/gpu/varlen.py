"""PyTorch's variable-length attention on a CPU, which has no kernel of its own: sentence by sentence, in fp32.

Registered on the operations themselves, so that the code which a GPU runs computes here.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.attention.varlen as varlen
from torch import Tensor


def _sequences(starts_q: Tensor, starts_k: Tensor) -> Iterator[tuple[slice, slice]]:
    queries, keys = starts_q.tolist(), starts_k.tolist()
    for q, k in zip(pairwise(queries), pairwise(keys), strict=True):
        if q[0] < q[1]:
            # What attention on a GPU does not compute is not computed here either.
            assert k[0] < k[1], "queries without keys"
            yield slice(*q), slice(*k)


def _scores(q: Tensor, k: Tensor, scale: float | None, window: list[int] | None) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * (scale or q.shape[-1] ** -0.5)
    query, key = torch.arange(len(q))[:, None], torch.arange(len(k))[None]
    left, right = window or (-1, -1)
    last = query + len(k) - len(q)
    if right >= 0:
        scores = scores.masked_fill(key > last + right, -torch.inf)
    return scores.masked_fill(key < last - left, -torch.inf) if left >= 0 else scores


@varlen._varlen_attn.register_kernel("cpu")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, max_q: int, max_k: int,
    is_causal: bool = False, scale: float | None = None, window_size: list[int] | None = None,
    *others: Any, **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    # Rows of no sequence hold garbage, as memory does that nothing has written.
    out, lse = torch.full_like(q, torch.nan), torch.full((q.shape[1], len(q)), torch.nan)
    for of_q, of_k in _sequences(starts_q, starts_k):
        assert of_q.stop - of_q.start <= max_q and of_k.stop - of_k.start <= max_k, "a sequence longer than declared"
        scores = _scores(q[of_q], k[of_k], scale, window_size)
        lse[:, of_q] = torch.logsumexp(scores, -1)
        out[of_q] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[of_k].float()).to(q.dtype)
    return out, lse, torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, starts_q: Tensor, starts_k: Tensor,
    max_q: int, max_k: int, is_causal: bool, rng_state: Tensor, scale: float | None = None,
    window_size: list[int] | None = None, *others: Any, **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    for of_q, of_k in _sequences(starts_q, starts_k):
        probs = (_scores(q[of_q], k[of_k], scale, window_size) - lse[:, of_q, None]).exp()
        dout = grad[of_q].float()
        by_probs = torch.einsum("qhd,khd->hqk", dout, v[of_k].float())
        inner = (dout * out[of_q].float()).sum(-1).T[:, :, None]
        by_scores = probs * (by_probs - inner) * (scale or q.shape[-1] ** -0.5)
        grads[0][of_q] = torch.einsum("hqk,khd->qhd", by_scores, k[of_k].float()).to(q.dtype)
        grads[1][of_k] = torch.einsum("hqk,qhd->khd", by_scores, q[of_q].float()).to(k.dtype)
        grads[2][of_k] = torch.einsum("hqk,qhd->khd", probs, dout).to(v.dtype)
    return grads[0], grads[1], grads[2]


REGISTERED = True
