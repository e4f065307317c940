"""Training passes on a GPU: forward, losses and backward over packed tokens, recorded once and replayed for each batch.

On the meta device a pass runs as it is written, so that it can be counted (benchmarks/gpu_work.py).
"""

import gc
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.backends.gpu import losses
from heed.backends.gpu.capture import Captured
from heed.backends.gpu.network import Regions, final_norm
from heed.backends.gpu.packing import NO_SENTENCES, PassInputs, PassShape, divided, fill
from heed.backends.training_protocol import ROW_MULTIPLE, PassSettings
from heed.data.batches.batch import Batch
from heed.model.transformer import Side, Transformer

log = logging.getLogger(__name__)
# Tokens whose logits exist at a time. In bf16, 16,384 with the paper's vocabulary take 1.2 GB.
LOGIT_ROWS = 16_384


@dataclass(frozen=True)
class _Kind:
    """Passes of one shape: their inputs on the GPU, and the recorded work."""

    shape: PassShape
    words: Tensor
    work: Captured | None  # None on the meta device, and on a CPU, where tests compute


class GpuPasses:
    """The passes of a run: they add losses and gradients to fp32 sums (`protocol.TrainingPasses`).

    totals: loss and negative log-likelihood, summed. Each weight has its sum of gradients as `main_grad`.
    """

    def __init__(self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings, regions: Regions):
        self._model, self._totals, self._settings, self._regions = model, totals, settings, regions
        self._parameters = list(model.parameters())
        self._device = totals.device
        self._shape: PassShape | None = None
        self._kinds: dict[PassShape, _Kind] = {}
        self._tables: dict[Side, Tensor] = {}
        self._staging = _Staging()
        self._pool: Any = None
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    @property
    def n_tokens(self) -> int:
        """Real tokens a side that a pass holds; 0 before the first."""
        return 0 if self._shape is None else self._shape.n_tokens

    def reserve(self, n_tokens: int, longest: int) -> None:
        """Makes passes for `n_tokens` real tokens a side, of sentences of at most `longest`; a GPU records anew."""
        shape = PassShape.for_tokens(n_tokens, longest)
        if shape != self._shape:
            self.release()
            self._shape = shape

    def release(self) -> None:
        """Gives back the memory of all recorded passes."""
        self._kinds.clear()
        self._tables.clear()
        self._pool = None

    def run(self, batches: Sequence[Batch], *, scale: float) -> None:
        """Adds the losses of these batches to the sums, and their gradients times `scale`."""
        for part, shape in self._parts(batches):
            kind = self._kind(shape)
            self._send(part, kind, scale)
            self._run(kind)

    def run_as_written(self, batches: Sequence[Batch], *, scale: float) -> None:
        whole = Batch.joined(batches)
        shape = PassShape.for_tokens(max(len(whole.src), len(whole.tgt_out)), whole.longest)
        self._keep_position_tables(shape)
        words = torch.empty(shape.n_words, dtype=torch.int32, device=self._device)
        for part in divided(whole, shape):
            self._send(part, _Kind(shape, words, None), scale)
            self._compute(PassInputs.of(words, shape), shape, Regions(lambda name: None))

    def run_once(self, batches: Sequence[Batch], *, scale: float) -> None:
        self.release()  # what is recorded for another mode draws other dropout
        try:
            self.run(batches, scale=scale)
        finally:
            self.release()

    def shapes(self, batches: Sequence[Batch]) -> set[Hashable]:
        return {shape for _, shape in self._parts(batches)}

    def n_rows(self, batches: Sequence[Batch]) -> int:
        """Rows a side that the passes of these batches compute."""
        return sum(shape.capacity for _, shape in self._parts(batches))

    def _parts(self, batches: Sequence[Batch]) -> list[tuple[Batch, PassShape]]:
        """The sentences of each pass that these batches take, and its shape."""
        whole = Batch.joined(batches)
        if self._shape is None or whole.longest > self._shape.longest:
            # Nobody has reserved, or less: as a batch of this size needs.
            self.reserve(max(len(whole.src), len(whole.tgt_out), self.n_tokens), whole.longest)
        shape = cast(PassShape, self._shape)
        return [(part, shape.narrower(len(part.src_lengths))) for part in divided(whole, shape)]

    def halve(self) -> bool:
        """Takes half as many tokens a pass from now on; False if one sentence is all that a pass holds."""
        shape = self._shape
        if shape is None or shape.n_tokens // 2 < shape.longest:
            return False
        half = shape.n_tokens // 2, shape.longest
        if PassShape.for_tokens(*half).capacity >= shape.capacity:  # capacities are multiples of ROW_MULTIPLE
            return False
        self.reserve(*half)
        gc.collect()  # an error's traceback may hold a failed pass's tensors in a cycle
        return True

    def _kind(self, shape: PassShape) -> _Kind:
        """Passes of this shape, recorded when first asked for."""
        if shape not in self._kinds:
            self._keep_position_tables(shape)
            words = torch.empty(shape.n_words, dtype=torch.int32, device=self._device)
            self._kinds[shape] = _Kind(shape, words, self._record(words, shape))
        return self._kinds[shape]

    def _keep_position_tables(self, shape: PassShape) -> None:
        """Keeps the tables that passes of this shape read: a longer one for a validation does not take their place."""
        is_learned, n = self._model.arch.positions == "learned", shape.longest
        sides: tuple[Side, Side] = ("src", "tgt")
        for side in sides:
            if side not in self._tables or len(self._tables[side]) < n:
                table = self._model.position_table(side, n)
                self._tables[side] = table if is_learned else table[:n]

    def _record(self, words: Int[Tensor, " word"], shape: PassShape) -> Captured | None:
        if self._device.type != "cuda":
            return None
        # The warm-ups compute padding alone, which adds zeros to the sums.
        self._send(NO_SENTENCES, _Kind(shape, words, None), scale=0.0)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        inputs = PassInputs.of(words, shape)
        return Captured(lambda: self._compute(inputs, shape), self._device, pool=self._pool, stream=self._stream)

    def _send(self, part: Batch, kind: _Kind, scale: float) -> None:
        """One copy to the GPU, which runs beside its computation."""
        with self._staging.lent(kind.shape.n_words, self._device) as pinned:
            fill(PassInputs.of(pinned, kind.shape), part, kind.shape, scale=scale)
            kind.words.copy_(pinned, non_blocking=True)

    def _run(self, kind: _Kind) -> None:
        if kind.work is None:
            self._compute(PassInputs.of(kind.words, kind.shape), kind.shape)
        else:
            kind.work.replay()

    def _compute(self, inputs: PassInputs, shape: PassShape, regions: Regions | None = None) -> None:
        """Forward, losses, backward, and the gradients' sums: what is recorded."""
        with torch.enable_grad():
            features, targets, weights = self._forward(inputs, shape, regions or self._regions)
        with torch.no_grad():
            gradient = self._losses(features.detach(), targets, weights)
        gradients = torch.autograd.grad(features, self._parameters, gradient, allow_unused=True)
        with torch.no_grad():
            sums_and_gradients = [
                (_sum_of(p), g) for p, g in zip(self._parameters, gradients, strict=True) if g is not None
            ]
            # Together: _foreach_add_ of bf16 to fp32 would be a launch for each weight.
            for total, of_run in _runs(sums_and_gradients):
                total.add_(torch.cat(of_run))

    def _forward(self, inputs: PassInputs, shape: PassShape, regions: Regions) -> tuple[Tensor, Tensor, Tensor]:
        """(features of the target's tokens, their targets, their weights in the gradient), of one or two passes."""
        model, longest = self._model, shape.longest
        src, tgt_in = inputs.src, inputs.tgt_in
        src_positions, tgt_positions = inputs.src_positions, inputs.tgt_positions
        src_starts, tgt_starts = inputs.src_starts, inputs.tgt_starts
        if twice := self._settings.n_passes == 2:
            src, tgt_in, src_positions, tgt_positions = (
                torch.cat([x, x]) for x in (src, tgt_in, src_positions, tgt_positions)
            )
            src_starts, tgt_starts = (torch.cat([x, x[1:] + shape.capacity]) for x in (src_starts, tgt_starts))
        for starts in (src_starts, tgt_starts):
            # Else a region would be compiled anew for the second number of sequences.
            torch._dynamo.maybe_mark_dynamic(starts, 0)
        embed = partial(regions.embed, dropout=model.dropout.effective_rate)
        x = embed(
            *(model.src_embedding.weight, self._tables["src"], src, src_positions),
            keep_mask=self._kept(src, twice=twice),
            zero_start=False,
        )
        for layer in model.encoder:
            x = regions.encoder_layer(layer, x, src_starts, longest)
        memory = final_norm(model.encoder_norm, x)
        y = embed(
            *(model.tgt_embedding.weight, self._tables["tgt"], tgt_in, tgt_positions),
            keep_mask=self._kept(tgt_in, twice=twice),
            zero_start=model.arch.decoder_start == "zero",
        )
        for layer in model.decoder:
            y = regions.decoder_layer(layer, y, memory, starts=tgt_starts, memory_starts=src_starts, longest=longest)
        real = torch.arange(shape.capacity, device=self._device) < inputs.n_tgt_tokens
        return final_norm(model.decoder_norm, y), inputs.tgt_out, real * inputs.scale

    def _kept(self, ids: Int[Tensor, " token"], *, twice: bool) -> Bool[Tensor, " token"] | None:
        """Which embeddings stay: by word dropout, and by cutoff in the second pass."""
        kept = None
        if cutoff := self._settings.cutoff if twice and self._model.training else 0.0:
            drawn = torch.rand(len(ids) // 2, device=self._device) >= cutoff
            kept = torch.cat([torch.ones_like(drawn), drawn])
        return self._model.word_dropout_mask(ids, kept)

    def _losses(
        self,
        features: Float[Tensor, "row d_model"],
        targets: Int[Tensor, " token"],
        weights: Float[Tensor, " token"],
    ) -> Float[Tensor, "row d_model"]:
        """The features' gradient; the losses and the output projection's gradients are added to their sums."""
        output, settings = self._model.output, self._settings
        n, n_passes = len(targets), settings.n_passes
        # As few chunks as LOGIT_ROWS allows, of one size but the last.
        passes = features.view(n_passes, n, -1)
        gradient = torch.empty_like(passes)
        n_rows = -(-n // -(-n * n_passes // LOGIT_ROWS))
        # Rows begin at multiples of 128 bytes, so that the losses' kernels move 16 at a time at any vocabulary.
        n_columns = output.out_features + -output.out_features % ROW_MULTIPLE
        buffer = features.new_empty(n_rows * n_passes, n_columns)[:, : output.out_features]
        loss_sums = torch.empty(n * 2, dtype=torch.float32, device=self._device)
        for start in range(0, n, n_rows):
            rows = slice(start, min(start + n_rows, n))
            x = passes[0, rows] if n_passes == 1 else passes[:, rows].flatten(0, 1)
            logits = buffer[: len(x)]
            if output.bias is None:
                torch.mm(x, output.weight.T, out=logits)
            else:
                torch.addmm(output.bias, x, output.weight.T, out=logits)
            of_chunk = loss_sums[2 * rows.start : 2 * rows.stop].view(2, -1)
            losses.loss_(
                *(logits, targets[rows], weights[rows], of_chunk),
                label_smoothing=settings.label_smoothing,
                consistency=settings.consistency,
            )
            if n_passes == 1:
                torch.mm(logits, output.weight, out=gradient[0, rows])
            else:
                gradient[:, rows] = torch.mm(logits, output.weight).view(n_passes, -1, gradient.shape[2])
            _sum_of(output.weight).add_(torch.mm(logits.T, x))
            if output.bias is not None:
                _sum_of(output.bias).add_(logits.sum(0, dtype=torch.float32))
            self._totals.add_(of_chunk.sum(1))
        return gradient.flatten(0, 1)


def _sum_of(parameter: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The fp32 sum of a weight's gradients."""
    total: Tensor = cast(Any, parameter).main_grad
    return total


def _runs(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, list[Tensor]]]:
    """(sums in one piece of memory, their flat gradients) of each run of neighbours among sums with gradients."""
    runs: list[list[tuple[Tensor, Tensor]]] = []
    for total, gradient in pairs:
        last = runs[-1][-1][0] if runs else None
        # Sums that are no views of a common buffer, or whose neighbour has no gradient here, begin a run.
        follows = last is not None and last._base is not None and last._base is total._base
        if last is not None and follows and last.storage_offset() + last.numel() == total.storage_offset():
            runs[-1].append((total, gradient))
        else:
            runs.append([(total, gradient)])
    return [
        (run[0][0].as_strided((sum(g.numel() for _, g in run),), (1,)), [g.flatten() for _, g in run]) for run in runs
    ]


class _Staging:
    """Pinned memory from which inputs are copied; a piece is used again once the GPU has read it."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, Any]] = []

    def lent(self, n_words: int, device: torch.device) -> "_Loan":
        if device.type != "cuda":
            return _Loan(torch.empty(n_words, dtype=torch.int32), None, device)
        for piece, read in self._pieces:
            if len(piece) == n_words and read.query():
                return _Loan(piece, read, device)
        piece, read = torch.empty(n_words, dtype=torch.int32).pin_memory(), torch.cuda.Event()
        self._pieces.append((piece, read))
        return _Loan(piece, read, device)


class _Loan:
    """A piece of pinned memory, until the copy from it that is queued in the block has run."""

    def __init__(self, piece: Int[Tensor, " word"], read: Any, device: torch.device):
        self._piece, self._read, self._device = piece, read, device

    def __enter__(self) -> Tensor:
        return self._piece

    def __exit__(self, *_: object) -> None:
        if self._read is not None:
            self._read.record(torch.cuda.current_stream(self._device))
