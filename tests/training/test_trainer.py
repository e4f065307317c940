"""The loop: it learns, resumes bit for bit, skips faulty steps, and ends with its state saved when memory runs out."""

import itertools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tests.conftest import OTHERS, SPECIAL
from tests.training.runs import BF16, FP32, run_training
from tests.training.test_distributed import joined

from heed.backends.protocol import NotFiniteError
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.data.corpus.shard import ParallelCorpus
from heed.data.mix import Mix, MixPart
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError, Stopped
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import load_model, shared_weights
from heed.training import step, trainer
from heed.training.checkpoint import Checkpoints, checkpoint_steps, read_train_state
from heed.training.distributed import OtherWorkerEnded
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights


def entries(folder, kind):
    """The entries of this kind in a run's log."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def assert_same_run(folder, other):
    """The same losses and final weights and moments, bit for bit."""
    losses = [[entry["loss"] for entry in entries(run, "train")] for run in (folder, other)]
    assert losses[0] == losses[1] and losses[0]
    steps = [checkpoint_steps(run / "checkpoints")[-1] for run in (folder, other)]
    assert steps[0] == steps[1]
    for name in ("model.safetensors", "trainer.safetensors"):
        content, expected = ((run / "checkpoints" / str(steps[0]) / name).read_bytes() for run in (folder, other))
        assert content == expected, name


@pytest.fixture(scope="module")
def straight(tmp_path_factory, number_tokenizer):
    """The folder and the last state of an uninterrupted run with the usual settings."""
    folder = tmp_path_factory.mktemp("training")
    return folder / "straight", run_training(folder, number_tokenizer, "straight")[1]


def assert_resumes(step, tmp_path, tokenizer, name, **options):
    """The last state of a run that resumes from this step, and what was said."""
    said: list[str] = []
    _, state = run_training(tmp_path, tokenizer, name, report=said.append, **options)
    assert any(line.startswith(f"Resumed from step {step} ") for line in said)
    return state, said


TWO_PASSES = {"consistency": 5.0, "cutoff": 0.1}
# Where a processor has no products of bf16, a run takes five times as long: make test has two such tests.
in_fp32_and_rarely_in_bf16 = pytest.mark.parametrize(
    "machine", [pytest.param(FP32, id="fp32"), pytest.param(BF16, id="bf16", marks=pytest.mark.soak)]
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "changes", "training"),
    [
        pytest.param(machine, changes, training, id=f"{name} {kind}", marks=pytest.mark.soak if rare else ())
        for machine, name in ((FP32, "fp32"), (BF16, "bf16"))
        for kind, changes, training in (
            ("paper", {}, {}),
            ("others", OTHERS | {"word_dropout": 0.1}, {}),
            ("two passes", {"word_dropout": 0.1}, TWO_PASSES),
        )
        for rare in [name == "bf16" and kind != "paper"]
    ],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path, number_tokenizer, machine, changes, training
):
    options = {
        "machine": machine,
        "arch": Architecture(**{"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 4} | changes),
        **training,
    }
    run_training(tmp_path, number_tokenizer, "straight", **options)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, number_tokenizer, "stopped", **options, stop_after=1)
    assert checkpoint_steps(tmp_path / "stopped" / "checkpoints") == [10]
    _, state = run_training(tmp_path, number_tokenizer, "stopped", **options)
    assert state.step == 30 and len(entries(tmp_path / "stopped", "train")) == 6
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


@pytest.mark.slow
@in_fp32_and_rarely_in_bf16
def test_with_several_threads_a_resumed_run_has_the_same_bits_too(tmp_path, number_tokenizer, machine):
    arch = Architecture(n_layers=2, d_model=128, d_ff=256, n_heads=2)  # heads of 64, as in the paper
    torch.set_num_threads(3)
    try:
        run_training(tmp_path, number_tokenizer, "straight", machine=machine, arch=arch)
        with pytest.raises(KeyboardInterrupt):
            run_training(tmp_path, number_tokenizer, "stopped", machine=machine, arch=arch, stop_after=1)
        run_training(tmp_path, number_tokenizer, "stopped", machine=machine, arch=arch)
    finally:
        torch.set_num_threads(1)
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


@pytest.mark.slow
def test_two_passes_count_twice_in_the_cost_and_once_in_the_losses(tmp_path, number_tokenizer, straight):
    _, state = run_training(tmp_path, number_tokenizer, "two", **TWO_PASSES)
    assert state.work == straight[1].work.times(2)
    losses = [[entry["perplexity"] for entry in entries(run, "train")] for run in (straight[0], tmp_path / "two")]
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.1)  # in the first five steps nothing is learned
    assert losses[1][-1] < losses[1][0] / 2


@pytest.mark.slow
def test_a_small_model_learns_to_copy(tmp_path, number_tokenizer):
    model, _ = run_training(
        tmp_path,
        number_tokenizer,
        "copy",
        max_steps=400,
        checkpoint_every="400 steps",
        learning_rate_factor=0.7,
        keep_checkpoints=1,
        average_last=1,
    )
    sources = [[5, 9, 17, 4], [19, 3], [7, 7, 8, 12, 6, 11]]
    found = beam_search(model.eval(), sources, SPECIAL, DecodingSettings())
    assert [list(hypotheses[0].ids) for hypotheses in found] == sources


@pytest.mark.slow
def test_bf16_follows_the_loss_of_fp32(tmp_path, number_tokenizer):
    losses = {}
    for name, machine in (("fp32", FP32), ("bf16", BF16)):
        run_training(
            tmp_path,
            number_tokenizer,
            name,
            machine=machine,
            max_steps=100,
            checkpoint_every="100 steps",
            report_every=20,
        )
        losses[name] = [entry["loss"] for entry in entries(tmp_path / name, "train")]
    assert losses["fp32"][-1] < losses["fp32"][0] - 1
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)  # bf16 has 8 bits: 0.4 % a number


@pytest.mark.slow
def test_only_the_last_checkpoints_are_kept(straight):
    assert checkpoint_steps(straight[0] / "checkpoints") == [20, 30]


def test_a_loss_that_is_no_number_before_the_first_checkpoint_ends_the_run(tmp_path, number_tokenizer):
    with pytest.raises(HeedError, match="not finite 3 steps in a row"):
        run_training(tmp_path, number_tokenizer, "nan", learning_rate_factor=1e30, warmup_steps=1)
    assert not checkpoint_steps(tmp_path / "nan" / "checkpoints")


@pytest.mark.slow
def test_a_loss_that_stays_no_number_ends_the_run_after_three_rollbacks_and_harms_no_checkpoint(
    tmp_path, number_tokenizer
):
    run_training(tmp_path, number_tokenizer, "nan", max_steps=10)
    checkpoint = tmp_path / "nan" / "checkpoints" / "10"
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    real, seeds, said = step.micro_batch_loss, [], []

    def poisoned(*arguments, **options):
        seeds.append(torch.initial_seed())
        loss, nll = real(*arguments, **options)
        return loss * torch.nan, nll

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "micro_batch_loss", poisoned)
        with pytest.raises(HeedError, match="going back to step 10 did not help; the checkpoint is unharmed"):
            run_training(tmp_path, number_tokenizer, "nan", report=said.append)
    assert len([line for line in said if line.startswith("Going back to step 10,")]) == 3
    assert len(set(seeds)) == len(seeds) >= 4 * 3  # each attempt draws other masks
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


@pytest.mark.parametrize(
    ("limit", "why", "last"),
    [
        ({"max_epochs": 2}, "max_epochs=2", (2, 0)),
        ({"max_minutes": 0.5, "report_every": 100}, "max_minutes=0.5", None),
    ],
)
def test_a_run_ends_at_each_limit(tmp_path, number_tokenizer, monkeypatch, limit, why, last):
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=itertools.count().__next__))  # a second a look
    options = {"max_steps": 1000, "checkpoint_every": "1000 steps", **limit}
    _, state = run_training(tmp_path, number_tokenizer, "limited", **options)
    assert state.finished == why and state.step < 100
    assert last is None or (state.epoch, state.batch) == last
    assert last is not None or 30 <= state.seconds < 34
    assert checkpoint_steps(tmp_path / "limited" / "checkpoints") == [state.step]
    assert run_training(tmp_path, number_tokenizer, "limited", **options)[1].step == state.step


@pytest.mark.slow
def test_checkpoints_every_so_many_minutes_of_training_whether_or_not_it_was_stopped(
    tmp_path, number_tokenizer, monkeypatch
):
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    options = {"checkpoint_every": "0.1 minutes", "keep_checkpoints": 100}
    run_training(tmp_path, number_tokenizer, "straight", **options)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, number_tokenizer, "stopped", **options, stop_after=2)
    run_training(tmp_path, number_tokenizer, "stopped", **options)
    steps = [[entry["step"] for entry in entries(tmp_path / run, "validation")] for run in ("straight", "stopped")]
    assert steps[0] == steps[1] and len(steps[0]) > 3
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


@contextmanager
def one_fault():
    """The ninth pass's loss is not a number."""
    real, calls = step.micro_batch_loss, itertools.count(1)

    def faulty(*arguments, **options):
        loss, nll = real(*arguments, **options)
        return (loss * torch.nan, nll) if next(calls) == 9 else (loss, nll)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "micro_batch_loss", faulty)
        yield


@pytest.mark.slow
@in_fp32_and_rarely_in_bf16
def test_a_step_without_a_finite_gradient_is_skipped_named_and_not_logged_as_a_loss_of_zero(
    tmp_path, number_tokenizer, machine
):
    said: list[str] = []
    options = {"machine": machine, "report": said.append, "report_every": 1}
    with one_fault():
        model, state = run_training(tmp_path, number_tokenizer, "fault", **options)
    assert state.step == 30 and state.rollbacks == 0
    assert all(torch.isfinite(tensor).all() for tensor in shared_weights(model).values())
    (line,) = [line for line in said if "not finite" in line]
    (fault,) = entries(tmp_path / "fault", "fault")
    numbers = [int(number) for number in fault["lines"].split()]
    assert f"lines {numbers[0]}" in line and "(metrics.jsonl lists them all)" in line
    assert len(set(numbers)) == len(numbers) and max(numbers) <= 600
    logged = entries(tmp_path / "fault", "train")
    assert {entry["step"] for entry in logged} == set(range(1, 31)) - {fault["step"]}
    assert all(0 < entry["loss"] < math.inf and entry["perplexity"] > 1 for entry in logged)


@contextmanager
def weights_that_turn_to_nan(before_step: int, *, then=lambda weights: None):
    real, calls = trainer.train_step, itertools.count(1)

    def poisoned(weights, *arguments, **options):
        if next(calls) == before_step:
            with torch.no_grad():
                next(weights.masters.parameters()).fill_(torch.nan)
            then(weights)
        return real(weights, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", poisoned)
        yield


@pytest.mark.slow
def test_weights_that_turn_to_nan_are_taken_back_from_the_last_checkpoint(tmp_path, number_tokenizer):
    said = []
    with weights_that_turn_to_nan(14):
        model, state = run_training(tmp_path, number_tokenizer, "poison", report=said.append)
    assert state.step == 30 and state.rollbacks == 1
    assert "Going back to step 10, continuing with a new dropout seed." in said
    assert all(torch.isfinite(tensor).all() for tensor in shared_weights(model).values())


def test_weights_that_are_not_finite_are_neither_validated_nor_saved(tmp_path, number_tokenizer):
    said: list[str] = []
    with pytest.raises(HeedError, match="dev's loss at a checkpoint, and there is no checkpoint to go back to"):
        run_training(
            tmp_path, number_tokenizer, "huge", learning_rate_factor=1e300, checkpoint_every="1 steps",
            report=said.append,
        )  # fmt: skip
    assert "step 1: the weights are not finite, so they are not saved." in said
    assert not list((tmp_path / "huge" / "checkpoints").glob("*"))


@pytest.mark.slow
def test_a_dev_loss_that_is_infinite_leads_back_too(tmp_path, number_tokenizer):
    losses = iter([1.0, math.inf, 1.0, 1.0])
    _, state = run_training(tmp_path, number_tokenizer, "run", dev_loss=lambda: next(losses))
    assert (state.step, state.rollbacks) == (30, 1)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_numbers_of_dev_that_are_not_finite_lead_back_to_the_last_checkpoint(tmp_path, number_tokenizer, lasting):
    """Finite weights can have scores that are not."""
    said: list[str] = []
    calls = itertools.count(1)

    def on_validation():
        call = next(calls)
        if call == 2 or (lasting and call > 2):
            raise NotFiniteError

    options = {"report": said.append, "on_validation": on_validation}
    if lasting:
        with pytest.raises(HeedError, match="going back to step 10 did not help; the checkpoint is unharmed"):
            run_training(tmp_path, number_tokenizer, "run", **options)
    else:
        _, state = run_training(tmp_path, number_tokenizer, "run", **options)
        assert state.step == 30 and state.rollbacks == 1
    assert "step 20: the model's numbers on dev are not finite; nothing is saved." in said
    assert "Going back to step 10, continuing with a new dropout seed." in said
    assert not (tmp_path / "run" / "checkpoints" / "stopped").exists()


def test_without_dropout_training_does_not_go_back_to_take_the_same_steps_again(tmp_path, number_tokenizer):
    def poisoned(*arguments, **options):
        loss, nll = real(*arguments, **options)
        return loss * torch.nan, nll

    arch, real = Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, dropout=0), step.micro_batch_loss
    run_training(tmp_path, number_tokenizer, "same", arch=arch, max_steps=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "micro_batch_loss", poisoned)
        with pytest.raises(HeedError, match="without dropout, the steps after the checkpoint at step 10, .* the same"):
            run_training(tmp_path, number_tokenizer, "same", arch=arch)
    assert len(entries(tmp_path / "same", "fault")) == 3


@pytest.mark.slow
def test_patience_ends_training_and_the_reason_is_kept(tmp_path, number_tokenizer):
    options = {"patience": 2, "max_steps": 1000, "falling": False}
    _, state = run_training(tmp_path, number_tokenizer, "patient", **options, warmup_steps=10)
    assert (state.step, state.finished) == (30, "no lower dev loss in 2 validations")
    # Neither a validation in the warm-up counts nor one before the last stage of a mix, which the log marks.
    said: list[str] = []
    first = MixPart(name="first", weight=[1.0, 1.0, 0.0])
    stages = Mix((first, MixPart(name="others", train=["a", "b"], weight=[0.0, 2.0, 1.0])), (7, 24), None)
    for name, warm_up, end in (("warm", 25, 40), ("mixed", 10, 40)):
        mix = stages if name == "mixed" else None
        _, state = run_training(
            tmp_path, number_tokenizer, name, **options, warmup_steps=warm_up, mix=mix, report=said.append
        )
        assert state.step == end
    assert [entry["step"] for entry in entries(tmp_path / "mixed", "stage")] == [8, 25]
    assert "step 25  a new stage of the mix begins: others 100.0%." in said


@pytest.mark.slow
def test_a_run_that_ended_with_an_epoch_goes_on_as_if_it_had_not_ended(tmp_path, number_tokenizer):
    by_epoch = {"checkpoint_every": "2 epochs"}
    run_training(tmp_path, number_tokenizer, "straight", **by_epoch)
    steps = [entry["step"] for entry in entries(tmp_path / "straight", "validation")]
    run_training(tmp_path, number_tokenizer, "ended", **by_epoch, max_steps=steps[0])
    run_training(tmp_path, number_tokenizer, "ended", **by_epoch)
    assert [entry["step"] for entry in entries(tmp_path / "ended", "validation")] == steps and len(steps) > 2
    weights = [
        (tmp_path / run / "checkpoints" / "30" / "model.safetensors").read_bytes() for run in ("straight", "ended")
    ]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("0.1 minutes", "10 steps"), ("10 steps", "3 epochs")])
def test_another_unit_of_checkpoints_counts_from_the_last_one(tmp_path, number_tokenizer, monkeypatch, before, after):
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    _, state = run_training(tmp_path, number_tokenizer, "run", checkpoint_every=before, max_steps=20)
    run_training(tmp_path, number_tokenizer, "run", checkpoint_every=after, max_steps=40)
    first, *_ = (entry["step"] for entry in entries(tmp_path / "run", "validation") if entry["step"] > 20)
    assert state.step == 20 and first >= 30


@pytest.mark.slow
def test_a_stopped_run_that_is_ended_there_logs_its_learning_rate(tmp_path, number_tokenizer):
    with pytest.raises(Stopped):
        run_training(tmp_path, number_tokenizer, "stopped", report_every=4, report=signal_at(12, said := []))
    run_training(tmp_path, number_tokenizer, "stopped", max_steps=11)
    last = entries(tmp_path / "stopped", "train")[-1]
    assert last["step"] == 12 and last["learning_rate"] > 0 and said


def signal_at(step: int, said: list[str]) -> Callable[[str], None]:
    """A report that keeps what is said, and sends the signal when it says that a step was taken."""

    def report(line: str) -> None:
        said.append(line)
        if line.startswith(f"step {step}/"):
            signal.raise_signal(signal.SIGTERM)

    return report


@pytest.mark.slow
def test_a_signal_saves_the_state_between_two_checkpoints(tmp_path, number_tokenizer, straight):
    said: list[str] = []
    with pytest.raises(Stopped):
        run_training(tmp_path, number_tokenizer, "stopped", report=signal_at(15, said))
    assert said[-1] == "Stopped at step 15; its state is saved. The same command resumes."
    assert_resumes(15, tmp_path, number_tokenizer, "stopped")
    assert_same_run(tmp_path / "stopped", straight[0])


def test_a_signal_during_a_validation_stops_at_its_checkpoint(tmp_path, number_tokenizer):
    said: list[str] = []
    with pytest.raises(Stopped):
        run_training(
            tmp_path, number_tokenizer, "stopped", report=said.append,
            on_validation=lambda: signal.raise_signal(signal.SIGTERM),
        )  # fmt: skip
    assert said[-1] == "Stopped at step 10; its state is saved. The same command resumes."
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["10"]


@pytest.mark.slow
def test_a_checkpoint_that_failed_is_validated_and_counted_once(tmp_path, number_tokenizer, monkeypatch):
    real, failed = Checkpoints.save, []

    def failing(self, *arguments, stopped=False):
        if len(self.steps()) == 1 and not stopped and not failed:
            failed.append(True)
            raise HeedError("no space left")
        real(self, *arguments, stopped=stopped)

    monkeypatch.setattr(Checkpoints, "save", failing)
    with pytest.raises(HeedError, match="no space left"):
        run_training(tmp_path, number_tokenizer, "run", patience=1, warmup_steps=10)
    _, state = run_training(  # no better than step 10
        tmp_path, number_tokenizer, "run", patience=1, warmup_steps=10, falling=False
    )
    assert [entry["step"] for entry in entries(tmp_path / "run", "validation")] == [10, 20]
    assert (state.step, state.best_step, state.best_loss) == (20, 10, 1.0)


@pytest.mark.slow
def test_a_state_that_was_stopped_before_the_newest_checkpoint_is_not_resumed_from(tmp_path, number_tokenizer):
    with pytest.raises(Stopped):
        run_training(tmp_path, number_tokenizer, "run", report=signal_at(15, []))
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.copytree(checkpoints / "stopped", tmp_path / "stopped")
    run_training(tmp_path, number_tokenizer, "run", max_steps=20)
    shutil.copytree(tmp_path / "stopped", checkpoints / "stopped")  # as if the process had been killed before
    assert_resumes(20, tmp_path, number_tokenizer, "run")


@pytest.mark.slow
def test_the_checkpoint_of_the_lowest_loss_is_kept_if_asked_for(tmp_path, number_tokenizer):
    every_5 = {"checkpoint_every": "5 steps", "warmup_steps": 5}
    _, state = run_training(
        tmp_path, number_tokenizer, "run", falling=False, average_last="best", patience=4, **every_5
    )
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["20", "25", "best"]
    assert (state.best_step, read_train_state(checkpoints / "best").step) == (5, 5)


@pytest.mark.slow
def test_weights_that_are_not_finite_are_not_saved_when_a_signal_comes(tmp_path, number_tokenizer, straight):
    said = []

    def compute_and_signal(weights):
        weights.copy_to_compute()
        signal.raise_signal(signal.SIGTERM)

    with weights_that_turn_to_nan(12, then=compute_and_signal), pytest.raises(Stopped):
        run_training(tmp_path, number_tokenizer, "poison", report=said.append)
    assert said[-1].endswith("so they are not saved. The same command resumes from the last checkpoint.")
    assert_resumes(10, tmp_path, number_tokenizer, "poison")
    assert_same_run(tmp_path / "poison", straight[0])


def out_of_memory_at(call):
    """micro_batch_loss, but that memory runs out in this call, counted from 1."""
    real, calls = step.micro_batch_loss, 0

    def limited(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == call:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(*arguments, **options)

    return limited


@pytest.mark.slow
@in_fp32_and_rarely_in_bf16
def test_out_of_memory_in_a_step_saves_the_state_and_names_what_to_lower(tmp_path, number_tokenizer, machine):
    small = {"machine": machine, "micro_batch_tokens": 300}
    run_training(tmp_path, number_tokenizer, "straight", **small)
    corpus = ParallelCorpus(tmp_path / "straight" / "corpus0", vocab_size=len(number_tokenizer))
    batches = TokenBatches(corpus, SPECIAL, BatchLimits(600, 600, 300, seed=1))
    plan = [rows for epoch in range(3) for rows in batches.plan(epoch)]
    step_14 = plan[13]
    weights = MasterWeights(Transformer(Architecture(n_layers=1, d_model=32, d_ff=16, n_heads=1), 50), machine)
    padded = weights.computes_padding(TrainingSettings())
    n_before = sum(len(batches.passes(rows, padded=padded)) for rows in plan[:13])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(HeedError) as raised:
        patch.setattr(step, "micro_batch_loss", out_of_memory_at(n_before + 2))  # the second pass of step 14
        run_training(tmp_path, number_tokenizer, "full", **small)
    longest = 1 + max(int(lengths[rows].max()) for lengths in corpus.lengths for rows in step_14)  # with eos or bos
    assert str(raised.value) == (
        f"memory ran out in step 14, on sentences of up to {longest} tokens. Lower training.micro_batch_tokens "
        "(now 300); the same command then resumes."
    )
    assert (tmp_path / "full" / "checkpoints" / "stopped").is_dir()
    assert_resumes(13, tmp_path, number_tokenizer, "full", **small)
    assert_same_run(tmp_path / "full", tmp_path / "straight")


@pytest.mark.slow
def test_after_running_out_of_memory_a_smaller_micro_batch_resumes(tmp_path, number_tokenizer, straight):
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(HeedError, match=r"training\.micro_batch_tokens \(now 600"),
    ):
        patch.setattr(step, "micro_batch_loss", out_of_memory_at(14))
        run_training(tmp_path, number_tokenizer, "full")
    state, said = assert_resumes(13, tmp_path, number_tokenizer, "full", micro_batch_tokens=300)
    assert (state.step, state.micro_tokens, state.plan_name) == (30, 300, "real tokens")
    # The same pairs in each step: only its division has changed.
    assert not any("The batches have changed" in line for line in said)
    assert state.work == straight[1].work


@pytest.mark.slow
def test_out_of_memory_in_the_first_step_saves_nothing(tmp_path, number_tokenizer):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(HeedError, match="memory ran out in step 1, "):
        patch.setattr(step, "micro_batch_loss", out_of_memory_at(1))
        run_training(tmp_path, number_tokenizer, "full")
    assert not list((tmp_path / "full" / "checkpoints").glob("*"))
    assert run_training(tmp_path, number_tokenizer, "full")[1].step == 30


def out_of_memory():
    torch.empty(2**62, dtype=torch.int8)


def fail():
    raise HeedError("the beam does not fit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (out_of_memory, r"^memory ran out in the validation after step 10\. Lower training\.micro_batch"),
        (fail, "the beam does not fit"),
    ],
)
def test_an_error_in_the_validation_saves_the_state(tmp_path, number_tokenizer, error, message):
    with pytest.raises(HeedError, match=message):
        run_training(tmp_path, number_tokenizer, "full", on_validation=error)
    assert_resumes(10, tmp_path, number_tokenizer, "full")
    assert [entry["step"] for entry in entries(tmp_path / "full", "validation")] == [10, 20, 30]


WIDE = {"arch": Architecture(n_layers=2, d_model=16, d_ff=1024, n_heads=2), "checkpoint_every": "2 steps"}
REALLY_OUT_OF_MEMORY = """
import resource
from pathlib import Path
from tests.training.runs import run_training
from tests.training.test_trainer import WIDE
from heed.errors import HeedError
from heed.text.tokenizer import Tokenizer

def limit():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**22, -1))

try:
    run_training(Path(), Tokenizer.load(Path("tokenizer.json")), "full", on_validation=limit, max_steps=4, **WIDE)
except HeedError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_memory_that_really_runs_out_leaves_a_state_to_resume_from(tmp_path, number_tokenizer):
    """A pass needs tens of MB; after the first validation the process may take only 4 more."""
    number_tokenizer.save(tmp_path / "tokenizer.json")
    # Every large tensor is mapped and unmapped, so that none is served from memory that was freed.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", REALLY_OUT_OF_MEMORY]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("memory ran out in step 3, on sentences of up to "), done.stdout
    _, said = assert_resumes(2, tmp_path, number_tokenizer, "full", max_steps=4, **WIDE)
    assert said[-1] == "Training ended at step 4: max_steps=4."


@pytest.mark.slow
def test_an_error_between_two_checkpoints_saves_the_state(tmp_path, number_tokenizer, straight):
    log, aside = tmp_path / "full" / "metrics.jsonl", tmp_path / "aside"

    def take_the_log_away(line: str) -> None:
        if line.startswith("step 10/"):
            log.rename(aside)
            log.mkdir()

    with pytest.raises(HeedError, match=r"metrics\.jsonl: cannot be written"):
        run_training(tmp_path, number_tokenizer, "full", report=take_the_log_away, checkpoint_every="20 steps")
    log.rmdir()
    aside.rename(log)
    assert_resumes(15, tmp_path, number_tokenizer, "full")
    runs = (straight[0], tmp_path / "full")
    weights = [(run / "checkpoints" / "30" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_worker_that_ends_during_the_validation_costs_no_steps(tmp_path, number_tokenizer):
    with joined(2) as workers, ThreadPoolExecutor(2) as pool:
        (end,) = workers[1].communicator._channels
        hang_up = partial(end.shutdown, socket.SHUT_RDWR)

        def work(worker):
            with pytest.raises(OtherWorkerEnded):
                run_training(tmp_path, number_tokenizer, "two", workers=worker, on_validation=hang_up)

        list(pool.map(work, workers))
    assert_resumes(10, tmp_path, number_tokenizer, "two")


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_out_of_memory_in_one_of_two_workers_saves_the_state_and_ends_both(tmp_path, number_tokenizer, failing):
    """The workers are threads, joined by real sockets and memory; the end of a thread closes its sockets."""
    tls = threading.local()
    real = step.micro_batch_loss

    def limited(*arguments, **options):
        tls.calls += 1
        if tls.rank == failing and tls.calls == 14:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(*arguments, **options)

    def work(workers):
        tls.rank, tls.calls = workers.rank, 0
        try:
            run_training(tmp_path, number_tokenizer, "two", workers=workers)
        except HeedError as error:
            return error
        finally:
            for channel in workers.communicator._channels:
                channel.close()

    with joined(2) as workers, ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "micro_batch_loss", limited)
        errors = list(pool.map(work, workers))
    assert str(errors[failing]).startswith("memory ran out in step 14, ")
    assert isinstance(errors[1 - failing], OtherWorkerEnded)
    assert_resumes(13, tmp_path, number_tokenizer, "two")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"batch_src_tokens": 900, "batch_tgt_tokens": 900}, {"seed": 9}], ids=["larger", "seed"]
)
def test_batches_that_change_in_an_epoch_use_each_of_its_pairs_once(tmp_path, number_tokenizer, changes):
    def n_tokens(state):
        return state.n_src_tokens, state.n_tgt_tokens

    _, whole = run_training(tmp_path, number_tokenizer, "whole", max_epochs=1)
    said: list[str] = []
    for steps, of_step in ((1, {}), (2, changes), (3, {}), (1000, changes)):
        options = of_step | {"max_epochs": 1, "max_steps": steps}
        _, state = run_training(tmp_path, number_tokenizer, "changing", report=said.append, **options)
    assert (state.epoch, state.batch, state.earlier_parts) == (1, 0, [])
    assert n_tokens(state) == n_tokens(whole)
    assert len([line for line in said if "the pairs left in it form new batches" in line]) == 3


@pytest.mark.slow
def test_a_run_whose_batches_changed_resumes_to_the_same_bits(tmp_path, number_tokenizer):
    options = {"batch_tgt_tokens": 500, "max_steps": 14}
    for name in ("straight", "stopped"):
        run_training(tmp_path, number_tokenizer, name, max_steps=3)
    run_training(tmp_path, number_tokenizer, "straight", **options)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, number_tokenizer, "stopped", **options, stop_after=1)  # in the same epoch, at step 13
    run_training(tmp_path, number_tokenizer, "stopped", **options)
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


@pytest.mark.slow
def test_the_best_checkpoint_may_be_that_of_the_best_score(tmp_path, number_tokenizer):
    scores = iter([3.0, 9.0, 8.0, 8.9])
    _, state = run_training(
        *(tmp_path, number_tokenizer, "run"),
        dev_score=lambda: next(scores),  # while the loss falls
        best_by="bleu",
        patience=2,
        warmup_steps=5,
        checkpoint_every="5 steps",
        keep_checkpoints=1,
        average_last=1,
    )
    assert (state.step, state.finished) == (20, "no higher greedy_bleu on dev in 2 validations")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["20", "best"]
    assert read_train_state(checkpoints / "best").step == state.best_step == 10
    said: list[str] = []
    _, state = run_training(
        tmp_path, number_tokenizer, "run", report=said.append, max_steps=25, checkpoint_every="5 steps"
    )
    assert "The best checkpoint is now chosen by loss, among those from here on." in said
    assert (state.best_step, state.best_by) == (25, "loss")


@pytest.mark.slow
def test_equal_scores_are_ranked_by_loss(tmp_path, number_tokenizer):
    """A BLEU of 0 as long as no four words in a row are right; meanwhile the loss falls."""
    options = {"best_by": "bleu", "patience": 1, "warmup_steps": 1, "checkpoint_every": "5 steps"}
    _, state = run_training(tmp_path, number_tokenizer, "run", **options)
    assert (state.step, state.best_step, state.best_score) == (30, 30, 0.0)
    # A state of an earlier version knows the lowest loss only.
    saved = tmp_path / "run" / "checkpoints" / "30" / "trainer.json"
    values = json.loads(saved.read_text())
    del values["loss_of_best"]
    saved.write_text(json.dumps(values))
    assert read_train_state(saved.parent).loss_of_best == state.best_loss


@pytest.mark.slow
def test_a_trained_model_that_a_run_starts_from_is_the_first_to_beat(tmp_path, number_tokenizer, straight):
    losses = iter([1.0, 1.5, 1.4, 1.3])
    options = {"dev_loss": lambda: next(losses), "keep_checkpoints": 1, "average_last": 1, "is_trained": True}
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, number_tokenizer, "run", stop_after=2, **options)
    model, state = run_training(tmp_path, number_tokenizer, "run", **options)
    assert [entry["step"] for entry in entries(tmp_path / "run", "validation")] == [0, 10, 20, 30]
    assert (state.step, state.best_step, state.best_loss) == (30, 0, 1.0)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["30", "best"]
    torch.manual_seed(1)
    given = type(model)(model.arch, len(number_tokenizer))
    saved = load_model(checkpoints / "best").model
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(saved.parameters(), given.parameters(), strict=True))
    # Its own steps are those of a run that never validated it.
    assert_same_run(tmp_path / "run", straight[0])
