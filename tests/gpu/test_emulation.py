"""The emulated device itself: it refuses what a GPU refuses, sees every wait, and computes what torch computes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.emulation import CUDA, emulated_cuda

WAITING = {
    "a number is read": lambda x: x.sum().item(),
    "a condition": lambda x: bool((x > 1).any()),
    "a list": lambda x: x.tolist(),
    "a blocking copy to the CPU": lambda x: x.cpu(),
    "a copy into CPU memory": lambda x: torch.empty(3, 4).copy_(x),
    "a copy into pageable CPU memory": lambda x: torch.empty(3, 4).copy_(x, non_blocking=True),
    "a pageable copy to the device": lambda x: torch.ones(3, 4).to(CUDA, non_blocking=True),
    "a blocking copy of pinned memory": lambda x: torch.ones(3, 4).pin_memory().to(CUDA),
    "a tensor from numbers": lambda x: torch.tensor([1.0, 2.0], device=CUDA),
    "reading by a mask": lambda x: x[x > 1],
    "indices in CPU memory": lambda x: x[torch.tensor([0, 1])],
    "indices in a list": lambda x: x[[0, 1]],
    "where a mask is true": lambda x: (x > 1).nonzero(),
    "the whole device": lambda x: torch.cuda.synchronize(),
}
NOT_WAITING = {
    "a product": lambda x: x @ x.T,
    "a pinned copy": lambda x: torch.ones(3, 4).pin_memory().to(CUDA, non_blocking=True),
    "an unread copy to the CPU": lambda x: x.to("cpu", non_blocking=True),
    "indices on the device": lambda x: x[torch.arange(2, device=CUDA)],
    "a slice": lambda x: x[1:, 2].fill_(3),
    "a choice by a mask": lambda x: x.where(x > 1, 0),
}


@pytest.mark.parametrize("work", WAITING.values(), ids=WAITING)
def test_a_wait_is_counted_where_it_happens_and_refused_in_a_region_that_is_captured(work):
    with emulated_cuda(watched=Path(__file__)) as cuda:
        x = torch.arange(12.0, device=CUDA).view(3, 4)
        cuda.forget()
        work(x)
        assert len(cuda.waits) == 1 and cuda.places() == {(".", "<lambda>")}
        with (
            pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            x.mul_(2)
            work(x)
        assert not cuda.graphs and x.cpu()[0].tolist() == [0, 1, 2, 3]  # nothing was computed


@pytest.mark.parametrize("work", NOT_WAITING.values(), ids=NOT_WAITING)
def test_what_runs_by_itself_is_no_wait(work):
    with emulated_cuda(watched=Path(__file__)) as cuda:
        x = torch.arange(12.0, device=CUDA).view(3, 4)
        cuda.forget()
        work(x)
        assert not cuda.waits and cuda.operations.total() >= 1


def test_tensors_on_different_devices_and_numpy_are_refused():
    with emulated_cuda():
        x = torch.ones(3, 4, device=CUDA)
        with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
            x + torch.ones(3, 4)
        with pytest.raises(TypeError, match="can't convert cuda"):
            x.numpy()
        assert torch.equal((x + torch.tensor(2.0)).cpu(), torch.full((3, 4), 3.0))  # as on a GPU
    with pytest.raises(RuntimeError, match="after the device was closed"):
        x + x


def test_a_copy_holds_garbage_until_its_event():
    with emulated_cuda():
        x = torch.ones(2, device=CUDA)
        first = x.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        x.fill_(2)
        second, flag = x.to("cpu", non_blocking=True), (x > 1).to("cpu", non_blocking=True)
        assert first.isnan().all()
        event.synchronize()
        assert first.tolist() == [1, 1]
        assert second.isnan().all() and flag.tolist() == [False, False]
        torch.cuda.synchronize()
        assert second.tolist() == [2, 2] and flag.tolist() == [True, True]


def test_a_graph_computes_when_it_is_replayed_and_on_the_memory_that_it_was_captured_with():
    with emulated_cuda() as cuda:
        x, y = torch.ones(2, 3, device=CUDA), torch.zeros(2, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            best = (x + 1).max(dim=1)
            y[:1] += best.values[:1]
            attended = F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        assert y.tolist() == [0, 0] and best.values.isnan().all() and cuda.graphs == [graph]
        x.fill_(2)
        n_allocations = cuda.n_allocations
        for expected in (3, 6):
            graph.replay()
            assert y.tolist() == [expected, 0] and best.values.tolist() == [3, 3]
            assert attended.flatten().tolist() == [2] * 6
        assert cuda.n_allocations == n_allocations and graph.n_replays == 2
        x = torch.full((2, 3), 9.0, device=CUDA)  # elsewhere: the graph does not see it
        graph.replay()
        assert y.tolist() == [9, 0]
