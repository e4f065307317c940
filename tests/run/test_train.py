"""How many processes a run takes."""

import sys

import pytest
import torch

from heed.config import validated
from heed.recipe import Recipe
from heed.run.train import n_workers
from heed.runtime.device import Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned on Linux only")
CPU = Machine(torch.device("cpu"), torch.float32, "test")


@pytest.fixture
def four_threads(monkeypatch):
    for name in ("WORLD_SIZE", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def small(*, batch: int, micro_batch: int, **model: int) -> Recipe:
    values = {
        "data": {"src": "en", "tgt": "de", "corpus": "multi30k"},
        "tokenizer": {"vocab_size": 1000},
        "model": {"d_model": 64, "d_ff": 128, "n_heads": 4, "n_layers": 2} | model,
        "training": {"batch_tgt_tokens": batch, "micro_batch_tokens": micro_batch},
    }
    return validated(Recipe, values, where="test")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (500, 1),  # less than a micro-batch
        (1000, 1),
        (2000, 2),
        (3000, 2),  # 3 would leave a thread without work
        (4000, 4),
        (9000, 4),  # no more than there are threads
    ],
)
def test_a_worker_has_at_least_a_micro_batch_and_a_thread(four_threads, batch, expected):
    assert n_workers(small(batch=batch, micro_batch=1000), CPU) == expected


def test_a_large_model_a_gpu_and_a_users_own_choice_take_one_process(four_threads, monkeypatch):
    recipe = small(batch=4000, micro_batch=1000)
    assert n_workers(small(batch=4000, micro_batch=1000, d_ff=20_000), CPU) == 1  # over 10 million parameters
    assert n_workers(recipe, Machine(torch.device("cuda"), torch.float32, "test")) == 1
    for name, value in (("WORLD_SIZE", "1"), ("OMP_PROC_BIND", "true"), ("GOMP_CPU_AFFINITY", "0-3")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert n_workers(recipe, CPU) == 1
