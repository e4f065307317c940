"""Work that a GPU repeats without the CPU: recorded once as a CUDA graph, then replayed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# Runs before the recording, in which libraries choose kernels and allocate what they keep.
N_WARM_UPS = 2
# PyTorch allows one recording at a time in a process; threads may translate, or train, beside each other.
RECORDING = threading.RLock()


class Captured:
    """Work on fixed memory, as one launch.

    The work must read and write the same memory each time, and may neither wait for the GPU nor take another shape. It
    runs N_WARM_UPS times before it is recorded, so it must not matter how often it runs; random generators are then
    where they were.

    pool: memory that several recordings share, which are never replayed at the same time. stream: where the work is
    recorded; memory of a pool is shared by recordings of one stream only.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        *,
        pool: Any = None,
        stream: Any = None,
        n_warm_ups: int = N_WARM_UPS,
    ):
        with RECORDING, _generators_kept(device):
            side = torch.cuda.Stream(device) if stream is None else stream
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(n_warm_ups):
                    work()
            torch.cuda.current_stream(device).wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            record(self._graph, work, device, pool=pool, stream=side)

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


def record(graph: Any, work: Callable[[], None], device: torch.device, *, pool: Any, stream: Any) -> None:
    """Records the work; its own error, instead of CUDA's about a recording that ended early.

    After an error this thread's stream and the generator are in use as before: torch.cuda.graph may leave both as they
    were in the recording.
    """
    cause: Exception | None = None
    # The device need not be the current one.
    with RECORDING, torch.cuda.device(device):
        before = torch.cuda.current_stream(device)
        try:
            # Of this thread alone, since NCCL asks for its events in another one meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                try:
                    work()
                except Exception as error:
                    cause = error
                    raise
        except Exception:
            torch.cuda.set_stream(before)
            _end_recording_of_generator(device)
            if cause is not None:
                raise cause from None
            raise
        finally:
            cause = None  # its traceback holds this frame, and so would keep the work's tensors in memory


def _end_recording_of_generator(device: torch.device) -> None:
    """Makes the GPU's generator draw again if a failed recording has left it waiting for that recording's end."""
    state = torch.cuda.get_rng_state(device)
    try:
        torch.rand(1, device=device)
    except RuntimeError:
        # A copy of its state is not part of any recording. Graphs that drew from the old one can no longer be replayed.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        with suppress(RuntimeError):
            generator.graphsafe_set_state(generator.clone_state())
    torch.cuda.set_rng_state(state, device)
