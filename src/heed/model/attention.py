"""Attention as mathematics, without weights: equation 1, section 4's restriction to neighbours, and dropout.

Masks are bool, True = may be attended.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Restricted attention takes so many queries at a time: keys, values and weights of theirs stay in a processor's cache.
RESTRICTED_QUERIES = 1024


class Dropout(nn.Module):
    """Dropout; on a CPU from 16 random bits an element.

    torch's CPU dropout draws every element by itself on one thread: 18 % of a step of base on a processor
    with AMX. Rates are rounded to multiples of 1/65536 there, and the kept elements are scaled by the rounded rate, so
    expectations hold.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    @property
    def present_rate(self) -> float:
        """0 outside of training."""
        return self.rate if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.present_rate == 0:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.rate)
        n_dropped = max(1, round(self.rate * 65536))
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        return x * (bits >= n_dropped - 32768).to(x.dtype).mul_(65536 / (65536 - n_dropped))


def attention(
    q: Float[Tensor, "batch head query d_k"],
    k: Float[Tensor, "batch head key d_k"],
    v: Float[Tensor, "batch head key d_v"],
    mask: Bool[Tensor, "#batch 1 #query key"] | None,
    *,
    dropout: Dropout,
    causal: bool = False,
) -> Float[Tensor, "batch head query d_v"]:
    """softmax(Q Kᵀ / √d_k) V (equation 1). A query that may attend to nothing attends to all keys alike.

    causal: as many queries as keys, and the mask says only that a query sees no later key. Fused on a GPU. Training on
    a CPU writes the two products out: there the backward pass of torch's fused kernel took 57 % of a step of tiny and
    41 % of one of base, on a processor with AMX.
    """
    if not q.is_cpu:
        return fused_attention(q, k, v, mask, dropout_rate=dropout.present_rate, causal=causal)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if (bias := _bias(mask, q.dtype)) is not None:
        scores = scores + bias
    return torch.matmul(dropout(torch.softmax(scores, dim=-1)), v)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, dropout_rate: float, causal: bool
) -> Tensor:
    """As `attention`, by one of PyTorch's kernels: flash attention where the mask is none but the causal one.

    Not cuDNN's, which PyTorch prefers on an H100 or newer: it plans anew for every shape, and every batch has others.
    """
    bias = None if causal else _bias(mask, q.dtype)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout_rate, is_causal=causal)


def restricted_attention(
    q: Float[Tensor, "batch head position d_k"],
    k: Float[Tensor, "batch head position d_k"],
    v: Float[Tensor, "batch head position d_v"],
    mask: Bool[Tensor, "#batch 1 1 position"] | None,
    *,
    radius: int,
    causal: bool,
    dropout: Dropout,
) -> Float[Tensor, "batch head position d_v"]:
    """Attention where a position sees `radius` neighbours on each side, or before it, and itself: section 4.

    Time and memory are O(radius · position): queries come in blocks of `radius`, and each block meets the keys of its
    own, of the one before and, unless causal, of the one behind.
    """
    n = q.shape[2]
    r = min(radius, n)  # no position is further away
    width = (2 if causal else 3) * r  # keys that a block meets
    q = F.pad(q, (0, 0, 0, -n % r))
    k, v = (F.pad(x, (0, 0, r, -n % r + width - 2 * r)) for x in (k, v))
    mixed = []
    first = 0
    for part in q.split(r * max(1, RESTRICTED_QUERIES // r), dim=2):
        n_queries = part.shape[2]
        start = torch.arange(first, first + n_queries, r, device=q.device)[:, None]
        query = (start + torch.arange(r, device=q.device))[:, :, None]  # (block, r, 1): its place in the sequence
        key = (start + torch.arange(-r, width - r, device=q.device))[:, None, :]
        seen = ((query - key).abs() <= r) & (key >= 0) & (key < n)
        if causal:
            seen &= key <= query
        seen = seen[None, :, None].expand(q.shape[0], -1, -1, -1, -1)  # (batch, block, head, r, keys)
        if mask is not None:
            seen = seen & mask[:, 0, 0, key[:, 0].clamp(0, n - 1)][:, :, None, None]
        near_k, near_v = (_windows(x[:, :, first : first + n_queries - r + width], width, r) for x in (k, v))
        out = attention(_windows(part, r, r), near_k, near_v, seen.flatten(0, 1), dropout=dropout)
        mixed.append(out.unflatten(0, (q.shape[0], -1)).transpose(1, 2).flatten(2, 3))
        first += n_queries
    return torch.cat(mixed, dim=2)[:, :, :n]


def _windows(x: Float[Tensor, "batch head position width"], length: int, step: int) -> Tensor:
    """(batch × window, head, length, width): stretches of so many positions that begin a step apart."""
    return x.unfold(2, length, step).permute(0, 2, 1, 4, 3).flatten(0, 1)


def _bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    # The lowest finite number instead of −∞ keeps a row without any key free of NaN.
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min / 2)
