"""The decoder over slots: each sentence has a place with a preallocated row for every hypothesis of its beam.

A row writes its keys and values into its own slot, position by position. Its past lies in the slots of its ancestors,
so nothing is moved when a beam is reordered: all rows of a place attend to all of its slots, and a mask shows each one
its ancestors. So a place's keys are read once for all its rows.

Every tensor keeps its address and shape until `resize`. Axes: place, tgt and src = positions, beam; kv = keys and
values of all heads; row = place × beam.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from heed.model.attention import AttentionMask, attention
from heed.model.transformer import CrossAttention, DecoderLayer, SelfAttention, Transformer


class Slots:
    """Keys, values and ancestors of all places; how many positions each has."""

    def __init__(self, model: Transformer, beam: int):
        self._model, self._beam = model, beam
        self._weight = model.src_embedding.weight
        self._layers = cast(list[DecoderLayer], list(model.decoder))
        self._low = torch.finfo(self._weight.dtype).min / 2  # finite: a query without a key gets equal weights, not NaN
        self._beam_slots = torch.arange(beam, dtype=torch.int16, device=self._weight.device)
        kv_width = model.arch.n_heads * (model.arch.key_width + model.arch.value_width)
        # (place, tgt, beam, kv) and (place, src, kv), of each layer. Zeros: a key that is hidden must not be NaN.
        self._caches = [self._weight.new_zeros(0, 0, beam, kv_width) for _ in self._layers]
        self._memories = [self._weight.new_zeros(0, 0, kv_width) for _ in self._layers]
        self._src_bias = self._weight.new_zeros(0, 0)  # (place, src)
        # (place, tgt, beam): the slot that holds this position of a row; -1: none does.
        self._ancestors = self._beam_slots.new_zeros(0, 0, beam)
        self.lengths = torch.zeros(0, dtype=torch.int64, device=self._weight.device)

    @property
    def n_places(self) -> int:
        return self._ancestors.shape[0]

    @property
    def capacity(self) -> int:
        """Positions that each place has room for."""
        return self._ancestors.shape[1]

    def resize(self, n_places: int, capacity: int) -> None:
        """Makes room for at least these numbers of places and positions; the contents stay."""
        n_places, capacity = max(n_places, self.n_places), max(capacity, self.capacity)
        for tensors in (self._caches, self._memories):
            for layer, old in enumerate(tensors):  # one is freed before the next is copied
                tensors[layer] = _enlarged(old, 0, n_places, capacity)
        self._src_bias = _enlarged(self._src_bias, self._low, n_places, capacity)
        self._ancestors = _enlarged(self._ancestors, -1, n_places, capacity)
        self.lengths = F.pad(self.lengths, (0, n_places - len(self.lengths)))
        arch = self._model.arch
        n_positions = capacity if arch.positions != "learned" else min(capacity, arch.max_positions)
        self._positions = self._model.position_table("tgt", n_positions)

    def bytes_a_place(self, capacity: int) -> int:
        """The bytes that a place with this capacity takes."""
        arch = self._model.arch
        kv_width = arch.n_heads * (arch.key_width + arch.value_width)
        of_position = (self._beam + 1) * len(self._layers) * kv_width * self._weight.element_size()
        return capacity * (of_position + 2 * self._beam)

    def admit(
        self, places: Int[Tensor, " sentence"], src: Int[Tensor, "sentence src"], src_mask: Bool[Tensor, "sentence src"]
    ) -> None:
        """Sources begin at these places."""
        n_src = src.shape[1]
        memory = self._model.encode(src, src_mask)
        for layer, kept in zip(self._layers, self._memories, strict=True):
            kept[:, :n_src].index_copy_(0, places, layer.cross_attention.kv(memory))
        bias = F.pad(src_mask, (0, self.capacity - n_src)).to(memory.dtype).sub_(1).mul_(-self._low)
        self._src_bias.index_copy_(0, places, bias)
        self._ancestors.index_fill_(0, places, -1)
        self.lengths.index_fill_(0, places, 0)

    def move(self, old: Int[Tensor, " sentence"], new: Int[Tensor, " sentence"]) -> None:
        """What is at the old places is from now on at the new ones."""
        for tensor in (*self._caches, *self._memories, self._src_bias, self._ancestors, self.lengths):
            tensor.index_copy_(0, new, tensor.index_select(0, old))

    def decode(self, tokens: Int[Tensor, "place beam"], width: int) -> Float[Tensor, "row vocab"]:
        """Logits after `tokens` of the first places, which become part of their rows.

        width: positions that are computed with; every live row has fewer, and no source more.
        """
        n_places = len(tokens)
        lengths = self.lengths[:n_places].clamp(max=width - 1)  # of a place without a sentence it may be anything
        x = self._embed(tokens, lengths)
        places = torch.arange(n_places, device=x.device)

        # What each row sees is the same in all layers.
        ancestors = self._ancestors[:n_places, :width]
        ancestors[places, lengths] = self._beam_slots.expand(n_places, -1)
        visible = ancestors.transpose(1, 2)[..., None] == self._beam_slots  # (place, beam, tgt, slot)
        if (radius := self._model.arch.radius) is not None:
            near = torch.arange(width, device=x.device) >= lengths[:, None] - radius
            visible &= near[:, None, :, None]
        past = AttentionMask(_bias(visible.flatten(2)[:, None], self._low, x.dtype))
        source = AttentionMask(self._src_bias[:n_places, None, None, :width])

        # The decoder's layers.
        for layer, cache, memory in zip(self._layers, self._caches, self._memories, strict=True):

            def attend_to_past(
                y: Float[Tensor, "place beam d_model"],
                layer: DecoderLayer = layer,
                cache: Float[Tensor, "all_places tgt beam kv"] = cache,
            ) -> Tensor:
                module = layer.self_attention
                q, kv = module.qkv(y).split([module.widths[0], sum(module.widths[1:])], dim=-1)
                cache[places, lengths] = kv
                return _attend(module, q, cache[:n_places, :width].flatten(1, 2), widths=module.widths[1:], mask=past)

            def attend_to_source(
                y: Float[Tensor, "place beam d_model"],
                layer: DecoderLayer = layer,
                memory: Float[Tensor, "all_places src kv"] = memory,
            ) -> Tensor:
                module = layer.cross_attention
                return _attend(module, module.q(y), memory[:n_places, :width], widths=module.widths, mask=source)

            x = layer.self_attention_norm(x, attend_to_past)
            x = layer.cross_attention_norm(x, attend_to_source)
            x = layer.feed_forward_norm(x, layer.feed_forward)
        self.lengths[:n_places] += 1
        logits: Tensor = self._model.output(self._model.decoder_norm(x).flatten(0, 1))
        return logits

    def _embed(self, tokens: Int[Tensor, "place beam"], lengths: Int[Tensor, " place"]) -> Tensor:
        """Returns `Transformer._embed` with each place at a position of its own."""
        words = self._model.tgt_embedding(tokens) * math.sqrt(self._model.arch.d_model)
        if self._model.arch.decoder_start == "zero":
            words = words.masked_fill((lengths == 0)[:, None, None], 0)
        embedded: Tensor = words + self._positions[lengths.clamp(max=len(self._positions) - 1)][:, None]
        return cast(Tensor, self._model.tgt_embedding_norm(embedded))

    def reorder(self, parents: Int[Tensor, "place beam"], width: int) -> None:
        """Row b of each of the first places is now what its row parents[b] was."""
        ancestors = self._ancestors[: len(parents), :width]
        ancestors.copy_(ancestors.gather(2, parents[:, None].expand(-1, ancestors.shape[1], -1)))


def _enlarged(old: Shaped[Tensor, "place position ..."], fill: int | float, n_places: int, capacity: int) -> Tensor:
    larger = old.new_full((n_places, capacity, *old.shape[2:]), fill)
    larger[: old.shape[0], : old.shape[1]] = old
    return larger


def _bias(visible: Bool[Tensor, "*shape"], low: float, dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, low)


def _attend(
    module: SelfAttention | CrossAttention,
    q: Float[Tensor, "place beam k_width"],
    kv: Float[Tensor, "place key kv_width"],
    *,
    widths: list[int],
    mask: AttentionMask,
) -> Tensor:
    """A place's rows are the queries of one sequence, so that its keys are not copied for each."""
    q, k, v = (x.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for x in (q, *kv.split(widths, dim=-1)))
    mixed: Tensor = module.out(attention(q, k, v, mask, dropout=module.dropout).transpose(1, 2).flatten(2))
    return mixed
