"""The weights of every head for one pair, recomputed from queries and keys: neither training nor search holds them."""

import math
import threading
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heed.model.transformer import Transformer


@dataclass(frozen=True)
class AttentionWeights:
    """softmax(Q Kᵀ / √d_k) of each layer and head (equation 1); every row sums to 1."""

    encoder: Float[Tensor, "layer head src src"]
    decoder: Float[Tensor, "layer head tgt tgt"]
    cross: Float[Tensor, "layer head tgt src"]


@torch.inference_mode()
def attention_weights(model: Transformer, src: Int[Tensor, " src"], tgt_in: Int[Tensor, " tgt"]) -> AttentionWeights:
    """Of one source (with eos) and one target (with bos), as the model's own forward pass makes them."""
    projected: dict[str, Tensor] = {}
    thread = threading.get_ident()  # other threads may run the model, and their hooks, at the same time

    def kept_as(name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if threading.get_ident() == thread:
                projected[name] = output[0]

        return keep

    hooks = [
        module.register_forward_hook(kept_as(name))
        for name, module in model.named_modules()
        if name.endswith((".qkv", ".q", ".kv"))
    ]
    try:
        model(src[None], torch.ones(1, len(src), dtype=torch.bool, device=src.device), tgt_in[None])
    finally:
        for hook in hooks:
            hook.remove()
    n_heads, n_layers = model.arch.n_heads, model.arch.n_layers
    width = n_heads * model.arch.key_width

    def weights(q: Tensor, k: Tensor, *, causal: bool = False, radius: int | None = None) -> Tensor:
        q, k = (x.float().unflatten(-1, (n_heads, -1)).transpose(0, 1) for x in (q, k))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        every = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            scores = scores.masked_fill(every.triu(1), -torch.inf)
        if radius is not None:
            scores = scores.masked_fill(every.triu(radius + 1) | every.tril(-radius - 1), -torch.inf)
        return torch.softmax(scores, dim=-1)

    def own(stack: str, layer: int) -> Tensor:
        qkv = projected[f"{stack}.{layer}.self_attention.qkv"]
        q, k = qkv[:, :width], qkv[:, width : 2 * width]
        return weights(q, k, causal=stack == "decoder", radius=model.arch.radius)

    def other(layer: int) -> Tensor:
        name = f"decoder.{layer}.cross_attention"
        return weights(projected[f"{name}.q"], projected[f"{name}.kv"][:, :width])

    layers = range(n_layers)
    return AttentionWeights(
        torch.stack([own("encoder", i) for i in layers]),
        torch.stack([own("decoder", i) for i in layers]),
        torch.stack([other(i) for i in layers]),
    )
