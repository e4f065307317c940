"""What the tests of the GPU's code share: the device, Heed without its CPU kernels, and how to take training steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from heed.data.batches.batch import Batch
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.data.corpus.shard import ParallelCorpus, write_corpus
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.training.distributed import Workers
from heed.training.memory_probe import MemoryProbe
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, QueuedStep, train_step
from tests.conftest import SPECIAL
from tests.gpu import losses, varlen
from tests.gpu.emulation import EmulatedCuda, WaitCounter, emulated_cuda
from tests.gpu.real import real_cuda

assert losses.REGISTERED and varlen.REGISTERED
Gpu = Callable[[], AbstractContextManager[WaitCounter]]
CPU = torch.device("cpu")
VOCAB_SIZE = 50
SETTINGS = TrainingSettings(batch_src_tokens=600, batch_tgt_tokens=600, micro_batch_tokens=300)


@pytest.fixture(scope="module", autouse=True)
def no_kernels() -> Iterator[None]:
    """The CPU's numbers are PyTorch's own here: the kernels add in another order and draw other dropout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heed.backends.cpu.search.usable", lambda: False)
        patch.setenv("HEED_COMPILE", "0")  # torch.compile knows no emulated device
        yield


GPUS: dict[str, Gpu] = {"emulated": emulated_cuda} | ({"real": real_cuda} if torch.cuda.is_available() else {})


@pytest.fixture(params=GPUS.values(), ids=GPUS)
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """Opens a GPU for a block: the emulated one, and a real one where there is one."""
    return request.param


@pytest.fixture
def cuda(gpu: Gpu) -> Iterator[WaitCounter]:
    with gpu() as device:
        yield device


@pytest.fixture
def emulated() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device:
        yield device


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> ParallelCorpus:
    """Random pairs of 2 to 9 ids a side."""
    generator = torch.Generator().manual_seed(0)

    def ids() -> list[int]:
        length = int(torch.randint(2, 10, (), generator=generator))
        return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()

    folder = tmp_path_factory.mktemp("gpu") / "corpus"
    return write_corpus(folder, [(ids(), ids()) for _ in range(400)], vocab_size=VOCAB_SIZE)


def architecture(**changes: object) -> Architecture:
    values = {"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 4, "dropout": 0.0} | changes
    return Architecture.model_validate(values)


@dataclass
class Training:
    """A model in training, step by step."""

    weights: MasterWeights
    optimizer: Adam
    batches: TokenBatches
    settings: TrainingSettings
    machine: Machine

    @classmethod
    def begin(
        cls, corpus: ParallelCorpus, arch: Architecture, device: torch.device, dtype: torch.dtype = torch.float32,
        settings: TrainingSettings = SETTINGS,
    ) -> "Training":  # fmt: skip
        """From the same first weights on every device."""
        torch.manual_seed(1)
        machine = Machine(device, dtype, "test")
        weights = MasterWeights(Transformer(arch, VOCAB_SIZE), machine)
        n_src, n_tgt = settings.batch_src_tokens, settings.batch_tgt_tokens
        limits = BatchLimits(n_src, n_tgt, settings.micro_batch_tokens or n_tgt, settings.seed)
        batches = TokenBatches(corpus, SPECIAL, limits)
        return cls(weights, Adam(weights.masters.parameters(), settings), batches, settings, machine)

    def fit(self) -> None:
        """Makes the micro-batches as small as the device's memory asks for."""
        probe = MemoryProbe(self.weights, self.optimizer, self.machine, Workers(), self.settings)
        self.batches = probe.largest_fitting(self.batches)

    def batch(self, number: int) -> list[Batch]:
        """The micro-batches of a step, on the CPU; after an epoch's last its first come again."""
        plan = self.batches.plan(0)
        padded = self.weights.computes_padding(self.settings)
        return [self.batches.collate(rows) for rows in self.batches.passes(plan[number % len(plan)], padded=padded)]

    def step(self, batches: list[Batch]) -> QueuedStep:
        return train_step(*(self.weights, self.optimizer, batches, self.settings), rate=1e-3)

    def losses(self, n_steps: int) -> list[float]:
        """Of the first steps: each the sum over the target tokens."""
        return [float(self.step(self.batch(number)).loss) for number in range(n_steps)]

    def parameters(self) -> dict[str, Tensor]:
        """The weights as they are now, on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.weights.masters.named_parameters()}
