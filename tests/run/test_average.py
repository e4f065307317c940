"""The model of a run is the mean of its last good checkpoints, and its card says what they cost."""

import pytest
import torch

from heed.errors import HeedError
from heed.model_folder import ModelCard, load_model, read_config
from heed.run.average import average_run
from tests.run.checkpoints import write_checkpoints


@pytest.fixture
def run(tmp_path, small_arch, number_tokenizer):
    """A run folder with three checkpoints, and their weights by step."""
    return tmp_path, write_checkpoints(tmp_path, [5, 10, 20], small_arch, number_tokenizer)


def test_the_model_is_the_mean_of_the_last_checkpoints(run):
    folder, weights = run
    reports: list[str] = []
    assert average_run(folder, last=2, report=reports.append) == folder / "model"
    averaged = load_model(folder / "model").model.state_dict()
    for name, tensor in averaged.items():
        expected = (weights[10][name].double() + weights[20][name].double()) / 2
        assert torch.equal(tensor, expected.float()), name
    assert reports == [f"Averaged 2 checkpoints (steps 10 to 20) into {folder / 'model'}."]


def test_the_card_says_what_training_cost(run):
    folder, _ = run
    average_run(folder, last=5, report=str, out=folder.parent / "elsewhere")
    card = read_config(folder.parent / "elsewhere")[2]
    assert card.trained_on["average of steps"] == "5, 10, 20"
    assert (card.trained_on["steps"], card.trained_on["time"]) == (20, "3m20s")
    assert card.trained_on["FLOPs as the paper counts"].startswith("2.00e+14 ")  # 200 s × 10^12 a second
    assert float(card.trained_on["FLOPs"]) > 0
    average_run(folder, last=1, report=str, card=ModelCard("fr", "it"))
    card = read_config(folder / "model")[2]
    assert (card.src, card.tgt) == ("fr", "it")
    assert "FLOPs as the paper counts" not in card.trained_on  # a card without a rate


def test_fewer_checkpoints_than_asked_for_are_reported(run):
    reports: list[str] = []
    average_run(run[0], last=5, report=reports.append)
    assert reports[0] == "Only 3 of 5 checkpoints exist; averaging those."


def test_a_damaged_checkpoint_is_left_out(run):
    folder, weights = run
    path = folder / "checkpoints" / "10" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    reports: list[str] = []
    average_run(folder, last=2, report=reports.append)
    assert "damaged" in reports[0] and reports[0].endswith("Left out of the average.")
    averaged = load_model(folder / "model").model.state_dict()
    assert all(torch.equal(tensor, weights[20][name]) for name, tensor in averaged.items())


def test_without_a_good_checkpoint_nothing_is_written(run, tmp_path):
    folder, _ = run
    for path in folder.glob("checkpoints/*/model.safetensors"):
        path.unlink()
    with pytest.raises(HeedError, match="no good checkpoint is left"):
        average_run(folder, last=2, report=str)
    assert not (folder / "model").exists()
    with pytest.raises(HeedError, match="no checkpoints; expected a run folder"):
        average_run(tmp_path / "nothing", last=2, report=str)
