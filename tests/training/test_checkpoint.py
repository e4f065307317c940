"""Checkpoints by their names."""

from heed.training.checkpoint import checkpoint_steps


def test_only_a_plain_number_names_a_checkpoint(tmp_path):
    for name in ("10", "9", "0", "²", "٣", "007", "1_0", "1" * 19, "1" * 200, "-1", " 1", "stopped", ".5.part"):
        (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [0, 9, 10]
