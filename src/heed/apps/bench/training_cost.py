"""A training step's work on a GPU, counted without one: launches, bytes, compiled regions and recorded graphs."""

import itertools
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from heed.apps.bench.inputs import SPECIAL, random_corpus
from heed.apps.bench.training import LEARNING_RATE
from heed.backends.kernels import counted_work
from heed.data.batches.batch import Batch
from heed.data.batches.token_batches import BatchLimits, Step, TokenBatches
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.training.distributed import ALONE
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, train_step

META = Machine(torch.device("meta"), torch.bfloat16, "counted")
N_BATCHES = 200  # whose passes are recorded
ADAM_GRAPHS = 1


@dataclass(frozen=True)
class PartCost:
    """A part of the step: its launches, how often it runs, and the bytes that all of them read and write.

    compiled: whether it is a region of torch.compile, whose launches are estimated.
    """

    name: str
    compiled: bool
    calls: int
    launches: int
    bytes: int


@dataclass(frozen=True)
class TrainingCost:
    """The result of `heed bench train --count`: of one step in one pass."""

    parts: list[PartCost]
    tokens_per_side: int  # that a pass holds
    n_src_tokens: int  # real ones, of the counted step
    n_tgt_tokens: int
    n_outside: int  # launches outside of compiled regions
    n_inside: int  # launches of compiled regions, estimated
    n_bytes: int
    n_regions: int  # compiled, each as a whole, forward and backward counted as one
    n_graphs: int  # CUDA graphs that N_BATCHES batches and Adam need

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def training_cost(arch: Architecture, settings: TrainingSettings, *, vocab_size: int) -> TrainingCost:
    """Counts the second step on random sentences; the first one compiles. All in bf16, on the meta device."""
    with tempfile.TemporaryDirectory() as folder, counted_work() as found:
        # A step in one pass, as on a GPU with enough memory.
        with META.device:
            model = Transformer(arch, vocab_size).train()
        weights = MasterWeights(model, META)
        optimizer = Adam(weights.masters.parameters(), settings)
        tokens = max(settings.batch_src_tokens, settings.batch_tgt_tokens)
        batches = TokenBatches(
            random_corpus(Path(folder) / "corpus", vocab_size, n_tokens=10 * tokens),
            SPECIAL,
            BatchLimits(settings.batch_src_tokens, settings.batch_tgt_tokens, tokens, seed=1),
        )
        if (passes := weights.passes(settings)) is None:
            raise AssertionError("the meta device has passes")
        passes.reserve(batches.pass_tokens, batches.longest)
        plans = itertools.chain.from_iterable(batches.plan(epoch) for epoch in itertools.count())

        def collated(step: Step) -> list[Batch]:
            return [batches.collate(rows) for rows in batches.passes(step, padded=False)]

        for step in itertools.islice(plans, 2):
            found.clear()
            work = batches.workload(step)
            train_step(*(weights, optimizer, collated(step), settings, META, ALONE), rate=LEARNING_RATE)
        shapes = {shape for step in itertools.islice(plans, N_BATCHES) for shape in passes.shapes(collated(step))}
    parts = [PartCost(name, False, 1, cost.launches, cost.bytes) for name, cost in found.outside.items()]
    parts += [
        PartCost(name, True, region.calls, region.calls * region.cost.launches, region.calls * region.cost.bytes)
        for name, region in found.regions.items()
    ]
    return TrainingCost(
        parts=parts,
        tokens_per_side=passes.n_tokens,
        n_src_tokens=work.n_src,
        n_tgt_tokens=work.n_tgt,
        n_outside=found.n_outside,
        n_inside=found.n_inside,
        n_bytes=found.n_bytes,
        n_regions=found.n_regions,
        n_graphs=len(shapes) + ADAM_GRAPHS,
    )
