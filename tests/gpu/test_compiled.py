"""torch.compile takes the network as it runs on a GPU: one graph, whatever the lengths of a batch."""

import subprocess
import sys

import pytest

# On the meta device, whose tensors take the branches of a GPU's; the tests' checks of shapes, which are no part of the
# package, would break the graph, so this is a process of its own.
PROGRAM = """
import sys
import torch
from torch._dynamo.utils import counters
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer

def batch(n_sentences, n_src, n_tgt):
    ones = lambda *shape, dtype=torch.int64: torch.ones(shape, dtype=dtype, device="meta")
    src_mask, tgt_mask = (ones(n_sentences, n, dtype=torch.bool) for n in (n_src, n_tgt))
    places = ones(n_sentences * n_tgt - 1)
    return ones(n_sentences, n_src), src_mask, ones(n_sentences, n_tgt), tgt_mask, places

options = eval(sys.argv[1])
with torch.device("meta"):
    arch = Architecture(n_layers=1, d_model=32, d_ff=64, n_heads=4, dropout=0.1, attention_dropout=0.1, **options)
    model = Transformer(arch, 101).train()
model.position_table("src", 256)

def target_features(src, src_mask, tgt_in, tgt_mask, places):
    state = model.start(model.encode(src, src_mask), src_mask)
    return model.decode_features(tgt_in, state).flatten(0, 1).index_select(0, places)

features = torch.compile(target_features, backend="eager", dynamic=True, fullgraph=True)
for shape in ((4, 9, 11), (5, 8, 13)):
    features(*batch(*shape)).sum().backward()
n_graphs = counters["stats"]["unique_graphs"]
for shape in ((6, 20, 12), (3, 30, 31), (9, 100, 70)):
    features(*batch(*shape)).sum().backward()
print(n_graphs, counters["stats"]["unique_graphs"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.soak, id="sinusoid"),
        pytest.param({"positions": "learned", "share": "none", "d_k": 5, "d_v": 7}, id="learned"),
    ],
)
def test_further_shapes_of_a_batch_compile_no_further_graph(options):
    command = [sys.executable, "-c", PROGRAM, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    after_two_shapes, after_five = map(int, done.stdout.split())
    assert 1 <= after_two_shapes <= 2 and after_five == after_two_shapes


# The passes of a GPU on a CPU, whose attention is the tests' own; their regions are compiled by a backend that changes
# nothing.
PASSES = """
import tests.gpu.losses, tests.gpu.varlen
import torch
from torch._dynamo.utils import counters
from heed.backends.gpu.network import Regions
from heed.backends.gpu.passes import GpuPasses
from heed.backends.training_protocol import PassSettings
from heed.data.batches.batch import make_batch
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.text.tokenizer import SpecialIds
from heed.training.step import MasterWeights

model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4, dropout=0.0), 101)
weights = MasterWeights(model, Machine(torch.device("cpu"), torch.bfloat16, "test"))
weights.model.train()
settings = PassSettings(0.1)
passes = GpuPasses(weights.model, weights.sums.scalars[:2], settings, Regions(lambda name: "eager"))
passes.reserve(400, 40)
shapes, n_graphs = set(), []
for n_sentences, length in ((10, 30), (100, 2)):
    batch = make_batch([([5] * length, [6] * length)] * n_sentences, SpecialIds())
    shapes |= passes.shapes([batch])
    passes.run([batch], scale=1.0)
    n_graphs.append(counters["stats"]["unique_graphs"])
print(len(shapes), *n_graphs)
"""


@pytest.mark.slow
def test_passes_of_another_number_of_sequences_compile_no_further_graph():
    done = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    n_shapes, of_first, of_both = map(int, done.stdout.split())
    assert n_shapes == 2 and of_both == of_first > 0
