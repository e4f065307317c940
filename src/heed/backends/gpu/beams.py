"""The account of a search's hypotheses on the device, and the continuations that extend it.

`DeviceAccount.extend` is `beam_account.extend` in tensors of fixed shape: nothing here depends on a number that the CPU
would have to read, so a CUDA graph can hold it. Axes: place (of a sentence), beam, rank (of the n_best), tgt, choice;
row = place × beam.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

GROUP = 64  # ids of which one maximum stands for all when the best are looked for
# Columns of the logits that are computed with in fp32 at a time: of 2,048 rows they fit in an H100's L2 cache.
FP32_COLUMNS = 4096


@dataclass
class DeviceAccount:
    """A `BeamAccount` on the device, with a place for every possible sentence; `live` says which are searched.

    A sentence whose search is over is no longer live, and what was found of it stays as it is. best_ids and history
    hold `width` ids; limit_penalties: by which a log-probability is divided at the limit. broken: whether the
    log-probabilities of any live sentence were not finite.
    """

    live: Bool[Tensor, " place"]
    lengths: Int[Tensor, " place"]
    limits: Int[Tensor, " place"]
    limit_penalties: Float[Tensor, " place"]
    n_ended: Int[Tensor, " place"]
    log_probs: Float[Tensor, "place beam"]
    last: Int[Tensor, "place beam"]
    history: Int[Tensor, "place beam tgt"]
    best_scores: Float[Tensor, "place rank"]
    best_log_probs: Float[Tensor, "place rank"]
    best_lengths: Int[Tensor, "place rank"]
    best_ids: Int[Tensor, "place rank tgt"]
    broken: Bool[Tensor, ""]

    @classmethod
    def empty(cls, n_places: int, width: int, *, beam: int, n_best: int, device: torch.device) -> "DeviceAccount":
        """Without a live sentence."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            live=zeros(n_places, dtype=torch.bool),
            lengths=zeros(n_places),
            limits=zeros(n_places),
            limit_penalties=zeros(n_places, dtype=torch.float64) + 1,
            n_ended=zeros(n_places),
            log_probs=zeros(n_places, beam, dtype=torch.float64),
            last=zeros(n_places, beam),
            history=zeros(n_places, beam, width, dtype=torch.int32),
            best_scores=zeros(n_places, n_best, dtype=torch.float64),
            best_log_probs=zeros(n_places, n_best, dtype=torch.float64),
            best_lengths=zeros(n_places, n_best),
            best_ids=zeros(n_places, n_best, width, dtype=torch.int32),
            broken=zeros(dtype=torch.bool),
        )

    def by_place(self) -> dict[str, Tensor]:
        """All tensors whose first axis is the place."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "broken"}

    def view(self, n_places: int, width: int) -> "DeviceAccount":
        """The first places and ids: what is written to it is written here."""
        parts = {name: tensor[:n_places] for name, tensor in self.by_place().items()}
        parts["history"], parts["best_ids"] = parts["history"][..., :width], parts["best_ids"][..., :width]
        return DeviceAccount(**parts, broken=self.broken)

    def extend(
        self,
        log_probs: Float[Tensor, "place choice"],
        parents: Int[Tensor, "place choice"],
        ids: Int[Tensor, "place choice"],
        *,
        eos: int,
        early_stopping: bool,
        penalties: Float[Tensor, " length"],
    ) -> Int[Tensor, "place beam"]:
        """Extends every row by one id, as `beam_account.extend` for rows that compete: the row that each one was.

        The continuations of each sentence are sorted, best first. penalties: by length, as in `EndingRules`.
        """
        beam, width, n_best = self.last.shape[1], self.history.shape[2], self.best_scores.shape[1]
        self.broken |= (self.live & ~(log_probs[:, 0] > -torch.inf)).any()  # also of NaN
        self.lengths += self.live

        # The best unfinished continuations replace the rows.
        is_eos = ids == eos
        order = is_eos.int().sort(dim=1, stable=True).indices[:, :beam]
        unfinished = log_probs.masked_fill(is_eos, -torch.inf).gather(1, order)
        rows, new_ids = parents.gather(1, order), ids.gather(1, order)
        written = _of_rows(self.history, rows)
        position = (self.lengths - 1).clamp(0, width - 1)[:, None, None].expand(-1, beam, 1)
        written.scatter_(2, position, new_ids[:, :, None].int())

        # Hypotheses that end now enter the best ones; at the limit unfinished ones do, where none has ended.
        ending = is_eos[:, :beam] & (log_probs[:, :beam] > -torch.inf)
        self.n_ended += ending.sum(dim=1) * self.live
        at_limit = self.limits <= self.lengths
        cut = at_limit & ~ending.any(dim=1) & (self.best_scores[:, 0] == -torch.inf)
        candidates = torch.where(cut[:, None], unfinished, log_probs[:, :beam])
        counts = torch.where(cut[:, None], unfinished > -torch.inf, ending) & self.live[:, None]
        scores = (candidates / penalties[self.lengths][:, None]).masked_fill(~counts, -torch.inf)
        lengths = torch.where(cut, -self.lengths, self.lengths - 1)[:, None].expand(-1, beam)
        of_ended = _of_rows(self.history, parents[:, :beam])
        best = torch.cat([self.best_scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        kept = best.indices[:, :n_best]
        self.best_scores.copy_(best.values[:, :n_best])
        self.best_log_probs.copy_(torch.cat([self.best_log_probs, candidates], dim=1).gather(1, kept))
        self.best_lengths.copy_(torch.cat([self.best_lengths, lengths], dim=1).gather(1, kept))
        found_ids = torch.where(cut[:, None, None], written, of_ended)
        self.best_ids.copy_(_of_rows(torch.cat([self.best_ids, found_ids], dim=1), kept))

        # The search of a sentence is over if no row can still enter its best ones: log-probabilities only fall.
        done = at_limit | (unfinished[:, 0] / self.limit_penalties <= self.best_scores[:, -1])
        if early_stopping:
            done |= self.n_ended >= beam
        self.live &= ~done
        self.log_probs.copy_(unfinished)
        self.last.copy_(new_ids)
        self.history.copy_(written)
        return rows


def _of_rows(ids: Int[Tensor, "place row tgt"], rows: Int[Tensor, "place kept"]) -> Int[Tensor, "place kept tgt"]:
    return ids.gather(1, rows[:, :, None].expand(-1, -1, ids.shape[2]))


def best_of_rows(
    logits: Float[Tensor, "row vocab"], never: Int[Tensor, " id"], may_end: Bool[Tensor, " row"], *, eos: int, k: int
) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """The k most probable ids of each row: (their log-probabilities in fp64, best first, and the ids).

    never: the ids that no row may take; may_end: the rows that may take eos. They lose nothing of their probability.
    Changes the logits. No copy of them is made, and none of a wider type: what is computed in fp32 are FP32_COLUMNS
    columns at a time.
    """
    # Forbidden ids leave the logits, but not the sum.
    too_early = ~may_end
    hidden = torch.cat([logits[:, never], logits[:, eos, None].masked_fill(may_end[:, None], -torch.inf)], dim=1)
    logits.index_fill_(1, never, -torch.inf)
    logits[:, eos].masked_fill_(too_early, -torch.inf)

    # The largest k are among the k groups with the largest maxima, and what is left over at the end.
    n_groups = logits.shape[1] // GROUP
    groups = logits[:, : n_groups * GROUP].unflatten(1, (n_groups, GROUP))
    rest = logits[:, n_groups * GROUP :]
    if n_groups > k:
        maxima = groups.amax(dim=2)
        of_groups = maxima.topk(k, dim=1).indices
        in_groups = groups.gather(1, of_groups[:, :, None].expand(-1, -1, GROUP)).flatten(1)
        candidates = torch.cat([in_groups, rest], dim=1)
        top = candidates.topk(k, dim=1)
        group = of_groups.gather(1, (top.indices // GROUP).clamp(max=k - 1))
        in_rest = top.indices >= k * GROUP
        ids = torch.where(in_rest, top.indices + (n_groups - k) * GROUP, group * GROUP + top.indices % GROUP)
    else:
        top = logits.topk(min(k, logits.shape[1]), dim=1)
        ids = top.indices

    # log P = logit - log Σ exp.
    most = torch.maximum(top.values[:, :1], hidden.amax(dim=1, keepdim=True)).float()
    total = (hidden - most).exp().sum(dim=1, keepdim=True)
    for part in logits.split(FP32_COLUMNS, dim=1):
        total += (part - most).exp_().sum(dim=1, keepdim=True)
    return top.values.double() - (most.double() + total.double().log()), ids
