"""Work that a GPU repeats without the CPU: recorded once as a CUDA graph, then replayed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Runs before the recording, in which libraries choose kernels and allocate what they keep.
N_WARM_UPS = 2


class Captured:
    """Work on fixed memory, as one launch.

    The work must read and write the same memory each time, and may neither wait for the GPU nor take another shape. It
    runs N_WARM_UPS times before it is recorded, so it must not matter how often it runs; random generators are then
    where they were.

    pool: memory that several recordings share, which are never replayed at the same time.
    """

    def __init__(
        self, work: Callable[[], None], device: torch.device, *, pool: Any = None, n_warm_ups: int = N_WARM_UPS
    ):
        with _generators_kept(device):
            side = torch.cuda.Stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(n_warm_ups):
                    work()
            torch.cuda.current_stream(device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            _record(self._graph, work, pool, side)

    def replay(self) -> None:
        """Repeats the work on what lies in its memory now."""
        self._graph.replay()


@contextmanager
def _generators_kept(device: torch.device) -> Iterator[None]:
    """The random generators of CPU and GPU are afterwards where they were."""
    states = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        torch.cuda.set_rng_state(states[1], device)


def _record(graph: Any, work: Callable[[], None], pool: Any, stream: Any) -> None:
    """Records the work; its own error, instead of CUDA's about a recording that ended early."""
    cause: Exception | None = None
    try:
        # On a stream of the device, which need not be the current one; of this thread alone, since NCCL asks for its
        # events in another one meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            try:
                work()
            except Exception as error:
                cause = error
                raise
    except Exception:
        if cause is not None:
            raise cause from None
        raise
