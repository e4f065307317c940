"""Table 2: the paper's own costs come out of its own way of counting."""

import json

import pytest

from heed.apps.paper.table2 import PUBLISHED, page, published_cost, results
from heed.errors import HeedError


def test_time_times_rate_gives_the_published_costs():
    costs = {row.model: row.flops_en_de for row in PUBLISHED}
    assert published_cost(12, 8, "P100") == pytest.approx(costs["Transformer (base)"], rel=0.02)
    assert published_cost(3.5 * 24, 8, "P100") == pytest.approx(costs["Transformer (big)"], rel=0.02)
    with pytest.raises(HeedError, match="V100"):
        published_cost(1, 1, "V100")


def test_the_formula_finds_less_than_the_devices_could_do():
    for run in results()["paper_runs"]:
        assert 0.1 < run["formula"] / run["time_times_rate"] < 1


def test_page_and_json_show_the_same_rows(heed):
    told = json.loads(heed("paper", "table2", "--json").stdout)
    assert [row["model"] for row in told["published"]] == [row.model for row in PUBLISHED]
    assert all(row.model in page().text for row in PUBLISHED)
