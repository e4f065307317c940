"""The sum of a step's gradients over all workers, most of it while the last backward pass still computes others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from heed.training.distributed import Workers

# Gradients that are summed at a time: so few that a backward pass has several slices, and so many that the number of
# slices costs nothing (torch's DistributedDataParallel takes 25 MB).
SLICE_BYTES = 2**25


class GradientReduction:
    """Replaces the sums of one step by those over all workers, in consecutive slices.

    buffer: gradients of the weights in their order, and behind them the step's scalars. weights: pairs of a master and
    the weight that computes. collect: called with a weight's number once its gradient is whole, before it is summed.
    output: the output projection.

    A backward pass completes the gradients in about the reverse order of the weights, so the slices go from the last
    weight to the first, and all workers start them in this order, as collectives demand. Last come the scalars and the
    output projection's own weights, whose gradients no hook announces. With two workers a sum does not depend on the
    slices; with more, its last bits may.
    """

    def __init__(
        self,
        buffer: Float[Tensor, " weight_and_4"],
        weights: Sequence[tuple[Tensor, Tensor]],
        workers: Workers,
        *,
        collect: Callable[[int], None],
        output: torch.nn.Module,
    ):
        self._weights, self._workers, self._collect = weights, workers, collect
        self._slices, self._missing = [buffer], [set[int]()]
        if workers.beside:
            self._slices, self._missing = _slices(buffer, [master for master, _ in weights], output)
        self._slice_of = {i: number for number, missing in enumerate(self._missing) for i in missing}
        self._waits: list[Callable[[], None]] = []

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """In the block is the step's last backward pass: slices whose gradients it has completed are started."""
        if not self._workers.beside:
            yield
            return
        with ExitStack() as hooks:
            for i, (_, weight) in enumerate(self._weights):
                handle = weight.register_post_accumulate_grad_hook(partial(self._complete, i))
                hooks.callback(handle.remove)
            yield

    def finish(self) -> None:
        """Starts what is left and waits for all of it: on a GPU its next operation does, not this process."""
        while len(self._waits) < len(self._slices):
            self._start_next()
        for wait in self._waits:
            wait()

    def _complete(self, i: int, _: Tensor) -> None:
        """The gradient of weight i is whole."""
        number, last = self._slice_of[i], len(self._slices) - 1
        assert number == last or number >= len(self._waits), "a gradient has changed after its sum was started"
        self._collect(i)
        self._missing[number].discard(i)
        while len(self._waits) < last and not self._missing[len(self._waits)]:
            self._start_next()

    def _start_next(self) -> None:
        self._waits.append(self._workers.start_all_reduce_(self._slices[len(self._waits)]))


def _slices(
    buffer: Float[Tensor, " weight_and_4"], masters: Sequence[Tensor], output: torch.nn.Module
) -> tuple[list[Tensor], list[set[int]]]:
    """Pieces of the buffer in the order in which they are summed, and the numbers of the weights in each of them."""
    starts = [0]
    for master in masters:
        starts.append(starts[-1] + master.numel())
    # The last piece.
    own = {id(parameter) for parameter in output.parameters()}
    n = len(masters)
    while n and id(masters[n - 1]) in own:
        n -= 1
    tail, in_tail = buffer[starts[n] :], set(range(n, len(masters)))
    # Those before it, from the end.
    pieces, members, end = list[Tensor](), list[set[int]](), n
    for i in reversed(range(n)):
        if i == 0 or (starts[end] - starts[i]) * buffer.element_size() >= SLICE_BYTES:
            pieces.append(buffer[starts[i] : starts[end]])
            members.append(set(range(i, end)))
            end = i
    return [*pieces, tail], [*members, in_tail]
