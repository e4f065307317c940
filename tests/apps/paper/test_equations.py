"""What the page of equations claims, from the formulas themselves."""

import math
import os

import pytest
import torch

from heed.apps.paper.equations import dot_products, offset_matrix, page, position_errors, schedule
from heed.apps.paper.result_page import Page, command


def test_a_position_is_turned_into_another_by_one_matrix():
    assert max(position_errors().values()) < 2e-7  # fp32's rounding of values up to 1, on both sides
    turn = offset_matrix(3, 8)
    assert torch.allclose(turn @ turn.T, torch.eye(8, dtype=torch.float64), atol=1e-12)  # a rotation
    assert torch.allclose(turn @ turn, offset_matrix(6, 8), atol=1e-12)


@pytest.mark.slow
def test_variance_is_d_k_and_division_keeps_the_gradient():
    rows = {row["d_k"]: row for row in dot_products((1, 64, 1024))}
    for width, row in rows.items():
        assert row["variance"] == pytest.approx(width, rel=0.1)  # 128,000 scores that share 2,000 queries
    assert rows[1024]["plain_gradient"] < rows[64]["plain_gradient"] / 2
    assert rows[1024]["scaled_gradient"] == pytest.approx(rows[64]["scaled_gradient"], rel=0.05)


def test_the_schedule_peaks_where_the_paper_warms_up_to():
    base, big = schedule()
    assert base["peak_rate"] == pytest.approx(1 / math.sqrt(512 * 4000))
    assert big["last_rate"] == pytest.approx(1 / math.sqrt(1024 * 300_000))


@pytest.mark.slow
def test_the_page_has_its_plots(tmp_path):
    path = page().write(tmp_path)
    text = path.read_text()
    for plot in tmp_path.glob("*.svg"):
        assert plot.name in text and plot.read_text().startswith("<?xml")
    assert len(list(tmp_path.glob("*.svg"))) == 3


def test_a_folder_whose_name_is_no_text_is_named_with_escapes(tmp_path):
    folder = tmp_path / os.fsdecode(b"b\xfccher")
    made = Page("some", "# Some\n", command("equations", model=folder)).write(folder)
    assert made.read_text(encoding="utf-8").count("b\\udcfccher") == 2
    Page("some", "# Some\n", command("equations")).write(folder)  # and known as Heed's
