from typing import get_type_hints

import pytest

from heed.decoding.option_rules import PARSER_RULES, SEARCH_RULES, Rule, check_rules
from heed.decoding.settings import DecodingOptions, DecodingSettings
from heed.errors import HeedError

LISTS = (
    Rule(("top_k", "top_p", "seed"), "{these} {needs|need} {sample}.", without="sample"),
    Rule(("scores",), "{scores} is for lines, not {format=}.", beside="format", when=lambda given: given["scores"] > 1),
)


def test_the_keywords_of_load_are_the_fields_of_the_settings():
    fields = {name: field.annotation | None for name, field in DecodingSettings.model_fields.items()}
    assert get_type_hints(DecodingOptions) == fields
    assert not DecodingOptions.__required_keys__


@pytest.mark.parametrize(
    ("rules", "given", "message"),
    [
        (LISTS, {"seed": 1}, "seed needs sample."),
        (LISTS, {"seed": 1, "top_k": 2}, "top_k and seed need sample."),
        (LISTS, {"seed": 1, "top_k": 2, "top_p": 0.5, "sample": None}, "top_k, top_p and seed need sample."),
        (LISTS, {"scores": 2, "format": "md"}, "scores is for lines, not format='md'."),
        (
            SEARCH_RULES,
            {"beam_size": 1, "early_stopping": False},
            "early_stopping=False has no effect with beam_size=1",
        ),
        (SEARCH_RULES, {"length_penalty": 0.0, "length_penalty_form": "none"}, "length_penalty has no effect with"),
        (PARSER_RULES, {"min_tokens": 3}, "min_tokens has no effect on a parser"),
    ],
)
def test_the_error_names_the_settings_that_were_given(rules, given, message):
    with pytest.raises(HeedError) as error:
        check_rules(rules, given)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "given", [{"seed": 1, "sample": 0.5}, {"seed": None}, {"scores": 2}, {"scores": 1, "format": "md"}]
)
def test_settings_that_keep_the_rules_are_accepted(given):
    check_rules(LISTS, given)


@pytest.mark.parametrize(
    "given",
    [
        {"beam_size": 1, "early_stopping": True},
        {"beam_size": 2, "early_stopping": False},
        {"early_stopping": False},
        {"length_penalty": 1.0, "length_penalty_form": "paper"},
        {"min_tokens": 0},
    ],
)
def test_settings_with_an_effect_are_accepted(given):
    check_rules(PARSER_RULES, given)
