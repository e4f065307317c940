"""The Transformer of section 3: layers, stacks and incremental decoding, in PyTorch's own operations.

The network sees ids and masks, nothing else: no vocabulary, loss or special symbol. Masks are bool, True = may be
attended. Axes: batch = sentences, row = sentence × beam, src and tgt = positions, d_model = width.

Where the paper is silent: by default the four projections of an attention have no bias (its section 3.2.2 lists
matrices only); weights start as Xavier-uniform (Glorot & Bengio 2010), each of the merged Q, K and V by its own shape,
and embeddings as normal with deviation d_model^-0.5, so that the scaled embeddings start with variance 1.

The backends run this network faster (backends/); tests/backends/test_equivalence.py holds them to it.
"""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from heed.errors import HeedError, check_type
from heed.model.architecture import Activation, Architecture, SinusoidForm
from heed.model.attention import Attend, AttentionMask, Dropout, attention, causal_mask, key_mask

Side = Literal["src", "tgt"]

# F.gelu is x · Φ(x) itself, not its approximation by tanh; swish (Ramachandran et al. 2017) is x · sigmoid(x).
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


def sinusoid(n_positions: int, d_model: int, form: SinusoidForm = "sinusoid") -> Float[Tensor, "position d_model"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos of the same (section 3.5), in fp32.

    sinusoid-halves: all sines first, then all cosines. sinusoid-t2t: in halves, and the last wave is 10000 times as
    long as the first, as in tensor2tensor, which Marian follows: 10000^(2i/(d_model - 2)). Angles are computed in
    fp64: in fp32 those of late positions would be off by more than 1e-4.
    """
    pos = torch.arange(n_positions, dtype=torch.float64)[:, None]
    steps = max(1, d_model - 2) if form == "sinusoid-t2t" else d_model
    rate = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / steps)
    table = torch.empty(n_positions, d_model, dtype=torch.float64)
    sines, cosines = (table[:, 0::2], table[:, 1::2]) if form == "sinusoid" else table.chunk(2, dim=1)
    sines.copy_(torch.sin(pos * rate))
    cosines.copy_(torch.cos(pos * rate))
    return table.float()


def _split_heads(x: Float[Tensor, "batch position head_width"], n_heads: int) -> Tensor:
    """(batch, position, head × width) → (batch, head, position, width)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _merge_heads(x: Float[Tensor, "batch head position width"]) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself. W_Q, W_K and W_V are the rows of one matrix, in this order."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.n_heads = arch.n_heads
        self.widths = [arch.n_heads * arch.key_width] * 2 + [arch.n_heads * arch.value_width]
        self.qkv = nn.Linear(arch.d_model, sum(self.widths), bias=arch.attention_bias)
        self.out = nn.Linear(self.widths[2], arch.d_model, bias=arch.attention_bias)
        self.dropout = Dropout(arch.attention_dropout)

    def forward(
        self,
        x: Float[Tensor, "row position d_model"],
        mask: AttentionMask,
        attend: Attend,
        cache: "LayerCache | None" = None,
    ) -> Float[Tensor, "row position d_model"]:
        """With a cache x is what follows the positions in it, which it takes in."""
        q, k, v = (_split_heads(part, self.n_heads) for part in self.qkv(x).split(self.widths, dim=-1))
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(_merge_heads(attend(q, k, v, mask, dropout=self.dropout)))


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the encoder's output. W_K and W_V are the rows of one matrix."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.n_heads = arch.n_heads
        self.widths = [arch.n_heads * arch.key_width, arch.n_heads * arch.value_width]
        self.q = nn.Linear(arch.d_model, self.widths[0], bias=arch.attention_bias)
        self.kv = nn.Linear(arch.d_model, sum(self.widths), bias=arch.attention_bias)
        self.out = nn.Linear(self.widths[1], arch.d_model, bias=arch.attention_bias)
        self.dropout = Dropout(arch.attention_dropout)

    def project_memory(self, memory: Float[Tensor, "batch src d_model"]) -> tuple[Tensor, Tensor]:
        """Keys and values, each (batch, head, src, width)."""
        k, v = (_split_heads(part, self.n_heads) for part in self.kv(memory).split(self.widths, dim=-1))
        return k, v

    def forward(
        self, x: Float[Tensor, "row tgt d_model"], cache: "LayerCache", mask: AttentionMask, attend: Attend
    ) -> Float[Tensor, "row tgt d_model"]:
        """The rows of a sentence's beam become queries of one sequence, so that its keys are not copied for each."""
        k, v = cache.memory_k, cache.memory_v
        q = self.q(x).view(k.shape[0], -1, self.n_heads, k.shape[3]).transpose(1, 2)
        mixed = _merge_heads(attend(q, k, v, mask, dropout=self.dropout))
        return self.out(mixed.reshape(*x.shape[:2], -1))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2), or another activation in place of max(0, …)."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.inner = nn.Linear(arch.d_model, arch.d_ff)
        self.outer = nn.Linear(arch.d_ff, arch.d_model)
        self.activation = arch.activation

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Tensor:
        return self.outer(ACTIVATIONS[self.activation](self.inner(x)))


class AddNorm(nn.LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))), section 5.4; with pre-norm x + Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, arch: Architecture):
        super().__init__(arch.d_model)
        self.pre = arch.norm == "pre"
        self.dropout = Dropout(arch.dropout)

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*axes d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*axes d_model"]:
        if self.pre:
            return x + self.dropout(sublayer(super().forward(x)))
        return super().forward(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.self_attention = SelfAttention(arch)
        self.self_attention_norm = AddNorm(arch)
        self.feed_forward = FeedForward(arch)
        self.feed_forward_norm = AddNorm(arch)

    def forward(self, x: Float[Tensor, "batch src d_model"], mask: AttentionMask, attend: Attend) -> Tensor:
        x = self.self_attention_norm(x, lambda y: self.self_attention(y, mask, attend))
        return self.feed_forward_norm(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward; each as in the encoder."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.self_attention = SelfAttention(arch)
        self.self_attention_norm = AddNorm(arch)
        self.cross_attention = CrossAttention(arch)
        self.cross_attention_norm = AddNorm(arch)
        self.feed_forward = FeedForward(arch)
        self.feed_forward_norm = AddNorm(arch)

    def forward(
        self,
        x: Float[Tensor, "row tgt d_model"],
        mask: AttentionMask,
        cache: "LayerCache",
        src_mask: AttentionMask,
        attend: Attend,
    ) -> Float[Tensor, "row tgt d_model"]:
        x = self.self_attention_norm(x, lambda y: self.self_attention(y, mask, attend, cache))
        x = self.cross_attention_norm(x, lambda y: self.cross_attention(y, cache, src_mask, attend))
        return self.feed_forward_norm(x, self.feed_forward)


class LayerCache:
    """One decoder layer's keys and values: of the memory, by sentence, and of the target so far, by row.

    Of the target the last `radius` positions are kept, or all: no later one sees more.
    """

    def __init__(
        self,
        memory_k: Float[Tensor, "sentence head src d_k"],
        memory_v: Float[Tensor, "sentence head src d_v"],
        radius: int | None = None,
    ):
        self.memory_k, self.memory_v = memory_k, memory_v
        self._window = slice(0 if radius is None else -radius, None)
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def extend(
        self, k: Float[Tensor, "row head tgt d_k"], v: Float[Tensor, "row head tgt d_v"]
    ) -> tuple[Tensor, Tensor]:
        """The keys and values that new positions may see, their own after the cached ones."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k[:, :, self._window], v[:, :, self._window]
        return k, v


class DecoderState:
    """The past of a decoding: every layer's cache, the sources' mask, the number of target positions."""

    def __init__(self, caches: list[LayerCache], src_mask: Bool[Tensor, "sentence src"]):
        self.caches, self.src_mask = caches, src_mask
        self.n_positions = 0

    def select(self, rows: Int[Tensor, " new_row"], sentences: Int[Tensor, " new_sentence"] | None = None) -> None:
        """Keeps these rows (in this order, repeats allowed) and, unless None, these sentences."""
        for cache in self.caches:
            if cache.k is not None and cache.v is not None:
                cache.k, cache.v = cache.k[rows], cache.v[rows]
            if sentences is not None:
                cache.memory_k, cache.memory_v = cache.memory_k[sentences], cache.memory_v[sentences]
        if sentences is not None:
            self.src_mask = self.src_mask[sentences]


class Transformer(nn.Module):
    """The model of Figure 1, over ids. `forward` is `decode` from an empty state, so the cache cannot drift from it."""

    def __init__(self, arch: Architecture, vocab_size: int, src_vocab_size: int | None = None):
        """vocab_size: the target's; src_vocab_size: the source's, if it differs."""
        super().__init__()
        check_type(Architecture, "an Architecture", arch=arch)
        for name, size in (("vocab_size", vocab_size), ("src_vocab_size", src_vocab_size or vocab_size)):
            if not isinstance(size, Integral) or size < 1:
                raise HeedError(f"{name} is {size!r}; expected a number of ids, at least 1.")
        self.arch, self.vocab_size, self.src_vocab_size = arch, vocab_size, src_vocab_size or vocab_size
        if arch.share == "all" and self.src_vocab_size != vocab_size:
            raise HeedError(
                f"a source vocabulary of {self.src_vocab_size:,} ids and a target vocabulary of {vocab_size:,} cannot "
                "share one matrix; set model.share to tgt or none."
            )
        self.src_embedding = nn.Embedding(self.src_vocab_size, arch.d_model)
        self.tgt_embedding = self.src_embedding if arch.share == "all" else nn.Embedding(vocab_size, arch.d_model)
        self.output = nn.Linear(arch.d_model, vocab_size, bias=arch.output_bias)
        if arch.share != "none":
            self.output.weight = self.tgt_embedding.weight
        if arch.positions == "learned":
            self.src_positions = nn.Embedding(arch.max_positions, arch.d_model)
            self.tgt_positions = nn.Embedding(arch.max_positions, arch.d_model)
        self.src_embedding_norm = nn.LayerNorm(arch.d_model) if arch.embedding_norm else nn.Identity()
        self.tgt_embedding_norm = nn.LayerNorm(arch.d_model) if arch.embedding_norm else nn.Identity()
        self.encoder = nn.ModuleList(EncoderLayer(arch) for _ in range(arch.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(arch) for _ in range(arch.decoder_layers))
        # With pre-norm a stack's output is a sum that nothing has normalised.
        self.encoder_norm = nn.LayerNorm(arch.d_model) if arch.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(arch.d_model) if arch.norm == "pre" else nn.Identity()
        self.dropout = Dropout(arch.dropout)
        # Grows on demand; not a parameter, never saved. On the CPU even where the weights have no values yet.
        self._sinusoids = torch.empty(0, arch.d_model, device="cpu")
        self._initialise()

    def _initialise(self) -> None:
        """Xavier-uniform (Glorot and Bengio 2010), small where a sub-layer adds to its input: docs/explain/model.md."""
        merged = {id(m.qkv): m.widths for m in self.modules() if isinstance(m, SelfAttention)}
        merged |= {id(m.kv): m.widths for m in self.modules() if isinstance(m, CrossAttention)}
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                for part in module.weight.split(merged.get(id(module), module.weight.shape[0])):
                    nn.init.xavier_uniform_(part)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for stack in (self.encoder, self.decoder):
            parts = list(stack.modules())
            last = [part.out for part in parts if isinstance(part, SelfAttention | CrossAttention)]
            last += [part.outer for part in parts if isinstance(part, FeedForward)]
            for projection in last:
                nn.init.xavier_uniform_(projection.weight, gain=len(last) ** -0.5)
        # `modules` gives each once and in order; the order of a set would differ from process to process.
        for table in [module.weight for module in self.modules() if isinstance(module, nn.Embedding)]:
            nn.init.normal_(table, std=self.arch.d_model**-0.5)
        if self.arch.share == "none":
            nn.init.normal_(self.output.weight, std=self.arch.d_model**-0.5)

    @property
    def device_name(self) -> str:
        """Where its weights lie: cpu, cuda:0 …"""
        return str(self.src_embedding.weight.device)

    def forward(
        self, src: Int[Tensor, "batch src"], src_mask: Bool[Tensor, "batch src"], tgt_in: Int[Tensor, "batch tgt"]
    ) -> Float[Tensor, "batch tgt vocab"]:
        """Logits of the next target id at every position."""
        return self.decode(tgt_in, self.start(self.encode(src, src_mask), src_mask))

    def encode(
        self,
        src: Int[Tensor, "batch src"],
        src_mask: Bool[Tensor, "batch src"],
        *,
        keep_mask: Bool[Tensor, "batch src"] | None = None,
        attend: Attend = attention,
    ) -> Float[Tensor, "batch src d_model"]:
        """The encoder's output, called memory. keep_mask: False zeroes a token's embedding; None keeps all."""
        x = self._embed(src, "src", start=0, keep_mask=keep_mask)
        mask = key_mask(src_mask, x, radius=self.arch.radius)
        for layer in self.encoder:
            x = layer(x, mask, attend)
        return self.encoder_norm(x)

    def start(self, memory: Float[Tensor, "batch src d_model"], src_mask: Bool[Tensor, "batch src"]) -> DecoderState:
        """An empty state: the memory's keys and values, computed once for each sentence."""
        layers = cast(list[DecoderLayer], list(self.decoder))
        projected = (layer.cross_attention.project_memory(memory) for layer in layers)
        return DecoderState([LayerCache(k, v, self.arch.radius) for k, v in projected], src_mask)

    def decode(self, tgt_in: Int[Tensor, "row tgt"], state: DecoderState) -> Float[Tensor, "row tgt vocab"]:
        """Logits at the new positions `tgt_in`, which the state takes in. Rows may be a multiple of the sentences."""
        return self.output(self.decode_features(tgt_in, state))

    def decode_features(
        self,
        tgt_in: Int[Tensor, "row tgt"],
        state: DecoderState,
        *,
        keep_mask: Bool[Tensor, "row tgt"] | None = None,
        attend: Attend = attention,
    ) -> Float[Tensor, "row tgt d_model"]:
        """Decodes up to the output projection: training projects only the positions that count in the loss.

        keep_mask: as in `encode`.
        """
        start, n_new, radius = state.n_positions, tgt_in.shape[1], self.arch.radius
        x = self._embed(tgt_in, "tgt", start=start, keep_mask=keep_mask)
        n_cached = start if radius is None else min(start, radius)
        mask = causal_mask(n_new, n_cached + n_new, x, radius=radius)
        src_mask = key_mask(state.src_mask, x)
        for layer, cache in zip(self.decoder, state.caches, strict=True):
            x = layer(x, mask, cache, src_mask, attend)
        state.n_positions += n_new
        return self.decoder_norm(x)

    def _embed(
        self,
        ids: Int[Tensor, "row position"],
        side: Side,
        *,
        start: int,
        keep_mask: Bool[Tensor, "row position"] | None = None,
    ) -> Tensor:
        """Scaled embeddings plus positional encodings, with dropout: sections 3.4, 3.5 and 5.4."""
        table = self.src_embedding if side == "src" else self.tgt_embedding
        end = start + ids.shape[1]
        words = table(ids) * math.sqrt(self.arch.d_model)
        if (keep_mask := self.word_dropout_mask(ids, keep_mask)) is not None:
            words = words * keep_mask[..., None]
        if side == "tgt" and start == 0 and self.arch.decoder_start == "zero":
            words = F.pad(words[:, 1:], (0, 0, 1, 0))
        norm = self.src_embedding_norm if side == "src" else self.tgt_embedding_norm
        return self.dropout(norm(words + self.position_table(side, end)[start:end]))

    def word_dropout_mask(
        self, tokens: Shaped[Tensor, "*axes"], keep_mask: Bool[Tensor, "*axes"] | None = None
    ) -> Bool[Tensor, "*axes"] | None:
        """Which of the tokens that `keep_mask` keeps (None: of all) word dropout keeps, too; None if it keeps all.

        Gal and Ghahramani 2016; for translation Sennrich and Zhang 2019. Kept ones are not scaled up: they are what
        they are without dropout.
        """
        if not (rate := self.arch.word_dropout if self.training else 0.0):
            return keep_mask
        drawn = torch.rand(tokens.shape, device=tokens.device) >= rate
        return drawn if keep_mask is None else drawn & keep_mask

    def position_table(self, side: Side, n_positions: int) -> Float[Tensor, "position d_model"]:
        """The encodings of at least the first `n_positions` positions, of the weights' type. Sinusoids are cached.

        HeedError if there are more positions than learned ones.
        """
        like = self.src_embedding.weight
        if self.arch.positions == "learned":
            if n_positions > self.arch.max_positions:
                raise HeedError(
                    f"a sequence of {n_positions} positions, but max_positions={self.arch.max_positions} were learned."
                )
            return (self.src_positions if side == "src" else self.tgt_positions).weight
        table = self._sinusoids
        if len(table) < n_positions or table.dtype != like.dtype or table.device != like.device:
            n_rows, first = max(256, 2 ** math.ceil(math.log2(n_positions))), self.arch.first_position
            with torch.inference_mode(False):  # a table first needed by a search must serve training as well
                table = sinusoid(first + n_rows, self.arch.d_model, self.arch.positions)[first:]
                self._sinusoids = table = table.to(like)
        return table
