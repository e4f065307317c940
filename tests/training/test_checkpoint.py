"""Checkpoints by their names, damaged ones, older ones, and their average."""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model, shared_weights
from heed.training.checkpoint import (
    STATE_FILES,
    Checkpoints,
    TrainState,
    average_weights,
    checkpoint_steps,
    read_train_state,
)


def test_only_a_plain_number_names_a_checkpoint(tmp_path):
    for name in ("10", "9", "0", "²", "٣", "007", "1_0", "1" * 19, "1" * 200, "-1", " 1", "stopped", ".5.part"):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [0, 9, 10]


def test_the_average_of_equal_checkpoints_is_the_checkpoint(tmp_path, number_tokenizer, small_arch):
    torch.manual_seed(3)
    models = [Transformer(small_arch, len(number_tokenizer)) for _ in range(2)]
    for name, model in (("a", models[0]), ("b", models[0]), ("c", models[0]), ("d", models[1])):
        save_model(tmp_path / name, model, number_tokenizer, ModelCard("en", "de"))
    same = average_weights([tmp_path / name for name in "abc"])
    for name, tensor in shared_weights(models[0]).items():
        assert torch.equal(same[name], tensor)
    mixed = average_weights([tmp_path / name for name in "ad"])
    for name, tensor in mixed.items():
        expected = (shared_weights(models[0])[name] + shared_weights(models[1])[name]) / 2
        assert torch.allclose(tensor, expected, atol=1e-7)


ARCH = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory, number_tokenizer) -> tuple[Path, dict[int, list[list[torch.Tensor]]]]:
    """A folder, and by step the parameters with their moments."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoints = Checkpoints(folder, keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
    states = {}
    for step in (1, 2):
        torch.manual_seed(step)
        model = Transformer(ARCH, len(number_tokenizer))
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        checkpoints.save(model, optimizer, TrainState(step=step))
        states[step] = [[parameter.detach(), *optimizer.state[parameter].values()] for parameter in model.parameters()]
    return folder, states


@pytest.mark.slow
@given(
    name=st.sampled_from([*STATE_FILES, "manifest.json"]),
    how=st.sampled_from(["cut", "flip", "empty", "remove", "swap"]),
    place=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=n_examples(100))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path_factory, number_tokenizer, two_checkpoints, name, how, place
):
    whole, states = two_checkpoints
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("damaged"), dirs_exist_ok=True))
    path, content = folder / "2" / name, bytearray((folder / "2" / name).read_bytes())
    at = int(place * len(content))
    if how == "remove":
        path.unlink()
    elif how == "swap":
        path.write_bytes((folder / "1" / name).read_bytes())
    else:
        content[at] ^= 1
        path.write_bytes({"cut": content[:at], "flip": content, "empty": b""}[how])
    model = Transformer(ARCH, len(number_tokenizer))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoints = Checkpoints(folder, keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
    state = checkpoints.restore(model, optimizer)
    assert state.step in (1, 2)
    for parameter, tensors in zip(model.parameters(), states[state.step], strict=True):
        for found, expected in zip([parameter.detach(), *optimizer.state[parameter].values()], tensors, strict=True):
            assert torch.equal(found, expected)
    shutil.rmtree(folder)


def test_a_state_before_the_first_finite_gradient_is_restored(tmp_path, number_tokenizer, small_arch):
    checkpoints = Checkpoints(tmp_path, keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
    model = Transformer(small_arch, len(number_tokenizer))
    checkpoints.save(model, torch.optim.Adam(model.parameters()), TrainState(step=1), stopped=True)
    optimizer = torch.optim.Adam(model.parameters())
    assert checkpoints.restore(model, optimizer).step == 1 and not optimizer.state


def test_without_an_undamaged_checkpoint_a_run_does_not_begin_anew(tmp_path, number_tokenizer, small_arch):
    checkpoints = Checkpoints(tmp_path, keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
    model = Transformer(small_arch, len(number_tokenizer))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoints.save(model, optimizer, TrainState(step=1))
    (tmp_path / "1" / "model.safetensors").write_bytes(b"")
    for _ in range(2):  # also when the damaged one has been put aside
        with pytest.raises(HeedError, match="no undamaged checkpoint is left; restore the folder"):
            checkpoints.restore(model, optimizer)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="acts as another user, which only root can")
def test_a_checkpoint_that_may_not_be_read_is_not_damaged(number_tokenizer, small_arch):
    with TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), keep=2, tokenizer=number_tokenizer, card=ModelCard("en", "de"))
        model = Transformer(small_arch, len(number_tokenizer))
        optimizer = torch.optim.Adam(model.parameters())
        checkpoints.save(model, optimizer, TrainState(step=1))
        Path(folder).chmod(0o777)
        (Path(folder) / "1" / "model.safetensors").chmod(0o600)
        os.seteuid(65534)
        try:
            with pytest.raises(HeedError, match="model.safetensors: cannot be read .Permission denied"):
                checkpoints.restore(model, optimizer)
        finally:
            os.seteuid(0)
        assert checkpoints.restore(model, optimizer).step == 1


# As Heed wrote it while it called rollbacks detours.
OLD_STATE = Path(__file__).parents[1] / "golden" / "states" / "detours.json"


def test_a_state_that_calls_rollbacks_detours_is_read(tmp_path):
    old = OLD_STATE.read_text()
    (tmp_path / "trainer.json").write_text(old)
    values = json.loads(old)
    values |= {"rollbacks": values.pop("detours"), "saved_unit": "", "loss_of_best": values["best_loss"]}
    assert vars(read_train_state(tmp_path)) == vars(TrainState()) | values and values["rollbacks"] == 3
    (tmp_path / "trainer.json").write_text(old.replace("detours", "ways"))
    with pytest.raises(HeedError, match="not a checkpoint of this Heed"):
        read_train_state(tmp_path)
