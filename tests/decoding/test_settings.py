"""The length penalty against numbers worked out by hand; the limits of a target; what a search refuses."""

import pytest

from heed.decoding.beam import beam_search
from heed.decoding.scoring import length_penalty
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source, maximum_length
from heed.errors import HeedError
from tests.conftest import SPECIAL
from tests.decoding.searches import MODEL, hypotheses_of, search, sharp_model
from tests.decoding.test_not_finite import Anything


def test_length_penalty_is_that_of_wu_et_al():
    # ((5 + 10) / 6) ^ 0.6 = 2.5 ^ 0.6 = e^(0.6 · 0.916291) = e^0.549774 = 1.732862
    assert length_penalty(10, 0.6) == pytest.approx(1.732862, abs=1e-6)
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(123, 0.0) == 1.0


def test_the_other_forms_divide_by_a_power_of_the_length_and_by_nothing():
    assert length_penalty(8, 2.0, "average") == 64.0
    assert length_penalty(8, 2.0, "none") == 1.0


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 13),
        ({"min_tokens": 40}, 41),  # and eos
        ({"min_tokens": 40, "max_tokens": 50}, 41),
        ({"min_tokens": 5, "max_tokens": 8}, 8),
        ({"min_tokens": 20, "max_tokens": 20}, 20),
        ({"max_length_factor": 2.0}, 8),
    ],
)
def test_the_fewest_tokens_raise_the_limit_and_the_most_tokens_cap_it(changes, limit):
    assert maximum_length(Source(0, [5, 6, 7]), DecodingSettings(max_extra_tokens=10, **changes)) == limit


def test_an_output_of_the_fewest_tokens_ends_if_there_is_room_for_eos():
    for n, ended in ((9, True), (10, False)):
        (found,) = hypotheses_of(MODEL, [[5]], DecodingSettings(min_tokens=n, max_tokens=10))
        assert [len(hypothesis.ids) for hypothesis in found] == [n] and found[0].ended is ended


def test_a_search_with_dropout_is_refused():
    with pytest.raises(HeedError, match=r"call model.eval\(\) first"):
        beam_search(sharp_model().train(), [[5]], SPECIAL, DecodingSettings())


@pytest.mark.parametrize("changes", [{"min_tokens": 3}, {}])
def test_a_constraint_is_combined_with_nothing_that_it_would_not_heed(changes):
    sampling = None if changes else SamplingSettings()
    with pytest.raises(HeedError, match="neither sampling nor min_tokens can be combined with a constraint"):
        list(search([MODEL], [], SPECIAL, DecodingSettings(**changes), sampling=sampling, constraint=Anything()))
