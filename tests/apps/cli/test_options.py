import inspect
import string
from typing import get_args

import pytest
import typer

from heed.apps.cli.options import check_options
from heed.apps.commands import app
from heed.apps.translation.command import EVALUATE_RULES, LOADED_RULES, TRANSLATE_RULES
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError

COMMANDS = typer.main.get_command(app).commands


def options_of(verb: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(COMMANDS[verb].callback).parameters)


@pytest.mark.parametrize("verb", ["translate", "translate-file", "score", "evaluate", "parse"])
def test_an_option_has_the_type_bound_and_description_of_its_field(verb):
    options = options_of(verb)
    names = DecodingSettings.model_fields.keys() & options
    assert names
    for name in names:
        field, (kind, option) = DecodingSettings.model_fields[name], get_args(options[name].annotation)
        assert options[name].default is None
        assert kind == (str | None if name == "length_penalty_form" else field.annotation | None)
        whole = field.annotation in (int, int | None)
        assert option.min == (field.metadata[0].ge if whole else None)
        description = field.description.replace("beam_size", "--beam")
        assert option.help.lower() == f"{description.lower()}. default: the model's recipe."


def test_the_options_keep_their_names():
    names = [parameter.opts + parameter.secondary_opts for parameter in COMMANDS["translate"].params[1:8]]
    assert names == [
        ["--beam"],
        ["--length-penalty"],
        ["--length-penalty-form"],
        ["--early-stopping", "--exact"],
        ["--min-tokens"],
        ["--max-tokens"],
        ["--max-extra-tokens"],
    ]


@pytest.mark.parametrize(
    ("verb", "rules"), [("translate", (*TRANSLATE_RULES, *LOADED_RULES)), ("evaluate", EVALUATE_RULES)]
)
def test_rules_name_only_options_of_their_verb(verb, rules):
    known = {*options_of(verb), "these", *(DecodingSettings.model_fields if verb == "evaluate" else ())}
    for rule in rules:
        named = {key.strip("=") for _, key, _, _ in string.Formatter().parse(rule.says) if key and "|" not in key}
        assert {*rule.options, *named, *filter(None, (rule.beside, rule.without))} <= known, rule


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        (TRANSLATE_RULES, {"language": "en"}, "--language is for documents; give --format too."),
        (
            TRANSLATE_RULES,
            {"document_format": "md", "as_json": True, "n_best": 2, "strict": False, "prefix": ""},
            "--n-best and --json are for lines; leave out --format or --n-best and --json.",
        ),
        (TRANSLATE_RULES, {"sample": 1.0, "early_stopping": True}, "--early-stopping is for search only; leave it out"),
        (TRANSLATE_RULES, {"sample": 1.0, "early_stopping": False}, "--exact is for search only; leave it out"),
        (TRANSLATE_RULES, {"mbr": 5, "beam_size": 4}, "--mbr 5 is the size of the beam too; leave out --beam."),
        (TRANSLATE_RULES, {"mbr": 5, "n_best": 6}, "--n-best 6 needs as many candidates, but --mbr is 5; 100 is"),
        (
            TRANSLATE_RULES,
            {"sample": 1.0, "length_penalty": 1.0, "length_penalty_form": "paper"},
            "--length-penalty and --length-penalty-form change only the scores of samples; add --scores or --json, or "
            "leave them out.",
        ),
        (LOADED_RULES, {"n_best": 6, "beam_size": 4}, "--n-best 6 needs a beam of at least 6, found 4; set --beam."),
        (
            EVALUATE_RULES,
            {"hyp": "x", "beam_size": 2, "device": "cpu"},
            "--hyp is translated already: leave out --beam",
        ),
        (EVALUATE_RULES, {"beam_size": 1, "early_stopping": False}, "--exact has no effect with --beam 1, which"),
    ],
)
def test_the_error_names_the_options_as_the_user_wrote_them(rules, options, message):
    with pytest.raises(HeedError) as error:
        check_options(rules, **options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 1.0, "n_best": 3, "length_penalty": 1.0},
        {"sample": 1.0, "scores": True, "length_penalty": 1.0},
        {"mbr": 5, "n_best": 5},
        {"document_format": "md", "language": "en", "strict": False, "beam_size": 2},
    ],
)
def test_options_with_an_effect_are_accepted(options):
    check_options(TRANSLATE_RULES, **options)
