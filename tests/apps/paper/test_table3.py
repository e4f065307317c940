"""Table 3: its presets count what the paper counts, its small rows keep the ratios, its verdicts follow the numbers."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.end_to_end.test_command_line import RECIPE, assert_one_clear_line, write_corpus
from tests.parsing.corpus import RECIPE as PARSING

from heed.apps.paper.table3 import (
    FINDINGS,
    FITTING_VOCAB_SIZE,
    ROWS,
    STUDENT,
    architecture,
    chosen,
    measured,
    page,
    pooled_deviation,
    published,
    run_rows,
    scaled,
    validation_perplexities,
    verdict,
)
from heed.config import toml_text, validated
from heed.data.corpora.download import Corpora
from heed.errors import HeedError
from heed.runs.recipe import Recipe

SMALL = {
    "data": {"src": "en", "tgt": "de", "corpus": "multi30k"},
    "model": {"n_layers": 3, "d_model": 128, "d_ff": 512, "n_heads": 8, "dropout": 0.1},
}


def test_every_row_but_big_counts_within_a_million_of_the_paper():
    rows = {fact["preset"]: fact for fact in published(FITTING_VOCAB_SIZE)}
    assert len(rows) == 20
    base = rows["base"]["parameters"]
    for name, fact in rows.items():
        in_paper = fact["published_params_millions"]
        if in_paper is None:  # the paper leaves the column to base
            assert abs(fact["parameters"] - base) <= (1_100_000 if name == "table3-E-learned" else 0)
        elif name != "big":
            assert abs(fact["parameters"] / 1e6 - in_paper) < 1, name
    assert {fact["preset"]: fact["parameters"] for fact in published(35_800)}["big"] == pytest.approx(213e6, abs=1e6)


def test_the_published_columns_are_those_of_the_presets():
    found = {fact["preset"]: fact["settings"] for fact in published()}
    assert list(found["base"].values()) == [6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000]
    assert list(found["big"].values()) == [6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 300_000]
    assert found["table3-A-h32"] == found["base"] | {"h": 32, "d_k": 16, "d_v": 16}
    assert found["table3-B-dk16"] == found["base"] | {"d_k": 16}
    assert found["table3-D-smoothing0.2"] == found["base"] | {"ε_ls": 0.2}


def test_small_rows_have_the_ratios_of_the_paper():
    recipe = validated(Recipe, SMALL, where="test")
    small = {row.preset: scaled(row, recipe, seed=3) for row in ROWS}
    shapes = {
        name: (m.n_layers, m.d_model, m.d_ff, m.n_heads, m.key_width, m.value_width)
        for name, m in ((name, recipe.model) for name, recipe in small.items())
    }
    assert shapes["base"] == (3, 128, 512, 8, 16, 16)
    assert shapes["table3-A-h1"] == (3, 128, 512, 1, 128, 128)
    assert shapes["table3-A-h32"] == (3, 128, 512, 32, 4, 4)
    assert shapes["table3-B-dk16"] == (3, 128, 512, 8, 4, 16)
    assert shapes["table3-C-N2"] == (1, 128, 512, 8, 16, 16)
    assert shapes["table3-C-d1024"] == (3, 256, 512, 8, 32, 32)
    assert shapes["big"] == (3, 256, 1024, 16, 16, 16)
    assert small["big"].model.dropout == 0.3 and small["table3-D-dropout0.0"].model.dropout == 0.0
    assert small["table3-D-smoothing0.2"].training.label_smoothing == 0.2
    assert small["table3-E-learned"].model.positions == "learned"
    assert {recipe.training.seed for recipe in small.values()} == {3}
    assert len({recipe.model_dump_json() for recipe in small.values()}) == 20


def test_a_ratio_that_is_no_whole_number_is_said():
    recipe = validated(Recipe, SMALL | {"model": {"n_layers": 4, "d_model": 128, "n_heads": 8}}, where="test")
    with pytest.raises(HeedError, match="n_layers=4 times 2/6"):
        scaled(next(row for row in ROWS if row.preset == "table3-C-N2"), recipe, seed=1)


def test_a_recipe_that_cannot_be_scaled_binds_no_folder(tmp_path):
    recipe = validated(Recipe, SMALL | {"model": {"n_layers": 4, "d_model": 128, "n_heads": 8}}, where="test")
    options = {"n_seeds": 1, "corpora": Corpora(tmp_path, None, print)}
    with pytest.raises(HeedError, match="n_layers=4 times 2/6"):
        run_rows(ROWS, recipe, tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_rows_are_chosen_by_preset():
    assert [row.preset for row in chosen(["table3-A-h1"])] == ["base", "table3-A-h1"]
    assert len(chosen([])) == 20
    assert [row.preset for row in chosen(["B", "big"])] == ["base", "table3-B-dk16", "table3-B-dk32", "big"]
    with pytest.raises(HeedError, match="table3-A-h3: no row"):
        chosen(["table3-A-h3"])
    assert all(architecture(row) for row in ROWS)


def seeds(*bleus):
    return {str(i): {"bleu": bleu, "perplexity": 10 - bleu / 10} for i, bleu in enumerate(bleus, start=1)}


@pytest.mark.parametrize(
    ("base", "single_head", "expected"),
    [
        ((30.0, 30.2), (28.0, 28.2), "seen"),
        ((28.0, 28.2), (30.0, 30.2), "contradicted"),
        ((30.0, 29.0), (29.5, 30.0), "undecided"),
        ((30.0, 30.2), (29.5, 29.7), "undecided"),  # 3.5 standard errors; with two degrees of freedom 4.3 decide
    ],
)
def test_a_confidence_interval_without_0_decides(base, single_head, expected):
    results = {"base": seeds(*base), "table3-A-h1": seeds(*single_head)}
    said, difference, _ = verdict(FINDINGS[0], results)
    assert said == expected
    assert difference == pytest.approx(sum(base) / 2 - sum(single_head) / 2)
    assert verdict(FINDINGS[1], results) is None  # not run


@pytest.mark.parametrize(
    ("sinusoid", "learned", "expected"),
    [
        ((30.0, 30.02), (30.03, 30.05), "seen"),
        ((30.0, 30.1), (28.0, 28.1), "contradicted"),
        ((30.0, 30.2), (29.62, 29.72), "undecided"),  # the interval reaches beyond half a point
        ((30.0, 31.0), (29.5, 31.5), "undecided"),
    ],
)
def test_alike_is_seen_only_where_the_spread_is_small(sinusoid, learned, expected):
    finding = next(finding for finding in FINDINGS if finding.alike)
    results = {finding.better: seeds(*sinusoid), finding.worse: seeds(*learned)}
    assert verdict(finding, results)[0] == expected


def test_the_quantiles_are_students():
    """Against the density, integrated."""
    for freedom, quantile in enumerate(STUDENT, start=1):
        scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        t = np.linspace(0, quantile, 20_001)
        density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
        assert np.trapezoid(density, t) == pytest.approx(0.475, abs=1e-4)  # three decimals


def test_one_seed_decides_nothing():
    twice = {"base": seeds(30.0, 30.1), "table3-C-N2": seeds(20.0, 20.1), "table3-A-h1": seeds(20.0)}
    assert verdict(FINDINGS[0], twice)[0] == "undecided"
    results = {row.preset: seeds(30 + i / 10) for i, row in enumerate(ROWS)}
    assert {verdict(finding, results)[0] for finding in FINDINGS} == {"undecided"}


@pytest.fixture
def finished(tmp_path):
    """A folder of finished runs, as `heed paper table3 --run` leaves it: base with two seeds, another row with one."""
    recipe = validated(Recipe, SMALL, where="test")
    (tmp_path / "recipe.toml").write_text(toml_text(recipe.model_dump()), encoding="utf-8")
    for run, bleu in (("base/seed-1", 30.0), ("base/seed-2", 30.1), ("table3-A-h1/seed-1", 28.0)):
        folder = tmp_path / run
        folder.mkdir(parents=True)
        result = {"perplexity": 5.0, "bleu": bleu, "signature": "tok:13a", "parameters": 1000, "minutes": 2.0}
        (folder / "result.json").write_text(json.dumps(result))
        entries = [{"kind": "validation", "step": step, "perplexity": 1000 / step} for step in (50, 100, 200)]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return tmp_path


def test_the_page_shows_the_course_of_each_row(finished):
    assert validation_perplexities(finished / "base/seed-1") == {50: 20.0, 100: 10.0}  # the last is dev's own column
    text = page(1000, finished).text
    assert "| preset | parameters | seeds | after 50 | after 100 | dev perplexity | dev BLEU | minutes |" in text
    assert "| `base` | 1,000 | 2 | 20.00 | 10.00 | 5.00 ± 0.00 | 30.05 ± 0.07 | 4 |" in text
    assert "| `table3-A-h1` | 1,000 | 1 | 20.00 | 10.00 | 5.00 | 28.00 | 2 |" in text
    assert "| a single head is worse than 8 | undecided | +2.05 ± 0.09 BLEU |" in text
    assert "| dropout helps | not run |  |" in text
    assert "base is N 3, d_model 128" in text


def test_a_row_that_diverged_decides_nothing_and_leaves_the_others_as_they_are(finished):
    before = pooled_deviation(measured(finished), "bleu")
    for seed, perplexity in ((1, 1e160), (2, 2e160)):  # whose variance no float holds
        path = finished / f"base/seed-{seed}/result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"perplexity": perplexity}))
    text = page(1000, finished).text
    assert "| 20.00 | 10.00 | ∞ | 30.05 ± 0.07 | 4 |" in text
    results = measured(finished) | {"table3-C-N2": seeds(30, 31)}
    assert verdict(next(f for f in FINDINGS if f.claim == "6 layers are better than 2"), results)[0] == "undecided"
    assert pooled_deviation(measured(finished), "bleu") == before
    assert pooled_deviation(measured(finished), "perplexity") == (0, 0)


def test_a_log_with_damaged_lines_still_shows_the_others(finished):
    log = finished / "base/seed-1/metrics.jsonl"
    bad = [
        b"\x00\xff",
        b"[1]",
        b'{"kind": "validation", "st',
        b'{"step": 70}',
        b'{"kind": "validation", "step": 70}',
        b'{"kind": "validation", "step": 70, "perplexity": "low"}',
        b'{"kind": "validation", "perplexity": 3.0}',
    ]
    log.write_bytes(b"\n".join([*bad, log.read_bytes(), *bad]))
    assert validation_perplexities(finished / "base/seed-1") == {50: 20.0, 100: 10.0}
    log.unlink()
    assert validation_perplexities(finished / "base/seed-1") == {}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"perplexity": "low"}', "\x00"])
def test_a_damaged_result_or_recipe_is_one_clear_line(finished, heed, content):
    path = finished / "base/seed-2/result.json"
    good = path.read_text()
    path.write_text(content)
    assert_one_clear_line(heed("paper", "table3", "--folder", finished), str(path))
    path.write_text(good)
    recipe = finished / "recipe.toml"
    recipe.write_text("" if content == "{}" else "x = ")
    assert_one_clear_line(heed("paper", "table3", "--folder", finished), str(recipe))


def test_a_recipe_of_a_parser_is_refused_before_it_trains(tmp_path, heed):
    (tmp_path / "parser.toml").write_text(PARSING.format(treebank="bank", max_steps=1))
    done = heed("paper", "table3", "--run", "--recipe", "parser.toml", cwd=tmp_path)
    assert_one_clear_line(done, "Table 3 is about translation")
    assert [path.name for path in tmp_path.iterdir()] == ["parser.toml"]


def test_rows_are_trained_once_and_the_page_shows_them(tmp_path, heed):
    write_corpus(tmp_path)
    small = RECIPE.replace("n_layers = 1\nd_model = 32", "n_layers = 3\nn_heads = 8\nd_model = 32")
    (tmp_path / "small.toml").write_text(small, encoding="utf-8")
    command = ["paper", "table3", "--run", "--recipe", "small.toml", "--rows", "table3-A-h1,table3-C-N2"]
    with ThreadPoolExecutor(2) as pool:  # two processes share the work
        both = list(pool.map(lambda _: heed(*command, "--seeds", 2, cwd=tmp_path), range(2)))
    assert [process.returncode for process in both] == [0, 0], [process.stderr for process in both]
    assert any("Left to it" in process.stderr for process in both)
    first = heed(*command, "--seeds", 2, cwd=tmp_path)
    assert "| `table3-C-N2` |" in first.stdout and "| 2 |" in first.stdout
    assert "a single head is worse than 8" in first.stdout and "not run" in first.stdout
    measured = json.loads(heed("paper", "table3", "--json", cwd=tmp_path).stdout)["measured"]
    assert set(measured) == {"base", "table3-A-h1", "table3-C-N2"}
    assert measured["base"]["1"]["perplexity"] != measured["base"]["2"]["perplexity"]
    kept = tmp_path / "runs" / "table3" / "recipe.toml"
    written = kept.read_text(encoding="utf-8")
    assert "max_extra_tokens = 50\n" in written  # the default, which an older Heed may not have known
    kept.write_text(written.replace("max_extra_tokens = 50\n", ""), encoding="utf-8")
    again = heed(*command, "--seeds", 2, cwd=tmp_path)
    assert "step" not in again.stderr and again.stdout == first.stdout
    wrong_ones = [
        (["--rows", "x"], "need --run"),
        (["--seeds", 3], "need --run"),
        (["--recipe", "mine"], "need --run"),
        (["--run", "--rows", "AB"], "--rows AB: no row of Table 3"),
        (["--folder", "runs/tabel3"], "no folder runs/tabel3"),
    ]
    for wrong, part in wrong_ones:
        assert_one_clear_line(heed("paper", "table3", *wrong, cwd=tmp_path), part)
    other = heed(*command, "--seeds", 3, "--set", "training.max_steps=30", cwd=tmp_path)
    assert other.returncode == 1 and "trained with other settings" in other.stderr
