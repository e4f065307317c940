"""The Transformer of section 3: layers, stacks and incremental decoding.

The network sees ids and masks, nothing else: no vocabulary, loss or special symbol. Masks are bool, True = may be
attended. Axes: batch = sentences, rows = sentences × beam, src and tgt = positions, d_model = width.

Where the paper is silent: the four projections of an attention have no bias (its section 3.2.2 lists matrices only);
weights start as Xavier-uniform (Glorot & Bengio 2010), each of the merged Q, K and V by its own shape, and embeddings
as normal with deviation d_model^-0.5, so that the scaled embeddings start with variance 1.
"""

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from heed.backends.cpu import training_ops
from heed.backends.cpu.build import check_range, ready
from heed.backends.cpu.training_ops import Spans
from heed.config import Settings
from heed.errors import HeedError
from heed.model.attention import Dropout, attention, restricted_attention


class Architecture(Settings):
    """Shape of the network. Defaults are the paper's base model (Table 3, first row)."""

    n_layers: int = Field(default=6, ge=1, le=1000, description="layers in each of the two stacks (N)")
    d_model: int = Field(default=512, ge=2, le=65_536, description="width")
    d_ff: int = Field(default=2048, ge=1, le=1_048_576, description="inner width of the feed-forward sub-layer")
    n_heads: int = Field(default=8, ge=1, le=4096, description="attention heads (h)")
    d_k: int | None = Field(
        default=None, ge=1, le=65_536, description="width of a head's queries and keys; default d_model / n_heads"
    )
    d_v: int | None = Field(
        default=None, ge=1, le=65_536, description="width of a head's values; default d_model / n_heads"
    )
    dropout: float = Field(default=0.1, ge=0, lt=1, description="on each sub-layer's output and on embeddings (P_drop)")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1, description="on attention weights")
    word_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="on whole tokens, read in training as positions alone"
    )
    radius: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="self-attention sees so many neighbours on each side (section 4); default all",
    )
    positions: Literal["sinusoid", "learned"] = Field(default="sinusoid", description="section 3.5; Table 3 row E")
    max_positions: int = Field(
        default=1024, ge=1, le=1_048_576, description="longest sequence that learned positions can number"
    )
    share: Literal["all", "tgt", "none"] = Field(
        default="all",
        description="one matrix for src embedding, tgt embedding and softmax (section 3.4), for the last two, or none",
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "Architecture":
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd; positions need pairs of sine and cosine")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}; change one, or set d_k and d_v"
            )
        return self

    @property
    def key_width(self) -> int:
        """d_k of one head."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_width(self) -> int:
        """d_v of one head."""
        return self.d_v or self.d_model // self.n_heads


def sinusoid(n_positions: int, d_model: int) -> Float[Tensor, "position d_model"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos of the same (section 3.5), in fp32.

    Angles are computed in fp64: in fp32 those of late positions would be off by more than 1e-4.
    """
    pos = torch.arange(n_positions, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    table = torch.empty(n_positions, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(pos * rate)
    table[:, 1::2] = torch.cos(pos * rate)
    return table.float()


class Linear(nn.Linear):
    """x Wᵀ + b, by the kernels where they have a faster product than PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        return training_ops.linear(x, self.weight, self.bias)


def _split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(batch, position, head × width) → (batch, head, position, width)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself. W_Q, W_K and W_V are the rows of one matrix, in this order."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.n_heads = arch.n_heads
        self.widths = [arch.n_heads * arch.key_width] * 2 + [arch.n_heads * arch.value_width]
        self.qkv = Linear(arch.d_model, sum(self.widths), bias=False)
        self.out = Linear(self.widths[2], arch.d_model, bias=False)
        self.dropout = Dropout(arch.attention_dropout)
        self.radius = arch.radius

    def project(self, x: Float[Tensor, "batch position d_model"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, head, position, width)."""
        q, k, v = (_split_heads(part, self.n_heads) for part in self.qkv(x).split(self.widths, dim=-1))
        return q, k, v

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.attend(*self.project(x), mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        """causal: a query sees no later position, even where the mask, spared for a radius, does not say so."""
        if self.radius is not None and 1 < q.shape[2] == k.shape[2]:
            mixed = restricted_attention(q, k, v, mask, radius=self.radius, causal=causal, dropout=self.dropout)
        else:
            causal &= self.radius is None and q.shape[2] == k.shape[2]
            mixed = attention(q, k, v, mask, dropout=self.dropout, causal=causal)
        return self.out(_merge_heads(mixed))

    def over_spans(self, x: Float[Tensor, "token d_model"], spans: Spans, *, causal: bool) -> Tensor:
        """The same of sentences that lie end to end."""
        qkv, rate, widths = self.qkv(x), self.dropout.present_rate, self.widths
        mixed = training_ops.self_attention(
            qkv, spans, n_heads=self.n_heads, widths=widths, causal=causal, dropout=rate
        )
        return self.out(mixed)


class CrossAttention(nn.Module):
    """Multi-head attention of the decoder to the encoder's output. W_K and W_V are the rows of one matrix."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.n_heads = arch.n_heads
        self.widths = [arch.n_heads * arch.key_width, arch.n_heads * arch.value_width]
        self.q = Linear(arch.d_model, self.widths[0], bias=False)
        self.kv = Linear(arch.d_model, sum(self.widths), bias=False)
        self.out = Linear(self.widths[1], arch.d_model, bias=False)
        self.dropout = Dropout(arch.attention_dropout)

    def project_memory(self, memory: Float[Tensor, "batch src d_model"]) -> tuple[Tensor, Tensor]:
        """Keys and values, each (batch, head, src, width)."""
        k, v = (_split_heads(part, self.n_heads) for part in self.kv(memory).split(self.widths, dim=-1))
        return k, v

    def forward(self, x: Float[Tensor, "row tgt d_model"], k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The rows of one sentence's beam are laid behind one another as queries, so keys are never copied a beam."""
        n_rows, n_positions, _ = x.shape
        q = self.q(x).view(k.shape[0], -1, self.n_heads, k.shape[3]).transpose(1, 2)
        attended = _merge_heads(attention(q, k, v, mask, dropout=self.dropout))
        return self.out(attended.view(n_rows, n_positions, -1))

    def over_spans(
        self, x: Float[Tensor, "tgt_token d_model"], memory: Float[Tensor, "src_token d_model"], tgt: Spans, src: Spans
    ) -> Tensor:
        """The same of sentences that lie end to end, on both sides."""
        q, kv, rate = self.q(x), self.kv(memory), self.dropout.present_rate
        mixed = training_ops.cross_attention(q, kv, tgt, src, n_heads=self.n_heads, widths=self.widths, dropout=rate)
        return self.out(mixed)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2)."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.inner = Linear(arch.d_model, arch.d_ff)
        self.outer = Linear(arch.d_ff, arch.d_model)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and ready(x):
            return self.outer(training_ops.bias_relu(training_ops.linear(x, self.inner.weight, None), self.inner.bias))
        return self.outer(F.relu(self.inner(x)))


class AddNorm(nn.LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))), section 5.4, of x and its sub-layer's output."""

    def __init__(self, arch: Architecture):
        super().__init__(arch.d_model)
        self.dropout = Dropout(arch.dropout)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:  # type: ignore[override]  # the sum belongs to it
        if ready(x):
            rate = self.dropout.present_rate
            return training_ops.add_norm(x, branch, self.weight, self.bias, dropout=rate, epsilon=self.eps)
        return super().forward(x + self.dropout(branch))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and normalised."""

    def __init__(self, arch: Architecture):
        super().__init__()
        self.self_attention = SelfAttention(arch)
        self.self_attention_norm = AddNorm(arch)
        self.feed_forward = FeedForward(arch)
        self.feed_forward_norm = AddNorm(arch)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.self_attention_norm(x, self.self_attention(x, mask))
        return self.feed_forward_norm(x, self.feed_forward(x))

    def over_spans(self, x: Tensor, spans: Spans) -> Tensor:
        x = self.self_attention_norm(x, self.self_attention.over_spans(x, spans, causal=False))
        return self.feed_forward_norm(x, self.feed_forward(x))


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

    def forward(self, x: Tensor, mask: Tensor | None, cache: "LayerCache", src_mask: Tensor | None) -> Tensor:
        q, k, v = self.self_attention.project(x)
        k, v = cache.extend(k, v)
        x = self.self_attention_norm(x, self.self_attention.attend(q, k, v, mask, causal=True))
        x = self.cross_attention_norm(x, self.cross_attention(x, cache.memory_k, cache.memory_v, src_mask))
        return self.feed_forward_norm(x, self.feed_forward(x))

    def over_spans(self, x: Tensor, memory: Tensor, spans: Spans, src_spans: Spans) -> Tensor:
        x = self.self_attention_norm(x, self.self_attention.over_spans(x, spans, causal=True))
        x = self.cross_attention_norm(x, self.cross_attention.over_spans(x, memory, spans, src_spans))
        return self.feed_forward_norm(x, self.feed_forward(x))


class LayerCache:
    """One decoder layer's keys and values: of the memory, by sentence, and of the target so far, by row.

    Of the target the last `radius` positions are kept, or all: no later one sees more.
    """

    def __init__(self, memory_k: Tensor, memory_v: Tensor, radius: int | None = None):
        self.memory_k, self.memory_v = memory_k, memory_v  # (sentence, head, src, width)
        self._kept = slice(0 if radius is None else -radius, None)
        self.k: Tensor | None = None  # (row, head, tgt, width)
        self.v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that new positions may see, their own behind those that were kept."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k[:, :, self._kept], v[:, :, self._kept]
        return k, v


class DecoderState:
    """What decoding has seen so far: every layer's cache, the sources' mask, the number of target positions."""

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

    def __init__(self, arch: Architecture, vocab_size: int):
        super().__init__()
        self.arch, self.vocab_size = arch, vocab_size
        self.src_embedding = nn.Embedding(vocab_size, arch.d_model)
        self.tgt_embedding = self.src_embedding if arch.share == "all" else nn.Embedding(vocab_size, arch.d_model)
        self.output = nn.Linear(arch.d_model, vocab_size, bias=False)
        if arch.share != "none":
            self.output.weight = self.tgt_embedding.weight
        if arch.positions == "learned":
            self.src_positions = nn.Embedding(arch.max_positions, arch.d_model)
            self.tgt_positions = nn.Embedding(arch.max_positions, arch.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(arch) for _ in range(arch.n_layers))
        self.decoder = nn.ModuleList(DecoderLayer(arch) for _ in range(arch.n_layers))
        self.dropout = Dropout(arch.dropout)
        self._sinusoids = torch.empty(0, arch.d_model)  # grows on demand; not a parameter, never saved
        self._initialise()

    def _initialise(self) -> None:
        """Xavier-uniform (Glorot and Bengio 2010), small where a sub-layer adds to its input: docs/model.md."""
        merged = {id(m.qkv): m.widths for m in self.modules() if isinstance(m, SelfAttention)}
        merged |= {id(m.kv): m.widths for m in self.modules() if isinstance(m, CrossAttention)}
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                for part in module.weight.split(merged.get(id(module), module.weight.shape[0])):
                    nn.init.xavier_uniform_(part)
                if module.bias is not None:
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

    def forward(
        self,
        src: Int[Tensor, "batch src"],
        src_mask: Bool[Tensor, "batch src"],
        tgt_in: Int[Tensor, "batch tgt"],
    ) -> Float[Tensor, "batch tgt vocab"]:
        """Logits of the next target id at every position."""
        return self.decode(tgt_in, self.start(self.encode(src, src_mask), src_mask))

    def encode(
        self, src: Int[Tensor, "batch src"], src_mask: Bool[Tensor, "batch src"]
    ) -> Float[Tensor, "batch src d_model"]:
        """The encoder's output, called memory."""
        x = self._embed(src, self.src_embedding, getattr(self, "src_positions", None), start=0)
        mask = _key_mask(src_mask)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def start(self, memory: Float[Tensor, "batch src d_model"], src_mask: Bool[Tensor, "batch src"]) -> DecoderState:
        """An empty state: the memory's keys and values, computed once a sentence."""
        caches = [
            LayerCache(*layer.cross_attention.project_memory(memory), self.arch.radius)
            for layer in self._decoder_layers()
        ]
        return DecoderState(caches, src_mask)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))

    def decode(self, tgt_in: Int[Tensor, "row tgt"], state: DecoderState) -> Float[Tensor, "row tgt vocab"]:
        """Logits at the new positions `tgt_in`, which the state takes in. Rows may be a multiple of the sentences."""
        return self.output(self.decode_features(tgt_in, state))

    def decode_features(self, tgt_in: Int[Tensor, "row tgt"], state: DecoderState) -> Float[Tensor, "row tgt d_model"]:
        """As `decode`, before the map to logits: training projects only the positions that it scores."""
        start, n_new = state.n_positions, tgt_in.shape[1]
        x = self._embed(tgt_in, self.tgt_embedding, getattr(self, "tgt_positions", None), start=start)
        radius = self.arch.radius
        n_kept = start if radius is None else min(start, radius)
        restricted = radius is not None and start == 0  # which needs no mask of all pairs
        mask = None if restricted else _causal_mask(n_new, n_kept + n_new, radius, x.device)
        src_mask = _key_mask(state.src_mask)
        for layer, cache in zip(self._decoder_layers(), state.caches, strict=True):
            x = layer(x, mask, cache, src_mask)
        state.n_positions += n_new
        return x

    def features(
        self,
        src: Int[Tensor, "batch src"],
        src_mask: Bool[Tensor, "batch src"],
        tgt_in: Int[Tensor, "batch tgt"],
        tgt_mask: Bool[Tensor, "batch tgt"],
        tgt_places: Int[Tensor, " tgt_token"],
    ) -> Float[Tensor, "tgt_token d_model"]:
        """`forward` before the map to logits at the real target positions, sentence by sentence: what a loss needs.

        tgt_places: where tgt_mask.flatten() is True. Where the kernels are ready no padding is computed: sentences lie
        end to end.
        """
        arch = self.arch
        plain = arch.positions == "learned" or arch.radius is not None
        if plain or not ready(self.output.weight):
            features = self.decode_features(tgt_in, self.start(self.encode(src, src_mask), src_mask))
            return features.flatten(0, 1).index_select(0, tgt_places)
        src_spans, tgt_spans = Spans.of(src_mask), Spans.of(tgt_mask)
        memory = self._embed_spans(src, self.src_embedding, src_spans)
        for encoder_layer in cast(list[EncoderLayer], list(self.encoder)):
            memory = encoder_layer.over_spans(memory, src_spans)
        x = self._embed_spans(tgt_in, self.tgt_embedding, tgt_spans)
        for layer in self._decoder_layers():
            x = layer.over_spans(x, memory, tgt_spans, src_spans)
        return x[: tgt_spans.n_real]

    def _kept_words(self, ids: Tensor) -> Tensor | None:
        """Which tokens word dropout leaves (Gal and Ghahramani 2016; for translation Sennrich and Zhang 2019), or None.

        Those are not scaled up: they are what they are when all are there.
        """
        rate = self.arch.word_dropout if self.training else 0.0
        return torch.rand(ids.shape, device=ids.device) >= rate if rate else None

    def _embed_spans(self, ids: Int[Tensor, "batch position"], table: nn.Embedding, spans: Spans) -> Tensor:
        if (kept := self._kept_words(ids)) is not None:
            check_range("embed", "ids", ids, 0, self.vocab_size)  # also those that are left out
            ids = ids.where(kept, -1)
        positions = self.sinusoid_rows(int(spans.places.max()) + 1)
        scale, rate = math.sqrt(self.arch.d_model), self.dropout.present_rate
        return training_ops.embed(
            spans.lay(ids), spans.places, table.weight, positions, scale=scale, dropout=rate, left_out=kept is not None
        )

    def _embed(self, ids: Tensor, table: nn.Embedding, learned: nn.Embedding | None, *, start: int) -> Tensor:
        end = start + ids.shape[1]
        if learned is None:
            positions = self.sinusoid_rows(end)[start:end]
        elif end > self.arch.max_positions:
            raise HeedError(f"a sequence of {end} positions, but max_positions={self.arch.max_positions} were learned.")
        else:
            positions = learned.weight[start:end]
        words = table(ids) * math.sqrt(self.arch.d_model)
        if (kept := self._kept_words(ids)) is not None:
            words = words * kept[..., None]
        return self.dropout(words + positions)

    def sinusoid_rows(self, n_positions: int) -> Float[Tensor, "position d_model"]:
        """The sinusoids of so many positions at least, of the weights' type, kept from call to call."""
        table, like = self._sinusoids, self.src_embedding.weight
        if len(table) < n_positions or table.dtype != like.dtype or table.device != like.device:
            n_rows = max(256, 2 ** math.ceil(math.log2(n_positions)))
            with torch.inference_mode(False):  # a table first needed by a search must serve training as well
                self._sinusoids = table = sinusoid(n_rows, self.arch.d_model).to(like)
        return table


def _causal_mask(
    n_queries: int, n_keys: int, radius: int | None, device: torch.device
) -> Bool[Tensor, "1 1 query key"] | None:
    """Position i may see itself and what lies before it, `radius` positions back at most; None if that is all."""
    if n_queries == 1 and (radius is None or n_keys <= radius + 1):
        return None
    mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)
    return (mask if radius is None else mask.triu(n_keys - n_queries - radius))[None, None]


def _key_mask(mask: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"] | None:
    """The mask over keys for every head and query; None where it hides nothing, which saves a pass over the scores."""
    if mask.is_cpu and bool(mask.all()):
        return None
    return mask[:, None, None, :]
