"""A model folder that was damaged anyhow is noticed, or does no harm."""

import json
import math
import os
import shutil
import stat
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.conftest import OTHERS

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters, weight_shapes
from heed.model.transformer import Transformer
from heed.model_folder import (
    ModelCard,
    load_model,
    read_weights,
    save_model,
    shared_weights,
    write_weights,
)
from heed.model_folder.folder import _contents, _read, _weights_file
from heed.runtime.files import seal
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.tokenizer import SpecialIds
from heed.text.tokenizer_file import load_tokenizer

FILES = ("README.md", "config.json", "manifest.json", "model.safetensors", "tokenizer.json")


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory, number_tokenizer):
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2), len(number_tokenizer))
        folders.append(tmp_path_factory.mktemp("models") / str(seed))
        save_model(folders[-1], model, number_tokenizer, ModelCard("en", "de"))
    return folders


@pytest.mark.slow
@given(
    name=st.sampled_from(FILES),
    how=st.sampled_from(["cut", "flip", "empty", "remove", "swap", "noise", "folder"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_noticed_or_harmless(two_folders, tmp_path_factory, name, how, place, bit):
    good, other = two_folders
    folder = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(good, folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    if how == "cut":
        path.write_bytes(content[:at])
    elif how == "flip":
        content[at] ^= 1 << bit
        path.write_bytes(content)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "remove":
        path.unlink()
    elif how == "swap":
        shutil.copyfile(other / name, path)
    elif how == "noise":
        path.write_bytes(content[:at] + bytes([bit] * 16) + content[at:])
    else:
        path.unlink()
        path.mkdir()
    try:
        loaded = load_model(folder)
    except HeedError as error:
        assert str(folder) in str(error)
    else:
        expected = shared_weights(load_model(good).model)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in shared_weights(loaded.model).items())
        assert loaded.tokenizer == load_model(good).tokenizer
    finally:
        shutil.rmtree(folder)


ARCH = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2)


@pytest.fixture
def folder(two_folders, tmp_path):
    return shutil.copytree(two_folders[0], tmp_path / "model")


def change_config(folder, *path, value):
    """What a stranger can do: change config.json and seal the folder again."""
    config = json.loads((folder / "config.json").read_text())
    target = config
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config).replace("Infinity", "1e400"))
    seal(folder)


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


@pytest.mark.slow
def test_many_tiny_layers_are_refused_before_one_is_made(folder):
    """20,000 layers of width 2 in the weights' file, as many as fit into 1,000 in config.json."""
    change_config(folder, "architecture", value=Architecture(n_layers=1000, d_model=2, d_ff=1, n_heads=1).model_dump())
    tensors = {f"encoder.{i}.feed_forward.inner.bias": torch.zeros(1) for i in range(20_000)}
    save_file(tensors, folder / "model.safetensors")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(50_000))
    seal(folder)
    started = time.process_time()
    with pytest.raises(HeedError, match=r"model\.safetensors"):
        load_model(folder)
    save_file(tensors | {"filling": torch.zeros(50_000)}, folder / "model.safetensors")
    seal(folder)
    with pytest.raises(HeedError, match="weight decoder.0.cross_attention.kv.weight is missing"):
        load_model(folder)
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    "arch",
    [
        Architecture(n_layers=2, d_model=8, d_ff=6, n_heads=2, share=share, positions=positions, **widths)
        for share in ("all", "tgt", "none")
        for positions in ("sinusoid", "learned")
        for widths in ({}, {"d_k": 3, "d_v": 5})
    ]
    + [
        Architecture(n_layers=2, d_model=8, d_ff=6, n_heads=2, d_k=3, d_v=5, share=share, **changes)
        for share in ("all", "tgt", "none")
        for changes in ({name: value} for name, value in OTHERS.items())
    ]
    + [Architecture(d_model=8, d_ff=6, n_heads=2, share=share, **OTHERS) for share in ("all", "tgt", "none")],
)
def test_the_shapes_by_formula_are_those_of_the_model(arch):
    for sizes in ((20,), (20, 20 if arch.share == "all" else 30)):
        model = Transformer(arch, *sizes)
        assert weight_shapes(arch, *sizes) == {n: tuple(w.shape) for n, w in shared_weights(model).items()}
        assert n_parameters(arch, *sizes) == sum(parameter.numel() for parameter in model.parameters())


# What Heed 0.1 wrote, and the weights beside it.
OLD_ARCHITECTURE = {
    "n_layers": 1, "d_model": 8, "d_ff": 8, "n_heads": 2, "d_k": None, "d_v": None, "dropout": 0.1,
    "attention_dropout": 0.0, "word_dropout": 0.0, "radius": None, "positions": "sinusoid", "max_positions": 1024,
    "share": "all",
}  # fmt: skip
ENCODER_LAYER = (
    *("self_attention.qkv.weight", "self_attention.out.weight"),
    *("self_attention_norm.weight", "self_attention_norm.bias"),
    *("feed_forward.inner.weight", "feed_forward.inner.bias", "feed_forward.outer.weight", "feed_forward.outer.bias"),
    *("feed_forward_norm.weight", "feed_forward_norm.bias"),
)
DECODER_LAYER = (
    *ENCODER_LAYER,
    *("cross_attention.q.weight", "cross_attention.kv.weight", "cross_attention.out.weight"),
    *("cross_attention_norm.weight", "cross_attention_norm.bias"),
)


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


def test_a_model_of_two_vocabularies_is_stored_and_loaded(number_tokenizer, tmp_path):
    n = 20
    words = (
        Vocabulary(pieces=["</s>", "<unk>", *map(str, range(n + 5))]),
        Vocabulary(pieces=["</s>", "<unk>", *map(str, range(n - 2))]),
    )
    tokenizer = SentencePieceTokenizer(*words, SpecialIds(0, 0, 0, 1))
    model = Transformer(ARCH.model_copy(update={"share": "tgt", **OTHERS}), n, n + 7)
    save_model(tmp_path / "other", model, number_tokenizer, ModelCard("en", "de"))
    with pytest.raises(HeedError, match=r"tokenizer.json has \d+ ids, config.json says 20"):
        load_model(tmp_path / "other")
    save_model(tmp_path / "model", model, tokenizer, ModelCard("en", "de"))
    loaded = load_model(tmp_path / "model").model
    assert (loaded.src_vocab_size, loaded.vocab_size) == (n + 7, n)
    for (name, ours), (expected, theirs) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert name == expected and torch.equal(ours, theirs)
    assert f"3 + 1 layers, d_model 8, d_ff 8, 2 heads, {sum(p.numel() for p in model.parameters()):,} parameters, " in (
        readme := (tmp_path / "model" / "README.md").read_text()
    )
    assert f"{n + 7} source ids, {n} target ids" in readme


def test_two_vocabularies_cannot_share_all_matrices(folder):
    with pytest.raises(HeedError, match=r"30 ids and a target vocabulary of 20 cannot share one matrix"):
        Transformer(ARCH, 20, 30)
    change_config(folder, "src_vocab_size", value=30)
    with pytest.raises(HeedError, match=r"config\.json: vocab_size and src_vocab_size differ"):
        load_model(folder)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_whoever_the_umask_lets_may_read_all_files(number_tokenizer, tmp_path, umask):
    before = os.umask(umask)
    try:
        model = Transformer(ARCH, len(number_tokenizer))
        save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "model").iterdir()} == {0o666 & ~umask}


@pytest.mark.parametrize("share", ["all", "tgt", "none"])
def test_a_loaded_model_is_the_saved_one_with_its_matrices_shared(number_tokenizer, tmp_path, share):
    model = Transformer(ARCH.model_copy(update={"share": share}), len(number_tokenizer))
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    loaded = load_model(tmp_path / "model").model
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.requires_grad and ours.device.type == "cpu"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder, value):
    weights = read_weights(folder / "model.safetensors")
    weights["encoder.0.feed_forward.inner.bias"][3] = value
    write_weights(folder / "model.safetensors", weights)
    seal(folder)
    with pytest.raises(
        HeedError, match=r"model\.safetensors: encoder.0.feed_forward.inner.bias holds numbers that are"
    ):
        load_model(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_other_precisions_are_read(folder, dtype):
    weights = read_weights(folder / "model.safetensors")
    others = {name: tensor.to(dtype) for name, tensor in weights.items()}
    write_weights(folder / "model.safetensors", others)
    seal(folder)
    for name, tensor in shared_weights(load_model(folder).model).items():
        assert torch.equal(tensor, others[name].float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.uint8])
def test_weights_that_are_no_floats_are_refused(folder, dtype):
    weights = read_weights(folder / "model.safetensors")
    weights["encoder.0.feed_forward.inner.bias"] = torch.ones(8).to(dtype)
    write_weights(folder / "model.safetensors", weights)
    seal(folder)
    with pytest.raises(HeedError, match="model.safetensors: tensor .* expected F32, F16, BF16, F64: take the model"):
        load_model(folder)


def header_of(path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path, header: bytes, data: bytes, *, length: int | None = None):
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


NAME = "encoder.0.feed_forward.inner.bias"


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": [0, 32]},  # over another tensor
        {"data_offsets": [0, 2**62]},
        {"data_offsets": [-32, 0]},
        {"data_offsets": [64, 32]},
        {"data_offsets": [0.0, 32.0]},
        {"data_offsets": "0:32"},
        {"shape": [2**40, 2**40]},
        {"shape": [-8, -1]},
        {"shape": [True] * 8},
        {"shape": [10**4000] * 5000},
        {"shape": None},
        {"dtype": ["F32"]},
        {"dtype": None},
    ],
)
def test_a_header_with_impossible_places_is_refused(folder, entry):
    path = folder / "model.safetensors"
    header, data = header_of(path)
    header[NAME] |= entry
    write_header(path, json.dumps(header).encode(), data)
    seal(folder)
    with pytest.raises(HeedError, match="damaged or not a safetensors file"):
        load_model(folder)


@pytest.mark.parametrize("header", [b"[" * 100_000, b"[]", b"1", b"", b"\xff\xff", b'{"a": 1}', b"9" * 100_000])
@pytest.mark.parametrize("length", [None, 2**60, 2**63 - 1])
def test_a_header_that_is_none_is_refused(folder, header, length):
    write_header(folder / "model.safetensors", header, bytes(100_000), length=length)
    seal(folder)
    with pytest.raises(HeedError, match="damaged or not a safetensors file"):
        load_model(folder)


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_changed_anywhere_is_refused_or_harmless(two_folders, tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("header") / "model.safetensors"
    content = bytearray((two_folders[0] / "model.safetensors").read_bytes())
    content[int(place * (8 + int.from_bytes(content[:8], "little")))] = byte
    path.write_bytes(content)
    try:
        found = read_weights(path)
    except HeedError as error:
        assert "\n" not in str(error)
    else:
        assert sum(tensor.nbytes for tensor in found.values()) < len(content)


def test_a_file_that_is_cut_while_it_is_read_is_an_error_not_a_signal(folder):
    path = folder / "model.safetensors"
    with pytest.raises(HeedError, match="cut while it was read"), _weights_file(path) as file:
        contents = _contents(file)
        os.truncate(path, path.stat().st_size // 2)
        for stored in contents.values():
            _read(file, stored)


def test_loading_is_refused_if_the_folder_is_replaced_meanwhile(two_folders, folder, monkeypatch):
    load = load_tokenizer

    def replaced_meanwhile(path):
        tokenizer = load(path)
        for name in ("manifest.json", "model.safetensors"):
            shutil.copyfile(two_folders[1] / name, folder / name)
        return tokenizer

    monkeypatch.setattr("heed.model_folder.folder.load_tokenizer", replaced_meanwhile)
    with pytest.raises(HeedError, match="was replaced while it was read"):
        load_model(folder)


def test_what_a_readme_says_is_never_read(folder):
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")  # reading it would wait for ever
    load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "manifest.json"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_regular_file_is_refused(folder, name, kind):
    (folder / name).unlink()
    os.mkfifo(folder / name) if kind == "fifo" else (folder / name).symlink_to("/dev/zero")
    with pytest.raises(HeedError, match=name):
        load_model(folder)


def test_the_command_reports_a_hostile_folder_in_one_line(folder, heed):
    change_config(folder, "card", "decoding", value=[1])
    done = heed("translate", folder, stdin="a b c\n")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "card.decoding" in done.stderr


def test_a_model_folder_loads_as_it_was_saved_and_names_what_is_wrong(tmp_path, number_tokenizer, small_arch):
    model = Transformer(small_arch, len(number_tokenizer))
    folder = tmp_path / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", scores={"test": "BLEU 1"}))
    loaded = load_model(folder)
    assert all(torch.equal(t, shared_weights(model)[n]) for n, t in shared_weights(loaded.model).items())
    assert loaded.card.scores == {"test": "BLEU 1"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(HeedError, match="model.safetensors: damaged"):
        load_model(folder)
    weights.write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    config["architecture"]["d_model"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeedError, match="config.json: damaged: not what manifest.json says"):
        load_model(folder)
    seal(folder)
    with pytest.raises(HeedError, match=r"weight .* has shape .*; config.json asks for"):
        load_model(folder)
    for shapes in ({"d_model": 2**16, "n_heads": 1}, {"n_layers": 1000}):  # more than the file holds
        config["architecture"] |= shapes
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder)
        with pytest.raises(HeedError, match="weight"):
            load_model(folder)
    with pytest.raises(HeedError, match="no such folder"):
        load_model(tmp_path / "nowhere")


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
