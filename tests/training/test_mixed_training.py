"""Training on a mix: a killed and resumed run has the same bytes, and two workers take the same pairs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.training.runs import run_training
from tests.training.test_distributed import joined
from tests.training.test_trainer import assert_same_run

from heed.data.mix import Mix, MixPart
from heed.training.checkpoint import read_train_state

PARTS = (
    MixPart(name="first", weight=[1.0, 1.0, 0.0]),
    MixPart(name="others", train=["a", "b"], weight=[0.0, 2.0, 1.0]),
)
STAGES = Mix(PARTS, (7, 24), None)


@pytest.mark.slow
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, number_tokenizer):
    """Killed within the second stage and after it, each time a few steps after an epoch began."""
    _, straight = run_training(tmp_path, number_tokenizer, "straight", mix=STAGES)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_training(tmp_path, number_tokenizer, "stopped", mix=STAGES, stop_after=1)
    _, state = run_training(tmp_path, number_tokenizer, "stopped", mix=STAGES)
    assert state.step == 30 and state.drawn == straight.drawn and state.drawn is not None
    assert state.drawn.pairs[0] < 100 * 20 and state.drawn.step >= 24
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")
    saved = tmp_path / "stopped" / "checkpoints" / "20"
    assert read_train_state(saved).drawn is not None
    assert (saved / "trainer.json").stat().st_size < 2000  # whatever the size of the parts


@pytest.mark.slow
def test_two_workers_take_the_pairs_that_one_takes(tmp_path, number_tokenizer):
    _, alone = run_training(tmp_path, number_tokenizer, "one", mix=STAGES)
    with joined(2) as workers, ThreadPoolExecutor(2) as pool:
        states = list(
            pool.map(
                lambda worker: run_training(tmp_path, number_tokenizer, "two", workers=worker, mix=STAGES)[1], workers
            )
        )
    for state in states:
        assert (state.work, state.epoch, state.batch, state.drawn) == (
            alone.work,
            alone.epoch,
            alone.batch,
            alone.drawn,
        )
