"""The loop: it learns, it sums micro-batches rightly, it resumes bit for bit, it averages."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SPECIAL

from heed.config import validated
from heed.data.batching import TokenBatches
from heed.data.corpus import write_corpus
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.transformer import Architecture, Transformer
from heed.model_folder import ModelCard, load_model, read_weights, save_model, shared_weights
from heed.runtime.device import Machine
from heed.runtime.files import seal
from heed.training import trainer
from heed.training.checkpoint import STATE_FILES, Checkpoints, TrainState, averaged_weights, checkpoint_steps
from heed.training.distributed import Workers
from heed.training.trainer import MasterWeights, TrainingSettings, make_optimizer, micro_batch_loss, train, train_step

FP32 = Machine(torch.device("cpu"), torch.float32, "test")
BF16 = Machine(torch.device("cpu"), torch.bfloat16, "test")


def copy_corpus(folder, vocab_size, n_pairs=600):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 20, (int(torch.randint(2, 8, (1,), generator=generator)),), generator=generator).tolist()
        for _ in range(n_pairs)
    ]
    return write_corpus(folder, [(row, row) for row in rows], vocab_size=vocab_size)


def run_training(
    tmp_path, tokenizer, name, *, machine=FP32, arch=None, stop_after=None, report=lambda line: None, **changes
):
    """Trains on copying; `stop_after` steps it is cut off by an exception, as a killed process would be."""
    torch.manual_seed(1)
    model = Transformer(arch or Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4), len(tokenizer))
    corpus = copy_corpus(tmp_path / "corpus", len(tokenizer))
    values = {
        "batch_src_tokens": 600,
        "batch_tgt_tokens": 600,
        "warmup_steps": 60,
        "max_steps": 30,
        "checkpoint_every": "10 steps",
        "keep_checkpoints": 2,
        "average_last": 2,
        "report_every": 5,
    }
    settings = TrainingSettings(**(values | changes))
    batches = TokenBatches(
        corpus,
        SPECIAL,
        max_src_tokens=600,
        max_tgt_tokens=600,
        micro_tokens=settings.micro_batch_tokens or 600,
        seed=settings.seed,
    )
    checkpoints = Checkpoints(
        tmp_path / name / "checkpoints",
        keep=settings.keep_checkpoints,
        tokenizer=tokenizer,
        card=ModelCard("en", "de"),
        report=report,
    )
    calls = 0

    def validate(model):
        nonlocal calls
        calls += 1
        if stop_after is not None and calls > stop_after:
            raise KeyboardInterrupt
        return {"loss": 1.0 / calls}

    progress = train(
        model,
        batches,
        settings,
        machine,
        Workers(),
        run=tmp_path / name,
        checkpoints=checkpoints,
        validate=validate,
        report=report,
    )
    return model, progress


@pytest.mark.parametrize("machine", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, number_tokenizer, machine):
    straight, _ = run_training(tmp_path, number_tokenizer, "straight", machine=machine)
    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, number_tokenizer, "stopped", machine=machine, stop_after=1)
    assert checkpoint_steps(tmp_path / "stopped" / "checkpoints") == [10]
    resumed, progress = run_training(tmp_path, number_tokenizer, "stopped", machine=machine)
    assert progress.step == 30
    for name, tensor in shared_weights(straight).items():
        assert torch.equal(tensor, shared_weights(resumed)[name]), name
    log = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("straight", "stopped")
    ]
    losses = [[entry["loss"] for entry in entries if entry["kind"] == "train"] for entries in log]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


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


def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path, number_tokenizer):
    torch.manual_seed(2)
    model = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, dropout=0.0), 50)
    corpus = copy_corpus(tmp_path / "c", 50, n_pairs=40)
    batches = TokenBatches(corpus, SPECIAL, max_src_tokens=10**6, max_tgt_tokens=10**6, micro_tokens=10**6, seed=1)
    ((whole,),) = batches.plan(0)
    gradients = []
    for parts in ([whole], [whole[:5], whole[5:17], whole[17:]]):
        weights = MasterWeights(model, FP32)
        collated = [batches.collate(rows) for rows in parts]
        n_tokens = sum(batch.n_tgt_tokens for batch in collated)
        for batch in collated:
            loss, _ = micro_batch_loss(weights.model, batch, label_smoothing=0.1)
            (loss / n_tokens).backward()
            weights.collect_gradients()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    for one, summed in zip(*gradients, strict=True):
        assert torch.allclose(one, summed, atol=1e-6)


def test_a_step_on_a_gpu_never_waits_for_its_numbers(tmp_path):
    """Meta tensors have no values: whatever would read one back, as a GPU's would be, raises."""
    corpus = copy_corpus(tmp_path / "c", 50, n_pairs=40)
    batches = TokenBatches(corpus, SPECIAL, max_src_tokens=10**6, max_tgt_tokens=10**6, micro_tokens=10**6, seed=1)
    ((rows,),) = batches.plan(0)
    machine = Machine(torch.device("meta"), torch.bfloat16, "test")
    weights = MasterWeights(
        Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, attention_dropout=0.1), 50), machine
    )

    class Plain(torch.optim.Adam):  # the fused one does not know of meta, and this one not of found_inf
        def step(self):
            self.found_inf = None
            super().step()

    optimizer = Plain(weights.masters.parameters())
    settings = TrainingSettings()
    train_step(weights, optimizer, [batches.collate(rows)], settings, machine, Workers(), rate=1e-3)


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
        entries = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        losses[name] = [entry["loss"] for entry in entries if entry["kind"] == "train"]
    assert losses["fp32"][-1] < losses["fp32"][0] - 1
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)  # bf16 has 8 bits: 0.4 % a number


def test_adam_is_the_one_of_section_5(number_tokenizer):
    # One parameter, two steps, by hand: Kingma & Ba's algorithm 1 with β 0.9 and 0.98.
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = make_optimizer(model, TrainingSettings())
    value, first, second = 1.0, 0.0, 0.0
    for step, gradient in enumerate((0.5, -0.25), start=1):
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
        value -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)) ** 0.5 + 1e-9)
        assert model.weight.item() == pytest.approx(value, rel=1e-5)


def test_only_the_last_checkpoints_are_kept_and_patience_stops(tmp_path, number_tokenizer):
    run_training(tmp_path, number_tokenizer, "kept")
    assert checkpoint_steps(tmp_path / "kept" / "checkpoints") == [20, 30]
    with pytest.raises(HeedError, match="average_last=5 needs keep_checkpoints=5"):
        validated(TrainingSettings, {"average_last": 5, "keep_checkpoints": 2}, where="recipe.toml: training")


def test_a_loss_that_is_no_number_ends_the_run_and_harms_no_checkpoint(tmp_path, number_tokenizer):
    with pytest.raises(HeedError, match="not finite 3 steps in a row"):
        run_training(tmp_path, number_tokenizer, "nan", learning_rate_factor=1e30, warmup_steps=1)
    for step in checkpoint_steps(tmp_path / "nan" / "checkpoints"):
        weights = read_weights(tmp_path / "nan" / "checkpoints" / str(step) / "model.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in weights.values())


@pytest.mark.parametrize("machine", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_step_without_a_finite_gradient_is_left_out_and_its_lines_are_named(tmp_path, number_tokenizer, machine):
    real, calls, told = trainer.micro_batch_loss, 0, []

    def faulty(model, batch, **options):
        nonlocal calls
        calls += 1
        loss, nll = real(model, batch, **options)
        return (loss * torch.nan, nll) if calls == 9 else (loss, nll)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "micro_batch_loss", faulty)
        model, progress = run_training(tmp_path, number_tokenizer, "fault", machine=machine, report=told.append)
    assert progress.step == 30 and progress.detours == 0
    assert all(torch.isfinite(tensor).all() for tensor in shared_weights(model).values())
    (line,) = [line for line in told if "not finite" in line]
    entries = [json.loads(line) for line in (tmp_path / "fault" / "metrics.jsonl").read_text().splitlines()]
    (fault,) = [entry for entry in entries if entry["kind"] == "fault"]
    numbers = [int(number) for number in fault["lines"].split()]
    assert f"lines {numbers[0]}" in line and len(set(numbers)) == len(numbers) and max(numbers) <= 600
    assert all(math.isfinite(entry["loss"]) for entry in entries if entry["kind"] == "train")


def test_weights_that_turn_to_nan_are_taken_back_from_the_last_checkpoint(tmp_path, number_tokenizer):
    real, calls, told = trainer.train_step, 0, []

    def poisoned(weights, *arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 14:
            with torch.no_grad():
                next(weights.masters.parameters()).fill_(torch.nan)
        return real(weights, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "train_step", poisoned)
        model, progress = run_training(tmp_path, number_tokenizer, "poison", report=told.append)
    assert progress.step == 30 and progress.detours == 1
    assert any("Going back to step 10" in line for line in told)
    assert all(torch.isfinite(tensor).all() for tensor in shared_weights(model).values())


def test_a_micro_batch_that_memory_does_not_hold_is_halved(tmp_path, number_tokenizer):
    real, told = trainer.micro_batch_loss, []

    def tight(model, batch, **options):
        if batch.tgt_in.numel() > 200:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(model, batch, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "micro_batch_loss", tight)
        _, progress = run_training(tmp_path, number_tokenizer, "tight", report=told.append)
        assert progress.step == 30 and progress.micro_tokens == 150
        assert any("Memory holds 150 tokens a pass, not 600" in line for line in told)
        with pytest.raises(HeedError, match="not even one pair of"):
            patch.setattr(trainer, "micro_batch_loss", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
            run_training(tmp_path, number_tokenizer, "none")


def test_the_average_of_equal_checkpoints_is_the_checkpoint(tmp_path, number_tokenizer, small_arch):
    torch.manual_seed(3)
    models = [Transformer(small_arch, len(number_tokenizer)) for _ in range(2)]
    for name, model in (("a", models[0]), ("b", models[0]), ("c", models[0]), ("d", models[1])):
        save_model(tmp_path / name, model, number_tokenizer, ModelCard("en", "de"))
    same = averaged_weights([tmp_path / name for name in "abc"])
    for name, tensor in shared_weights(models[0]).items():
        assert torch.equal(same[name], tensor)
    mixed = averaged_weights([tmp_path / name for name in "ad"])
    for name, tensor in mixed.items():
        expected = (shared_weights(models[0])[name] + shared_weights(models[1])[name]) / 2
        assert torch.allclose(tensor, expected, atol=1e-7)


def test_a_model_folder_loads_as_it_was_saved_and_names_what_is_wrong(tmp_path, number_tokenizer, small_arch):
    model = Transformer(small_arch, len(number_tokenizer))
    folder = tmp_path / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", scores={"test": "BLEU 1"}))
    loaded = load_model(folder)
    assert all(torch.equal(t, shared_weights(model)[n]) for n, t in shared_weights(loaded.model).items())
    assert loaded.card.scores == {"test": "BLEU 1"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(HeedError, match="model.safetensors: damaged"):
        load_model(folder)
    weights.write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    config["architecture"]["d_model"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeedError, match="config.json: damaged: not what manifest.json says"):
        load_model(folder)
    seal(folder)
    with pytest.raises(HeedError, match=r"weight .* has shape .*; config.json asks for"):
        load_model(folder)
    for shapes in ({"d_model": 2**16, "n_heads": 1}, {"n_layers": 1000}):  # more than the file holds
        config["architecture"] |= shapes
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder)
        with pytest.raises(HeedError, match="weight"):
            load_model(folder)
    with pytest.raises(HeedError, match="no such folder"):
        load_model(tmp_path / "nowhere")


@given(
    name=st.sampled_from([*STATE_FILES, "manifest.json"]),
    how=st.sampled_from(["cut", "flip", "empty", "remove", "swap"]),
    place=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=100, deadline=None)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path_factory, number_tokenizer, name, how, place):
    folder = tmp_path_factory.mktemp("checkpoints")
    arch = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2)
    checkpoints = Checkpoints(folder, keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
    states = {}
    for step in (1, 2):
        torch.manual_seed(step)
        model = Transformer(arch, len(number_tokenizer))
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        checkpoints.save(model, optimizer, TrainState(step=step))
        states[step] = [[parameter.detach(), *optimizer.state[parameter].values()] for parameter in model.parameters()]
    path, content = folder / "2" / name, bytearray((folder / "2" / name).read_bytes())
    at = int(place * len(content))
    if how == "remove":
        path.unlink()
    elif how == "swap":
        path.write_bytes((folder / "1" / name).read_bytes())
    else:
        content[at] ^= 1
        path.write_bytes({"cut": content[:at], "flip": content, "empty": b""}[how])
    model = Transformer(arch, len(number_tokenizer))
    optimizer = torch.optim.Adam(model.parameters())
    progress = checkpoints.restore(model, optimizer)
    assert progress.step in (1, 2)
    for parameter, tensors in zip(model.parameters(), states[progress.step], strict=True):
        for found, expected in zip([parameter.detach(), *optimizer.state[parameter].values()], tensors, strict=True):
            assert torch.equal(found, expected)
    shutil.rmtree(folder)


@given(n_workers=st.integers(1, 5), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7), merged=st.booleans())
def test_workers_share_all_rows_of_a_step(n_workers, sizes, merged):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    micro_batches = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    shards = [Workers(rank, n_workers).shard(micro_batches, merged=merged) for rank in range(n_workers)]
    assert sorted(row for shard in shards for rows in shard for row in rows) == list(range(sum(sizes)))
    assert all(len(shard) <= (-(-len(sizes) // n_workers) if merged else len(sizes)) for shard in shards)


def test_weights_that_are_not_finite_are_neither_validated_nor_saved(tmp_path, number_tokenizer):
    said: list[str] = []
    with pytest.raises(HeedError, match="or the weights at a checkpoint, and going back to step 0 did not help"):
        run_training(
            tmp_path, number_tokenizer, "huge", learning_rate_factor=1e300, checkpoint_every="1 steps",
            report=said.append,
        )  # fmt: skip
    assert "step 1: the model's numbers are not finite, so it is not saved." in said
    assert not list((tmp_path / "huge" / "checkpoints").glob("*"))
