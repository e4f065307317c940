"""config.json holds what can be read again; what is wrong in it is named."""

import json
import math
import os

import pytest
from tests.conftest import OTHERS
from tests.model_folder.conftest import ARCH, DECODER_LAYER, ENCODER_LAYER, OLD_ARCHITECTURE, change_config

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, load_model, read_weights, save_model


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((("format",), value) for value in (True, "1", 1.0, [1], None, math.inf)),
        *((("src_vocab_size",), value) for value in (math.inf, True, "5", -1, 0, [600], 600.0)),
        *((("vocab_size",), value) for value in (math.inf, True, "5", -1, 0, 10**30, None, [600], 600.0)),
        *((("architecture",), value) for value in (None, [], "base")),
        *((("card",), value) for value in (None, [], "en-de")),
        *((("card", "decoding"), value) for value in ([1], "beam", 3)),
        (("card", "trained_on"), ["a"]),
        (("card", "scores"), {"dev": 30}),
        (("card", "src"), 1),
        (("card", "tgt"), None),
        (("card", "colour"), "red"),
        *(
            (("card", "languages"), value)
            for value in (
                ["de"],
                {"ids": {"de": 2**40}, "source": "target", "is_forced": True},
                {"ids": {"de": -1}, "source": "target", "is_forced": True},
                {"ids": {"de": 3}, "source": "source", "is_forced": True, "sources": ["en"]},
                {"ids": {"\x1b[2J": 3}, "source": "target", "is_forced": False},
                {"ids": {"de": 3}, "source": "target", "is_forced": False, "sources": ["e\nn"]},
            )
        ),
        (("architecture", "n_layers"), math.inf),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_in_one_line_that_names_it(folder, path, value):
    change_config(folder, *path, value=value)
    with pytest.raises(HeedError) as error:
        load_model(folder)
    assert str(folder / "config.json") in str(error.value) and path[-1] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_format_of_the_future_is_refused_whatever_else_it_holds(folder):
    change_config(folder, "format", value=2)
    change_config(folder, "tricks", value=True)
    with pytest.raises(HeedError, match="format 2; this Heed reads format 1"):
        load_model(folder)


def test_a_folder_is_what_it_was_before_there_were_settings_of_other_transformers(folder, number_tokenizer):
    config = json.loads((folder / "config.json").read_text())
    assert config.keys() == {"format", "architecture", "vocab_size", "card"}
    assert config["architecture"] == OLD_ARCHITECTURE
    names = {"src_embedding.weight"}
    names |= {f"encoder.0.{name}" for name in ENCODER_LAYER} | {f"decoder.0.{name}" for name in DECODER_LAYER}
    assert read_weights(folder / "model.safetensors").keys() == names
    assert load_model(folder).model.arch == ARCH


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_setting_of_other_transformers_is_stored_where_it_differs(number_tokenizer, tmp_path, name):
    arch = ARCH.model_copy(update={name: OTHERS[name]})
    save_model(tmp_path / "model", Transformer(arch, len(number_tokenizer)), number_tokenizer, ModelCard("en", "de"))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architecture"] == OLD_ARCHITECTURE | {name: OTHERS[name]}
    assert load_model(tmp_path / "model").model.arch == arch


def test_what_a_readme_says_is_never_read(folder):
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")  # reading it would wait for ever
    load_model(folder)


@pytest.mark.parametrize("language", ["de\r\nX-Header: 1", "de\x00", "d\u2028e", "x" * 65])
def test_a_language_that_is_no_code_is_refused(tmp_path, number_tokenizer, language):
    """A server would write it into a header."""
    model = Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2), len(number_tokenizer))
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", language))
    with pytest.raises(HeedError, match=r"setting card\.tgt: .* is not the code of a language") as error:
        load_model(tmp_path / "model")
    assert "\n" not in str(error.value)
    for code in ("de", "zh-Hans", "pt_BR", "français", ""):
        save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", code))
        assert load_model(tmp_path / "model").card.tgt == code
