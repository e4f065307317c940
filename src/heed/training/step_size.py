"""The size of a step: its real tokens, and the rows that the machine computes for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from heed.backends.dispatch import backend_for
from heed.backends.training_protocol import ROW_MULTIPLE
from heed.data.batches.batch import Batch
from heed.data.batches.token_batches import Step, TokenBatches
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights

N_SAMPLED = 20  # steps, of which one differs little from another


@dataclass(frozen=True)
class StepSize:
    """Means of some steps: special symbols count, and with `consistency` each token counts once."""

    n_src_tokens: int
    n_tgt_tokens: int
    n_src_rows: int
    n_tgt_rows: int
    n_passes: float

    def __str__(self) -> str:
        rows = self.n_src_rows + self.n_tgt_rows
        share = (self.n_src_tokens + self.n_tgt_tokens) / rows
        return (
            f"{self.n_src_tokens:,} source and {self.n_tgt_tokens:,} target tokens a step in {self.n_passes:.3g} "
            f"pass{'' if self.n_passes == 1 else 'es'}; of {rows:,} computed rows, {share:.0%} are tokens"
        )


def step_size(batches: TokenBatches, steps: list[Step], weights: MasterWeights, settings: TrainingSettings) -> StepSize:
    """The mean size of the first N_SAMPLED of these steps, all workers together."""
    steps = steps[:N_SAMPLED]
    works = [batches.workload(step) for step in steps]
    divided = [batches.passes(step, padded=weights.computes_padding(settings)) for step in steps]
    rows = [_n_rows([batches.collate(rows) for rows in passes], weights, settings) for passes in divided]
    return StepSize(
        n_src_tokens=round(fmean(work.n_src for work in works)),
        n_tgt_tokens=round(fmean(work.n_tgt for work in works)),
        n_src_rows=round(fmean(n_src for n_src, _ in rows)),
        n_tgt_rows=round(fmean(n_tgt for _, n_tgt in rows)),
        n_passes=fmean(map(len, divided)),
    )


def _n_rows(batches: Sequence[Batch], weights: MasterWeights, settings: TrainingSettings) -> tuple[int, int]:
    """Rows of both sides that these passes compute."""
    if (passes := weights.passes(settings)) is not None:
        n = passes.n_rows(batches)
        return n, n
    padded = backend_for(weights.model).computes_padding

    def n_computed(lengths: NDArray[np.int64]) -> int:
        n = int(lengths.sum())
        return len(lengths) * int(lengths.max()) if padded else n + ROW_MULTIPLE - n % ROW_MULTIPLE

    return sum(n_computed(batch.src_lengths) for batch in batches), sum(n_computed(b.tgt_lengths) for b in batches)
