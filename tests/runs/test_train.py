"""How many processes a run takes, what it refuses before it trains, and what its card and its scores are of."""

import sys

import pytest
import torch

import heed
from heed.config import validated
from heed.errors import HeedError
from heed.model_folder import read_config
from heed.runs.recipe import Recipe, read_recipe
from heed.runs.train import n_workers
from heed.runtime.device import Machine
from heed.runtime.manifest import seal
from tests.runs.test_start_from import RECIPE, write_recipe

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned on Linux only")
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


@on_linux
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


@on_linux
def test_a_large_model_a_gpu_and_a_users_own_choice_take_one_process(four_threads, monkeypatch):
    recipe = small(batch=4000, micro_batch=1000)
    assert n_workers(small(batch=4000, micro_batch=1000, d_ff=20_000), CPU) == 1  # over 10 million parameters
    assert n_workers(recipe, Machine(torch.device("cuda"), torch.float32, "test")) == 1
    for name, value in (("WORLD_SIZE", "1"), ("OMP_PROC_BIND", "true"), ("GOMP_CPU_AFFINITY", "0-3")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert n_workers(recipe, CPU) == 1


SMALL = "[model]\nn_layers = 1\nd_model = 16\nd_ff = 24\nn_heads = 2\n"
SCRATCH = RECIPE.replace('start_from = "given"\n', "") + SMALL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["model.max_positions=40"], "news, line 2: .* positions, but model.max_positions is 40"),
        (["model.max_positions=40", "decoding.max_extra_tokens=50"], "max_positions=40 leaves no room for a target"),
    ],
)
def test_learned_positions_that_do_not_suffice_show_before_training(tmp_path, options, message):
    recipe = write_recipe(tmp_path, SCRATCH + 'positions = "learned"\n')
    long = "one\n" + 60 * "one " + "\n"
    (tmp_path / "news").write_text(long, encoding="utf-8")
    added = [f'data.added=["{tmp_path}/news", "{tmp_path}/news"]'] if len(options) == 1 else []
    with pytest.raises(HeedError, match=message):
        heed.train(read_recipe(recipe, [*options, *added]), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_the_machine_on_the_card_is_the_one_that_trained(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path, SCRATCH))
    heed.train(recipe, tmp_path / "run")
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("2")
    config = checkpoint / "config.json"
    trained_on = read_config(checkpoint).card.trained_on
    config.write_text(config.read_text().replace(trained_on["machine"], "another"), encoding="utf-8")
    seal(checkpoint)
    heed.train(recipe, tmp_path / "run")  # averages and evaluates again
    assert read_config(tmp_path / "run" / "model").card.trained_on["machine"] == "another"


@pytest.mark.slow
def test_the_last_checkpoint_is_scored_by_the_search_of_now(tmp_path):
    recipe = write_recipe(tmp_path, SCRATCH)
    before = heed.train(read_recipe(recipe), tmp_path / "run").evaluations
    average, last = heed.train(read_recipe(recipe, ["decoding.max_tokens=1"]), tmp_path / "run").evaluations
    assert average.scores == last.scores != before[1].scores  # of the same weights: average_last is 1
