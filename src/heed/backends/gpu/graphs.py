"""CUDA graphs of a search's step: one launch in place of several hundred."""

import logging
from collections.abc import Callable, Hashable

import torch

from heed.backends.gpu.capture import record

log = logging.getLogger(__name__)


class StepGraphs:
    """Runs a step's operations, from its third time on as a graph; a step has a graph for each of its shapes.

    The operations must read and write tensors that stay where they are until `forget`, and ask the device for nothing.
    The first time of a shape runs them one by one, which loads what they need; where a graph cannot be captured, all
    further ones do, and one line says so. Without a GPU nothing is captured.
    """

    def __init__(self, device: torch.device):
        self._device, self._captures = device, device.type == "cuda"
        # Its own, since graphs of one stream share a workspace, which goes when one search's graphs do.
        self._stream = torch.cuda.Stream(device) if self._captures else None
        self.forget()

    def forget(self) -> None:
        """The tensors have moved: all graphs are captured anew."""
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._ran: set[Hashable] = set()
        # Another pool: PyTorch takes no graph into one whose graphs are all gone while any of its memory is in use.
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None

    def run(self, shape: Hashable, step: Callable[[], None]) -> None:
        """Runs the step; `shape` names all that decides which operations it consists of."""
        if shape not in self._graphs and shape in self._ran and self._captures:
            self._capture(shape, step)
        if shape in self._graphs:
            self._graphs[shape].replay()
        else:
            step()
            self._ran.add(shape)

    def _capture(self, shape: Hashable, step: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            record(graph, step, self._device, pool=self._pool, stream=self._stream)
        except RuntimeError as error:
            self._captures = False
            reason = str(error).partition("\n")[0].removesuffix(".")
            log.warning("The search runs without CUDA graphs, more slowly: capturing a step failed (%s).", reason)
        else:
            self._graphs[shape] = graph
