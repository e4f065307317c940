"""Attention as mathematics, without weights: equation 1, section 4's restriction to a neighbourhood, and dropout."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Queries that restricted attention takes at a time: their keys, values and weights stay in a processor's cache.
RESTRICTED_QUERIES = 1024
Queries = Float[Tensor, "batch head query d_k"]
Keys = Float[Tensor, "batch head key d_k"]
Values = Float[Tensor, "batch head key d_v"]
Mixed = Float[Tensor, "batch head query d_v"]


class Dropout(nn.Module):
    """Dropout; on a CPU from 16 random bits an element.

    torch's CPU dropout draws element by element on one thread: 18 % of a training step of base on a processor with AMX.
    There the rate is rounded to a multiple of 1/65536, and kept elements are scaled by the rounded rate, so that
    expectations hold.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = float(rate)

    @property
    def effective_rate(self) -> float:
        """0 outside of training."""
        return self.rate if self.training else 0.0

    def forward(self, x: Float[Tensor, "*axes"]) -> Tensor:
        if self.effective_rate == 0:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.rate)
        n_dropped = min(max(1, round(self.rate * 65536)), 65535)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        return x * (bits >= n_dropped - 32768).to(x.dtype).mul_(65536 / (65536 - n_dropped))


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to: all but those that one of the three excludes.

    bias: added to the scores, 0 or a number so low that the key gets no weight. causal: no later position than the
    query's own. radius: no position further away than this. The last two ask for as many queries as keys.
    """

    bias: Float[Tensor, "#batch 1 #query key"] | None = None
    causal: bool = False
    radius: int | None = None

    def full_bias(self, n: int, like: Float[Tensor, "..."]) -> Tensor | None:
        """All three as one bias, for n queries and keys if `causal` or `radius` is set."""
        if not self.causal and self.radius is None:
            return self.bias
        bias = _bias(_visible(n, n, causal=self.causal, radius=self.radius, device=like.device), like.dtype)
        return bias if self.bias is None else bias + self.bias


def key_mask(
    mask: Bool[Tensor, "batch key"], like: Float[Tensor, "..."], *, radius: int | None = None
) -> AttentionMask:
    """Every query sees the keys whose mask is True, at most `radius` positions away."""
    # On a CPU it is cheap to see that nothing is hidden, which saves a pass over the scores; a GPU would be waited for.
    if mask.is_cpu and bool(mask.all()):
        return AttentionMask(radius=radius)
    return AttentionMask(_bias(mask[:, None, None, :], like.dtype), radius=radius)


def causal_mask(n_queries: int, n_keys: int, like: Float[Tensor, "..."], *, radius: int | None = None) -> AttentionMask:
    """Queries at the last positions of the keys see themselves and what precedes them, at most `radius` back."""
    if n_queries == 1 and (radius is None or n_keys <= radius + 1):
        return AttentionMask()
    if n_queries == n_keys and (radius is not None or not like.is_cpu):
        return AttentionMask(causal=True, radius=radius)  # computed without a matrix of all pairs
    visible = _visible(n_queries, n_keys, causal=True, radius=radius, device=like.device)
    return AttentionMask(_bias(visible, like.dtype))


def _visible(
    n_queries: int, n_keys: int, *, causal: bool, radius: int | None, device: torch.device
) -> Bool[Tensor, "1 1 query key"]:
    visible = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool, device=device)
    diagonal = n_keys - n_queries
    if causal:
        visible = visible.tril(diagonal)
    return visible if radius is None else visible.triu(diagonal - radius).tril(diagonal + radius)


def _bias(visible: Bool[Tensor, "*axes"], dtype: torch.dtype) -> Float[Tensor, "*axes"]:
    # A finite number instead of −∞: a query without any key gets equal weights instead of NaN.
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min / 2
    )


@runtime_checkable
class Attend(Protocol):
    """A function that computes attention in the network's layers: `attention`, or one that watches it."""

    def __call__(self, q: Queries, k: Keys, v: Values, mask: AttentionMask, *, dropout: Dropout) -> Mixed: ...


def attention_probabilities(q: Queries, k: Keys, mask: AttentionMask) -> Float[Tensor, "batch head query key"]:
    """softmax(Q Kᵀ / √d_k), the weights of equation 1; each query's sum to 1."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if (bias := mask.full_bias(q.shape[2], q)) is not None:
        scores = scores + bias
    return torch.softmax(scores, dim=-1)


def attention(q: Queries, k: Keys, v: Values, mask: AttentionMask, *, dropout: Dropout) -> Mixed:
    """softmax(Q Kᵀ / √d_k) V (equation 1), with dropout on the weights.

    On a CPU the two products are written out: in training the backward pass of torch's fused kernel took 57 % of a step
    of tiny and 41 % of one of base, on a processor with AMX.
    """
    if mask.radius is not None:
        return restricted_attention(q, k, v, mask, dropout=dropout)
    if not q.is_cpu:
        return fused_attention(q, k, v, mask, dropout=dropout)
    return torch.matmul(dropout(attention_probabilities(q, k, mask)), v)


def fused_attention(q: Queries, k: Keys, v: Values, mask: AttentionMask, *, dropout: Dropout) -> Mixed:
    """Computes `attention` by one of PyTorch's kernels: flash attention unless there is a bias.

    cuDNN's, which PyTorch prefers on an H100 or newer, is left out: it plans anew for each shape, and every batch has
    another.
    """
    rate = dropout.effective_rate
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.bias, dropout_p=rate, is_causal=mask.causal)


def restricted_attention(
    q: Float[Tensor, "batch head position d_k"],
    k: Float[Tensor, "batch head position d_k"],
    v: Float[Tensor, "batch head position d_v"],
    mask: AttentionMask,
    *,
    dropout: Dropout,
) -> Float[Tensor, "batch head position d_v"]:
    """Attention where a position sees `mask.radius` neighbours on each side (or before it) and itself: section 4.

    Time and memory are O(radius · position): queries come in blocks of `radius`, and each block meets the keys of its
    own block, of the one before and, unless causal, of the one after. A bias must be over keys only.
    """
    assert mask.radius is not None
    n = q.shape[2]
    r = min(mask.radius, n)  # no position is further away
    width = (2 if mask.causal else 3) * r  # keys that a block meets
    q = F.pad(q, (0, 0, 0, -n % r))
    k, v = (F.pad(x, (0, 0, r, -n % r + width - 2 * r)) for x in (k, v))
    mixed = []
    first = 0
    for part in q.split(r * max(1, RESTRICTED_QUERIES // r), dim=2):
        n_queries = part.shape[2]
        start = torch.arange(first, first + n_queries, r, device=q.device)[:, None]
        query = (start + torch.arange(r, device=q.device))[:, :, None]  # (block, r, 1): its position in the sequence
        key = (start + torch.arange(-r, width - r, device=q.device))[:, None, :]
        visible = ((query - key).abs() <= r) & (key >= 0) & (key < n)
        if mask.causal:
            visible &= key <= query
        bias = _bias(visible, q.dtype)[None, :, None].expand(q.shape[0], -1, -1, -1, -1)  # (batch, block, 1, r, key)
        if mask.bias is not None:
            bias = bias + mask.bias[:, 0, 0, key[:, 0].clamp(0, n - 1)][:, :, None, None]
        near_k, near_v = (_windows(x[:, :, first : first + n_queries - r + width], width, r) for x in (k, v))
        out = attention(_windows(part, r, r), near_k, near_v, AttentionMask(bias.flatten(0, 1)), dropout=dropout)
        mixed.append(out.unflatten(0, (q.shape[0], -1)).transpose(1, 2).flatten(2, 3))
        first += n_queries
    return torch.cat(mixed, dim=2)[:, :, :n]


def _windows(x: Float[Tensor, "batch head position width"], length: int, step: int) -> Tensor:
    """(batch × window, head, length, width): stretches of `length` positions that begin `step` apart."""
    return x.unfold(2, length, step).permute(0, 2, 1, 4, 3).flatten(0, 1)
