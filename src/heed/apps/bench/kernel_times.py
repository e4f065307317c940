"""Each kernel's time beside that of PyTorch's operations, at the shapes of four models."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from heed.apps.bench.inputs import shape_of
from heed.backends.kernels import kernels_report, timed_kernels
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.runs.recipe import read_preset, read_recipe
from heed.training.loss import consistent_loss_, smoothed_loss_

SHAPES = ("tiny", "recipe", "base", "big")
RECIPE = "multi30k-en-de"  # the model of `recipe`
LEAST = 0.97  # of the speed of PyTorch's operations: a kernel below it loses
MIN_ROUNDS = 5


@dataclass(frozen=True)
class KernelTime:
    """Medians of runs in turns."""

    shape: str
    use: str
    kernel: str
    size: str
    kernel_seconds: float
    plain_seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast as PyTorch's operations the kernel is."""
        return self.plain_seconds / self.kernel_seconds

    @property
    def loses(self) -> bool:
        return self.speedup < LEAST

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"speedup": self.speedup, "loses": self.loses}


def kernel_times(shapes: Sequence[str] = SHAPES, *, seconds: float = 0.3) -> Iterator[KernelTime]:
    """The times of every kernel, each measured for `seconds`. HeedError where there are no kernels, or no such
    shape."""
    if unknown := [name for name in shapes if name not in SHAPES]:
        raise HeedError(f"--shape {unknown[0]}: expected {', '.join(SHAPES)}.")
    if not (report := kernels_report()).usable:
        raise HeedError(f"no kernels to measure: {report.state}; HEED_KERNELS=1 takes them all the same.")
    for shape in shapes:
        arch, vocab_size = _model(shape)
        for case in timed_kernels(arch, vocab_size, plain_losses=(smoothed_loss_, consistent_loss_)):
            kernel, plain = _in_turns(case.kernel, case.plain, seconds)
            yield KernelTime(shape, case.use, case.name, case.size, kernel, plain)


def _model(shape: str) -> tuple[Architecture, int]:
    if shape == "recipe":
        recipe = read_recipe(RECIPE)
        return recipe.model, recipe.tokenizer.vocab_size
    return shape_of(read_preset(shape, where="--shape"), preset=shape, vocab_size=None)


def _in_turns(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The median seconds of each: they run one after the other, so that whatever disturbs one disturbs the other."""
    works = (first, second)
    times: tuple[list[float], list[float]] = ([], [])
    n = 0
    end = time.perf_counter() + seconds
    while n <= MIN_ROUNDS or time.perf_counter() < end:
        for work, taken in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            if n:  # the first round allocates memory and prepares
                taken.append(time.perf_counter() - started)
        n += 1
    return statistics.median(times[0]), statistics.median(times[1])
