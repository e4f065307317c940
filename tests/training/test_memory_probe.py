"""Micro-batches are halved until memory holds them."""

import pytest
import torch
from tests.conftest import SPECIAL
from tests.training.runs import FP32, copy_corpus, run_training

from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.errors import HeedError, is_out_of_memory
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.training import memory_probe
from heed.training.distributed import Workers
from heed.training.memory_probe import MemoryProbe
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights


@pytest.mark.slow
def test_a_micro_batch_that_memory_does_not_hold_is_halved(tmp_path, number_tokenizer):
    real, said = memory_probe.micro_batch_loss, []

    def limited(*arguments, **options):
        batch = arguments[1]
        if len(batch.tgt_lengths) * int(batch.tgt_lengths.max()) > 200:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(*arguments, **options)

    def none(*_, **__):
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_probe, "micro_batch_loss", limited)
        _, state = run_training(tmp_path, number_tokenizer, "limited", report=said.append)
        assert state.step == 30 and state.micro_tokens == 150
        assert "A pass over 600 tokens does not fit into memory; training with 150 tokens a pass." in said
        with pytest.raises(HeedError, match="not even one pair of"):
            patch.setattr(memory_probe, "micro_batch_loss", none)
            run_training(tmp_path, number_tokenizer, "none")


@pytest.fixture
def parts(tmp_path):
    torch.manual_seed(1)
    weights = MasterWeights(Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2), 50), FP32)
    corpus = copy_corpus(tmp_path / "corpus", 50, n_pairs=40)
    batches = TokenBatches(corpus, SPECIAL, BatchLimits(600, 600, 600, seed=1))
    return weights, Adam(weights.masters.parameters(), TrainingSettings()), batches


def test_the_trial_uses_the_runs_settings_and_leaves_neither_gradients_nor_moments(parts, monkeypatch):
    weights, optimizer, batches = parts
    real, used = memory_probe.micro_batch_loss, []

    def recorded(model, batch, settings):
        used.append(settings)
        loss, nll = real(model, batch, settings)
        assert not weights.sums.buffer.isnan().any()
        return loss, nll

    monkeypatch.setattr(memory_probe, "micro_batch_loss", recorded)
    before = [parameter.detach().clone() for parameter in weights.masters.parameters()]
    settings = TrainingSettings(label_smoothing=0.3, consistency=5.0, cutoff=0.1)
    assert MemoryProbe(weights, optimizer, FP32, Workers(), settings).largest_fitting(batches) is batches
    assert used and all(one is settings for one in used)
    assert not optimizer.state and not weights.sums.buffer.any()
    assert all(map(torch.equal, before, weights.masters.parameters()))


def test_a_worker_tries_the_part_of_a_micro_batch_that_it_will_have(parts, monkeypatch):
    weights, optimizer, batches = parts
    real, sizes = memory_probe.micro_batch_loss, []

    def recorded(model, batch, settings):
        sizes.append(len(batch.src_lengths))
        return real(model, batch, settings)

    monkeypatch.setattr(memory_probe, "micro_batch_loss", recorded)
    monkeypatch.setattr(memory_probe, "sharing_of", lambda model: "whole")  # as on a GPU
    for some, n_workers, n_parts in ((batches, 3, 3), (batches.with_micro_tokens(150), 4, 1)):
        sizes.clear()
        assert MemoryProbe(weights, optimizer, FP32, Workers(1, n_workers), TrainingSettings()).fits(some)
        most, _ = some.heaviest(padded=weights.computes_padding(TrainingSettings()))
        assert max(sizes) in (len(most) // n_parts, -(-len(most) // n_parts))


def test_an_error_that_is_none_of_memory_is_not_taken_for_one(parts, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(memory_probe, "micro_batch_loss", broken)
    weights, optimizer, batches = parts
    with pytest.raises(RuntimeError, match="shapes differ"):
        MemoryProbe(weights, optimizer, FP32, Workers(), TrainingSettings()).fits(batches)


def test_errors_of_memory_are_told_from_others():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**62, dtype=torch.int8)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(OSError(12, "Cannot allocate memory"))
