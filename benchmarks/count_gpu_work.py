"""A training step's work on a GPU, counted without one: launches, bytes, compiled regions and recorded graphs.

python benchmarks/count_gpu_work.py --preset base
python benchmarks/count_gpu_work.py --preset tiny --tokens 4096 --consistency 5 --json
"""

import argparse
import itertools
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from gpu_work import counted

from heed.apps.bench.inputs import SPECIAL, random_corpus
from heed.apps.bench.training_speed import LEARNING_RATE, preset_shape
from heed.data.batches.batch import Batch
from heed.data.batches.token_batches import BatchLimits, Step, TokenBatches
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
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
    """The work of one step in one pass."""

    parts: list[PartCost]
    tokens_per_side: int  # that a pass holds
    n_src_tokens: int  # real ones, of the counted step
    n_tgt_tokens: int
    n_outside: int  # launches outside of compiled regions
    n_inside: int  # launches of compiled regions, estimated
    n_bytes: int
    n_regions: int  # compiled, each as a whole, forward and backward counted as one
    n_graphs: int  # CUDA graphs that N_BATCHES batches and Adam need


def training_cost(arch: Architecture, settings: TrainingSettings, *, vocab_size: int) -> TrainingCost:
    """Counts the second step on random sentences; the first one compiles. All in bf16, on the meta device."""
    with tempfile.TemporaryDirectory() as folder, counted() as work_count:
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
            work_count.clear()
            work = batches.workload(step)
            train_step(*(weights, optimizer, collated(step), settings), rate=LEARNING_RATE)
        shapes = {shape for step in itertools.islice(plans, N_BATCHES) for shape in passes.shapes(collated(step))}
    parts = [PartCost(name, False, 1, cost.launches, cost.bytes) for name, cost in work_count.outside.items()]
    parts += [
        PartCost(name, True, region.calls, region.calls * region.cost.launches, region.calls * region.cost.bytes)
        for name, region in work_count.regions.items()
    ]
    return TrainingCost(
        parts=parts,
        tokens_per_side=passes.n_tokens,
        n_src_tokens=work.n_src,
        n_tgt_tokens=work.n_tgt,
        n_outside=work_count.n_outside,
        n_inside=work_count.n_inside,
        n_bytes=work_count.n_bytes,
        n_regions=work_count.n_regions,
        n_graphs=len(shapes) + ADAM_GRAPHS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--tokens", type=int, help="per side and step")
    parser.add_argument("--consistency", type=float)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    arch, settings, vocab_size = preset_shape(
        given.preset,
        vocab_size=given.vocab,
        batch_tokens=given.tokens,
        precision="bf16",
        consistency=given.consistency,
        on_gpu=True,
    )
    cost = training_cost(arch, settings, vocab_size=vocab_size)
    if given.json:
        print(json.dumps(asdict(cost)))
        return
    print(
        f"{given.preset}: a step of at most {cost.tokens_per_side:,} tokens a side in bf16, counted on the meta device"
    )
    print(f"{'part':26}  {'calls':>5}  {'launches':>8}  {'GB':>6}")
    for part in cost.parts:
        calls = f"{part.calls:5}" if part.compiled else "     "
        print(f"{part.name:26}  {calls}  {part.launches:8,}  {part.bytes / 1e9:6.2f}")
    print(
        f"{cost.n_outside:,} launches outside of {cost.n_regions} compiled regions, about {cost.n_inside:,} inside; "
        f"{cost.n_bytes / 1e9:.1f} GB read and written; {cost.n_graphs} CUDA graphs for {N_BATCHES} batches"
    )
    n_tokens = cost.n_src_tokens + cost.n_tgt_tokens
    print(
        f"{cost.n_src_tokens:,} source and {cost.n_tgt_tokens:,} target tokens, {cost.n_bytes / n_tokens / 1e6:.3f} MB "
        "for each"
    )


if __name__ == "__main__":
    main()
