"""heed info finds the model of whatever it is given, and counts its parameters."""

import pytest

from heed.errors import HeedError
from heed.runs.average import average_run
from heed.runs.describe import describe
from tests.runs.checkpoints import write_checkpoints


def test_a_run_stands_for_its_model_and_before_that_for_its_last_checkpoint(tmp_path, small_arch, number_tokenizer):
    write_checkpoints(tmp_path, [5, 10], small_arch, number_tokenizer)
    assert describe(tmp_path)["model"] == str(tmp_path / "checkpoints" / "10")
    average_run(tmp_path, last=2, report=str)
    facts = describe(tmp_path)
    assert facts == describe(tmp_path / "model")
    assert (facts["model"], facts["languages"]) == (str(tmp_path / "model"), "en → de")
    assert facts["vocabulary"] == len(number_tokenizer)
    assert facts["shapes"]["n_layers"] == small_arch.n_layers
    assert facts["trained on"]["steps"] == 10
    assert "scores" not in facts  # there are none yet


def test_a_recipe_is_counted_for_its_own_vocabulary_or_another(tmp_path):
    (tmp_path / "r.toml").write_text(
        'preset = "tiny"\n[data]\nsrc = "a"\ntgt = "b"\ncorpus = "c"\n[tokenizer]\nvocab_size = 1000\n'
    )
    facts = describe(tmp_path / "r.toml")
    assert (facts["recipe"], facts["vocabulary"], facts["data"]["corpus"]) == (str(tmp_path / "r.toml"), 1000, "c")
    larger = describe(tmp_path / "r.toml", vocab_size=1500)
    added = larger["parameters"]["total"] - facts["parameters"]["total"]
    assert added == 500 * facts["shapes"]["d_model"]  # all embeddings share one matrix
    assert facts["parameters"]["total"] == sum(n for part, n in facts["parameters"].items() if part != "total")


def test_a_recipe_needs_no_suffix(tmp_path):
    (tmp_path / "mine").write_text('preset = "tiny"\n[data]\nsrc = "a"\ntgt = "b"\ncorpus = "c"\n')
    assert describe(tmp_path / "mine")["data"]["corpus"] == "c"


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(HeedError, match="not a model folder"):
        describe(tmp_path)
    with pytest.raises(HeedError, match="no such folder"):
        describe(tmp_path / "nowhere")
    with pytest.raises(HeedError, match="cannot be read"):
        describe(tmp_path / "nowhere.toml")
