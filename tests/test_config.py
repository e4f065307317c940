"""Settings from strangers: bounded, finite, and refused in one line that says where."""

import copy
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from heed.config import MAX_TOML_BYTES, Settings, merged, parse_override, read_toml, toml_text, validated
from heed.data.settings import DataSettings
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.runs.recipe import Recipe, read_recipe
from tests.conftest import n_examples
from tests.end_to_end.test_command_line import assert_one_clear_line

RECIPE = '[data]\nsrc = "a"\ntgt = "b"\ntrain = ["x", "y"]\ndev = ["v", "w"]\n'
# What no good recipe holds, and what its one line says.
HOSTILE = {
    "deep lists": ("a = " + "[" * 100_000, "nested too deeply"),
    "deep tables": ("a = " + "{a = " * 50_000, "nested too deeply"),
    "twenty lists": ("a = " + "[" * 20 + "]" * 20, "nested too deeply"),
    "long integer": ("a = 1" + "0" * 100_000, "an integer has more than"),
    "long dotted key": ("a." * 50_000 + "a = 1", "line 1 has more than 256 dots"),
    "deep dotted keys": ("a." * 250 + "a = 1", "nested too deeply"),
    "not UTF-8": ("a = '\udcff'", "not UTF-8 at byte 5"),
    "not TOML": ("a = 1\nb = =\n", "not valid TOML: Invalid value (at line 2, column 5)"),
}


def refusal(function, *args, **keywords) -> str:
    with pytest.raises(HeedError) as caught:
        function(*args, **keywords)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recipe_is_refused_in_one_line_with_its_path(tmp_path, name):
    text, expected = HOSTILE[name]
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    message = refusal(read_recipe, path)
    assert message.startswith(f"{path}: ") and expected in message


@pytest.mark.parametrize("name", ["deep lists", "deep tables", "twenty lists", "long integer"])
def test_a_hostile_override_is_refused_in_one_line(name):
    text, expected = HOSTILE[name]
    message = refusal(parse_override, f"model.d_ff={text[4:]}")
    assert message.startswith("--set model.d_ff=") and expected in message


@pytest.mark.parametrize("text", ["500\nb = 3", "500#0", "500 # many", '"en"\ntgt="fr"', "500]\nb = [3", ""])
def test_an_override_is_one_value_all_of_which_counts(text):
    assert parse_override(f"data.a={text}") == {"data": {"a": text.strip()}}


@pytest.mark.parametrize(("text", "value"), [("500", 500), ("[1, 2]", [1, 2]), ('"a#b"', "a#b"), ("a#b", "a#b")])
def test_an_override_is_toml_or_a_text(text, value):
    assert parse_override(f"data.a={text}") == {"data": {"a": value}}


def test_a_recipe_may_begin_with_a_signature_of_utf_8(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(tmp_path / "r.toml") == {"a": 1}


def test_an_override_names_a_setting_not_a_tower_of_tables():
    assert "more than 16 parts" in refusal(parse_override, "a." * 50_000 + "a=1")
    assert "more than 256 dots" in refusal(parse_override, "a={" + "a." * 50_000 + "a=1}")
    assert "NAME=VALUE" in refusal(parse_override, "x" * 100_000)


def test_only_a_regular_file_of_bounded_length_is_a_recipe(tmp_path, heed):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "long.toml").write_text("#" * (MAX_TOML_BYTES + 1))
    for path in ("/dev/zero", tmp_path / "fifo", tmp_path / "long.toml", tmp_path, tmp_path / "missing"):
        assert refusal(read_toml, Path(path)).startswith(f"{path}: ")
    assert_one_clear_line(heed("train", "/dev/zero", "--run", tmp_path / "run"), "/dev/zero: ")
    assert_one_clear_line(heed("train", tmp_path / "fifo", "--run", tmp_path / "run"), "fifo: ")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.learning_rate_factor", "inf"),
        ("training.learning_rate_factor", "nan"),
        ("training.max_minutes", "1e400"),
        ("training.clip_norm", "inf"),
        ("data.max_ratio", "inf"),
        ("decoding.length_penalty", "inf"),
        ("decoding.length_penalty", "11.0"),
        ("model.radius", str(10**18)),
        ("model.n_layers", "20000"),
        ("model.max_positions", str(2**40)),
        ("model.d_model", "0x" + "f" * 100_000),
        ("tokenizer.vocab_size", "1e400"),
        ("tokenizer.vocab_size", str(2**31)),
        ("data.src", f"[{'1, ' * 10_000}]"),
        ("data.train", '["\\u0000", "x"]'),
        ("data.xxxxxxxxx" + "x" * 10_000, "1"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_short_line(tmp_path, setting, value):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    message = refusal(read_recipe, path, [f"{setting}={value}"])
    assert ("is not a file name" if setting == "data.train" else setting[:20]) in message


@pytest.mark.parametrize(
    "override", ["model.\udc80=1", "\udc80=1", "data.src=\udc80", 'data.tests={"\udc80"=["a", "b"]}']
)
def test_half_a_surrogate_pair_in_an_override_is_refused(tmp_path, override):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    message = refusal(read_recipe, path, [override])
    assert "'\\udc80'" in message and "\udc80" not in message


def test_an_unknown_preset_is_shown_cut_short(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(f"preset = '{'x' * 10_000}'")
    assert refusal(read_recipe, path).startswith(f"{path}: unknown preset 'xxx")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e-320, 0.0, 0.001, 1000.0])
def test_a_temperature_that_draws_rubbish_is_refused(value):
    assert "temperature" in refusal(validated, SamplingSettings, {"temperature": value}, where="--sample")


def test_every_whole_number_of_a_recipe_or_a_model_has_an_upper_bound():
    kinds = [next((part for part in get_args(field.annotation) if part is not NoneType), field.annotation)
             for name, field in Recipe.model_fields.items() if name != "training"]  # fmt: skip
    assert Architecture in kinds and DecodingSettings in kinds
    for kind in (*kinds, SamplingSettings):
        assert isinstance(kind, type) and issubclass(kind, Settings)
        for name, field in kind.model_fields.items():
            if int in (field.annotation, *get_args(field.annotation)):
                bounds = [bound for limit in field.metadata if (bound := getattr(limit, "le", None)) is not None]
                if not bounds:  # checked by a function, since the setting may be something other than a number
                    given = {"src": "a", "tgt": "b"} if kind is DataSettings else {}
                    assert name in refusal(validated, kind, given | {name: 2**63}, where="here")
                    continue
                assert bounds[0] < 2**63, f"{kind.__name__}.{name}"


class Inner(Settings):
    size: int = Field(default=1, ge=1, le=9)


class Outer(Settings):
    name: str = "plain"
    rate: float | None = None
    inner: Inner = Inner()
    extra: Inner | None = None


def test_settings_are_frozen_and_never_converted():
    outer = validated(Outer, {"inner": {"size": 3}}, where="here")
    with pytest.raises(ValidationError, match="frozen"):
        outer.name = "another"
    assert refusal(validated, Outer, {"name": 3}, where="here") == (
        "here: setting name: input should be a valid string, found 3."
    )
    assert "setting inner.size" in refusal(validated, Outer, {"inner": {"size": "3"}}, where="here")
    assert "setting inner.size" in refusal(validated, Outer, {"inner": {"size": 2.0}}, where="here")


def test_an_unknown_setting_is_refused_with_the_nearest_name_or_its_siblings():
    message = refusal(validated, Outer, {"inner": {"sise": 3}}, where="here")
    assert message == "here: unknown setting inner.sise; did you mean inner.size?"
    message = refusal(validated, Outer, {"extra": {"sise": 3}}, where="here")  # a table that may be left out
    assert message == "here: unknown setting extra.sise; did you mean extra.size?"
    message = refusal(validated, Outer, {"zzzz": 3}, where="here")
    assert message == "here: unknown setting zzzz; known: name, rate, inner, extra."


names = st.text("abcdef", min_size=1, max_size=3)
values = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text("aZ \"\\\n\t#=.'é😀", max_size=8)
)
tables = st.recursive(
    st.dictionaries(names, values | st.lists(values, max_size=3), max_size=4),
    lambda inner: st.dictionaries(names, values | inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=n_examples(50))
@given(tables)
def test_toml_text_reads_back_as_what_was_written(table):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(toml_text(table), encoding="utf-8", newline="")
        assert read_toml(path) == table


@settings(max_examples=n_examples(50))
@given(tables, tables)
def test_of_two_tables_the_changes_win_and_the_rest_stays(base, changes):
    def check(base: object, changes: object, result: object) -> None:
        if not (isinstance(base, dict) and isinstance(changes, dict)):
            assert result == changes
            return
        assert isinstance(result, dict) and result.keys() == base.keys() | changes.keys()
        for key, value in result.items():
            if key in base and key in changes:
                check(base[key], changes[key], value)
            else:
                assert value == (changes if key in changes else base)[key]

    before = copy.deepcopy((base, changes))
    check(base, changes, merged(base, changes))
    assert (base, changes) == before
    assert merged(base, {}) == base and merged({}, changes) == changes
