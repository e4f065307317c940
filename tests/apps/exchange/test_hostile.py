"""What is damaged, made by a stranger or of another kind is one line and status 1; nothing appears at OUT."""

import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.apps.exchange.folders import ENGLISH, exported, random_folder, random_network
from tests.apps.exchange.test_marian import LIKE_MARIAN
from tests.text.test_sentencepiece import GERMAN, trained

from heed.apps.cli import process
from heed.apps.commands import app
from heed.apps.exchange.marian import SETTINGS
from heed.model_folder import ModelCard, save_model
from heed.runtime.manifest import sha256_of
from heed.runtime.memory import peak_memory, reset_peak_memory
from heed.text.sentencepiece import marian_tokenizer
from heed.text.tokenizer import TokenizerSettings, train_tokenizer


@pytest.fixture
def command(capsys):
    """Runs the command line in this process: its status, and the lines on standard error."""

    def run(*args: object) -> tuple[int, list[str]]:
        with (
            mock.patch.object(sys, "argv", ["heed", *map(str, args)]),
            mock.patch.object(process, "_on_signals"),
            pytest.raises(SystemExit) as end,
        ):
            process.run_and_exit(app)
        return end.value.code, capsys.readouterr().err.splitlines()

    return run


@pytest.fixture
def refused(command, tmp_path):
    """Asserts that a command is refused in one line of these parts, and writes nothing beside its input."""

    def check(*args: object, message: str) -> None:
        before = hashes(tmp_path)
        status, lines = command(*args)
        assert status == 1, lines
        assert len(lines) == 1 and lines[0].startswith("heed: ") and message in lines[0], lines
        assert len(lines[0]) < 1000
        assert hashes(tmp_path) == before

    return check


@pytest.fixture
def not_imported(refused):
    """Asserts that the import of a folder, by the program of its name, is refused."""

    def check(folder: Path, message: str) -> None:
        program = {"hf": "huggingface"}.get(folder.name, folder.name)
        refused("import", folder, folder.parent / "out", "--from", program, message=message)

    return check


def hashes(folder: Path) -> dict[Path, str | None]:
    """What lies in a folder; none of its content stays in memory."""
    return {path: sha256_of(path) if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    """Folders that can be imported: hf and marian; and a model folder."""
    parent = tmp_path_factory.mktemp("originals")
    tokenizer = train_tokenizer(ENGLISH, TokenizerSettings(vocab_size=600))
    random_folder(parent / "model", tokenizer, attention_bias=True, output_bias=True)
    exported(parent / "model", parent / "hf", "huggingface")
    (parent / "joint.spm").write_bytes(trained([*ENGLISH, *GERMAN], vocab_size=200))
    joint = marian_tokenizer(parent / "joint.spm", parent / "joint.spm")
    exported(random_folder(parent / "zero", joint, **LIKE_MARIAN), parent / "marian", "marian")
    return parent


@pytest.fixture
def hf(originals, tmp_path) -> Path:
    return Path(shutil.copytree(originals / "hf", tmp_path / "hf"))


@pytest.fixture
def npz(originals, tmp_path) -> Path:
    return Path(shutil.copytree(originals / "marian", tmp_path / "marian"))


# Hugging Face's folders


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; Heed imports marian, m2m_100, mbart"),
        ({"model_type": ["marian"]}, "model_type is ['marian']"),
        ({"activation_function": "gelu_new"}, "activation_function is 'gelu_new'; Heed knows relu"),
        ({"activation_function": ["relu"]}, "activation_function is ['relu']"),
        ({"scale_embedding": False}, "scale_embedding is false"),
        ({"scale_embedding": "false"}, "scale_embedding is 'false'; expected true or false"),
        ({"share_encoder_decoder_embeddings": False, "tie_word_embeddings": 0}, "tie_word_embeddings is 0"),
        ({"share_encoder_decoder_embeddings": False}, "weight model.encoder.embed_tokens.weight is missing"),
        ({"encoder_layers": "2"}, "encoder_layers is '2'; expected a number"),
        ({"encoder_layers": -1}, "n_layers"),
        ({"encoder_layers": 2.0}, "encoder_layers is 2.0; expected a number"),
        ({"decoder_layers": 3}, "decoder.2.cross_attention.k.bias is missing"),
        ({"encoder_layers": 1, "decoder_layers": 1}, "decoder.1.cross_attention.k.bias is one too many"),
        ({"encoder_layers": 10**9}, "n_layers"),
        ({"encoder_layers": 1000, "decoder_layers": 1000}, "is missing"),
        ({"d_model": 10**4000}, "d_model"),
        ({"d_model": 33}, "d_model=33"),
        ({"d_model": True}, "d_model"),
        ({"encoder_ffn_dim": 1_000_000, "decoder_ffn_dim": 1_000_000}, "has shape"),
        ({"encoder_ffn_dim": 7}, "encoder_ffn_dim and decoder_ffn_dim differ"),
        ({"decoder_attention_heads": 1}, "encoder_attention_heads and decoder_attention_heads differ"),
        ({"encoder_attention_heads": 0, "decoder_attention_heads": 0}, "n_heads"),
        ({"dropout": 10**400}, "dropout"),
        ({"pad_token_id": None}, "pad_token_id, decoder_start_token_id and eos_token_id must be ids"),
        ({"eos_token_id": -1}, "must be ids"),
        ({"eos_token_id": 10**100}, "its tokenizer 0, 1, 2"),
        ({"decoder_start_token_id": 0}, "config.json has pad, start and eos 0, 0, 2; its tokenizer 0, 1, 2"),
        ({"heed": {"architecture": {"n_layers": "x"}}}, "n_layers"),
        ({"heed": {"architecture": 3}}, "heed.architecture"),
        ({"heed": {"architecture": {"d_k": 1000}}}, "has shape"),
        ({"heed": {"card": {"src": "\ud800", "tgt": "de"}}}, "config.json: holds half a surrogate pair"),
        ({"heed": {"card": {"src": "en", "tgt": "de", "trained_on": {"a": [[0]]}}}}, "trained_on"),
        ({"heed": {"card": {"src": "en", "tgt": "de", "decoding": {"a": {"b": 0}}}}}, "decoding"),
        ({"heed": {"card": {}}}, "src"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_absurd_values_in_config_json_are_named(hf, not_imported, changes, message):
    change_config(hf, **changes)
    not_imported(hf, message)


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"a": ' * 50_000, "\xff", '{"model_type": 1e999}', "9" * 5000]
)
def test_a_config_that_is_none_is_one_line(hf, not_imported, content):
    (hf / "config.json").write_bytes(content.encode("latin-1"))
    not_imported(hf, "config.json: ")


POSITIONS = "model.decoder.embed_positions.weight"
NO_AXES = {"model.shared.weight": torch.tensor(1.0)}


def not_finite(weights):
    weights["model.encoder.layers.0.fc1.weight"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (not_finite, "not finite"),
        (lambda weights: weights.update(NO_AXES), "embedding.weight has shape ()"),
        (lambda weights: weights.update(NO_AXES) or weights.pop("final_logits_bias"), "embedding.weight has shape ()"),
        (lambda weights: weights.update({"model.shared.weight": torch.ones(2**61 - 1, 0)}), "holds no numbers"),
        (lambda weights: weights.update({POSITIONS: torch.ones(0, 2**40)}), "holds no numbers"),
        (lambda weights: weights.pop("model.encoder.layers.0.fc1.weight"), "feed_forward.inner.weight is missing"),
        (
            lambda weights: weights.update({"model.extra.weight": torch.ones(1)}),
            "a model of this type has no weight 'model.extra.weight'",
        ),
        (lambda weights: weights.update({"model.encoder.layers.x.fc1.weight": torch.ones(1)}), "is one too many"),
        (lambda weights: weights.update({"lm_head.weight": torch.ones(3)}), "differ, which config.json says are one"),
        (
            lambda weights: weights.update({"model.shared.weight": weights["model.shared.weight"][:-1].clone()}),
            "has shape",
        ),
        (lambda weights: weights.update(final_logits_bias=torch.ones(7, 7)), "output.bias has shape (49,)"),
        (
            lambda weights: weights.update({"model.decoder.layers.1.self_attn.v_proj.weight": torch.ones(5, 32)}),
            "self_attention.v.weight has shape (5, 32)",
        ),
        (lambda weights: weights.update({POSITIONS: torch.ones(9, 32)}), f"{POSITIONS} are not the sinusoids"),
        (lambda weights: weights.update({POSITIONS: torch.ones(9, 31)}), f"{POSITIONS} are not the sinusoids"),
    ],
)
def test_other_weights_are_named(hf, not_imported, change, message):
    change_weights(hf, change)
    not_imported(hf, message)


class Touch:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


SPREAD = torch.zeros(100_000)


def as_pickle(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")


@pytest.mark.parametrize("form", ["torch", "legacy", "pickle"])
def test_code_in_a_pickle_never_runs(hf, not_imported, form):
    touched = hf.parent / "touched"
    (hf / "model.safetensors").unlink()
    content = {"model.shared.weight": Touch(touched)}
    if form == "pickle":
        (hf / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    else:
        torch.save(content, hf / "pytorch_model.bin", _use_new_zipfile_serialization=form == "torch")
    not_imported(hf, NO_TENSORS)
    assert not touched.exists()
    pickle.loads(pickle.dumps(content))  # noqa: S301  # the file would have appeared
    assert touched.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(1)], "holds no tensors by name"),
        ({1: torch.ones(1)}, "holds no tensors by name"),
        ({"model.shared.weight": 3}, "holds no tensors by name"),
        ({"model.shared.weight": torch.ones(1).expand(10**6, 10**6)}, "its tensors are larger than the file"),
        ({f"w{i}": SPREAD[i::99_970] for i in range(30)}, "its tensors are larger than the file, or overlap"),
        ({f"w{i}": SPREAD for i in range(30)}, "its tensors are larger than the file, or overlap"),
        ({"model.shared.weight": torch.ones(3, 3, dtype=torch.int8)}, "is not a float matrix"),
        ({"model.shared.weight": torch._neg_view(torch.ones(3, 3))}, "is not a float matrix"),
        ({"model.shared.weight": torch.eye(3).to_sparse()}, "holds more than tensors"),
        ({"model.shared.weight": torch.ones(2**20, 2**20, device="meta")}, "holds more than tensors"),
    ],
)
def test_tensors_in_a_pickle_that_would_do_harm_are_refused(hf, not_imported, content, message):
    as_pickle(hf, content)
    not_imported(hf, message)


def peak_of(command) -> int:
    """By how many bytes the memory of this process has grown at most."""
    before = reset_peak_memory()
    command()
    return peak_memory() - before


BYTES = b"\x80\x02cbuiltins\nbytearray\nJ" + (6 * 10**8).to_bytes(4, "little") + b"\x85R."


def write_archive(path: Path | io.BytesIO, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def as_pickled_by(folder: Path, content: bytes) -> None:
    """The weights as an archive of torch's with this pickle."""
    (folder / "model.safetensors").unlink()
    members = {"version": b"3", "byteorder": b"little", "data.pkl": content}
    write_archive(folder / "pytorch_model.bin", {f"archive/{name}": part for name, part in members.items()})


NO_TENSORS = "holds more than tensors, perhaps code"


@pytest.mark.parametrize("form", ["archive", "legacy"])
def test_a_pickle_that_asks_for_memory_does_not_get_it(hf, not_imported, form):
    as_pickled_by(hf, BYTES)
    path = hf / "pytorch_model.bin"
    if form == "legacy":
        torch.save({}, path, _use_new_zipfile_serialization=False)
        start = path.read_bytes()
        path.write_bytes(start.replace(pickle.dumps({}, protocol=2), BYTES, 1))
        assert BYTES in path.read_bytes()
    assert peak_of(lambda: not_imported(hf, NO_TENSORS)) < 10**8


def test_a_pickle_without_a_place_for_its_copy_is_one_line(hf, not_imported, monkeypatch):
    as_pickle(hf, {"model.shared.weight": torch.zeros(3, 3)})
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(hf / "missing")])
    not_imported(hf, "copied into the folder that TMPDIR names (No ")


def test_an_archive_is_checked_as_torch_reads_it(hf, not_imported):
    """Eight bytes behind it hide an archive from zipfile, not from torch."""
    as_pickle(hf, {"model.shared.weight": torch.zeros(10**8)})
    path = hf / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    write_archive(path, members, zipfile.ZIP_DEFLATED)
    small = path.read_bytes()
    assert torch.load(io.BytesIO(small), weights_only=True)["model.shared.weight"].numel() == 10**8
    for content, message in ((small, "would expand to 400,0"), (small + b"PK\5\6abcd", "damaged or no archive")):
        path.write_bytes(content)
        assert peak_of(lambda m=message: not_imported(hf, m)) < 10**8


def hidden(name: str, method: int) -> bytes:
    """An archive with a member of 150 MB, of which its directory says that they are 100 bytes."""
    content, stream = b"\0" * (3 * 10**8 // 2), io.BytesIO()
    write_archive(stream, {name: content}, method)
    return stream.getvalue().replace(len(content).to_bytes(4, "little"), (100).to_bytes(4, "little"))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_is_larger_than_it_says_takes_no_memory(hf, npz, not_imported, method):
    (hf / "model.safetensors").unlink()
    (hf / "pytorch_model.bin").write_bytes(hidden("archive/data/0", method))
    (npz / "model.npz").write_bytes(hidden("Wemb.npy", method))
    for path in (hf / "pytorch_model.bin", npz / "model.npz"):
        assert peak_of(lambda path=path: not_imported(path.parent, f"{path}: ")) < 10**8


def test_two_members_of_one_name_are_refused(hf, npz, not_imported):
    """torch's reader, which does not tell A from a, could take another one than was checked."""
    (hf / "model.safetensors").unlink()
    for path in (hf / "pytorch_model.bin", npz / "model.npz"):
        write_archive(path, {"archive/data.pkl": pickle.dumps({}, protocol=2), "archive/DATA.PKL": BYTES})
        not_imported(path.parent, "two members have the same name")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["x/version", "x/DATA.PKL", "y/data.pkl"], "more than tensors, perhaps code"),
        (["x/DATA.PKL"], "damaged or not a file of weights"),
        (["data.pkl"], "more than tensors, perhaps code"),
    ],
)
def test_a_pickle_in_another_place_than_torch_writes_it_to_is_refused(hf, not_imported, members, message):
    """torch's reader looks in the folder of the first member."""
    (hf / "model.safetensors").unlink()
    contents = {name: BYTES if name.endswith("PKL") else pickle.dumps({}, protocol=2) for name in members}
    write_archive(hf / "pytorch_model.bin", contents)
    assert peak_of(lambda: not_imported(hf, message)) < 10**8


COPIED = b"\x80\x02" + b"c" + b"collections\nOrderedDict\nq\0"  # the class, in the memo at 0


@pytest.mark.parametrize(
    "content",
    [
        COPIED + b"}\x85R.",  # a call with an argument
        COPIED + b")R0h\0}\x85R.",  # the second time by the memo
        COPIED + b"q\1h\1}\x85R.",
        COPIED + b"}\x85\x81.",  # by __new__
        b"\x80\x02" + b"N0" * 2**19 + b"}.",  # a long one
    ],
)
def test_a_pickle_that_copies_is_refused(hf, not_imported, content):
    as_pickled_by(hf, content)
    not_imported(hf, NO_TENSORS)


def test_a_dict_with_methods_of_its_own_is_read_without_them(hf, not_imported):
    weights = OrderedDict({"w": torch.ones(1)})
    weights.itemz = 3
    (hf / "model.safetensors").unlink()
    path = hf / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"itemz", b"items"))
    not_imported(hf, "weight model.shared.weight is missing")


def test_many_names_of_the_same_numbers_take_the_memory_of_one(hf, not_imported):
    half = torch.zeros(2_000_000, dtype=torch.float16)
    as_pickle(hf, {f"w{i}": half[:] for i in range(15)})
    assert peak_of(lambda: not_imported(hf, "weight model.shared.weight is missing")) < 10**8
    torch.save({f"w{i}": half[i:] for i in range(15)}, hf / "pytorch_model.bin")
    assert peak_of(lambda: not_imported(hf, "its tensors are larger than the file")) < 10**8


@pytest.mark.parametrize("shape", [[0, 2**70], [2**62, 4, 0]])
def test_a_dimension_that_no_tensor_has_is_refused(hf, not_imported, shape):
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (hf / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    not_imported(hf, "tensor x has no good shape")


def test_a_foreign_tokenizer_is_refused_with_what_heed_imports(hf, not_imported):
    (hf / "tokenizer.json").write_text("{}")
    not_imported(hf, "Heed imports those alone, or source.spm")


def test_a_pickle_that_is_cut_or_expands_is_refused(hf, not_imported):
    as_pickle(hf, load_file(hf / "model.safetensors"))
    path = hf / "pytorch_model.bin"
    whole = path.read_bytes()
    for content in (whole[:-100], whole[: len(whole) // 2], b"", b"\x80\x02}q\x00.", b"PK\x03\x04"):
        path.write_bytes(content)
        not_imported(hf, "pytorch_model.bin: ")
    write_archive(path, {"archive/data/0": bytes(10**8)}, zipfile.ZIP_DEFLATED)
    not_imported(hf, "would expand to 100,000,000 bytes")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(hf, not_imported, name):
    (hf / name).unlink()
    not_imported(hf, name)


# Marian's


def change_yml(folder: Path, **changes: object) -> None:
    """Of the decoder's settings, in which JSON is YAML."""
    path = folder / "model.npz.decoder.yml"
    lines = [line for line in path.read_text().splitlines() if line.split(":")[0] not in changes]
    path.write_text("\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in changes.items())]) + "\n")


def change_arrays(folder: Path, changes: dict[str, np.ndarray | None], **options: object) -> None:
    """options: of the network, in the arrays' own settings."""
    with np.load(folder / "model.npz") as found:
        arrays = {name: found[name] for name in found.files}
    text = arrays[SETTINGS].tobytes().rstrip(b"\0").decode()
    lines = [line for line in text.splitlines() if line.split(":")[0] not in options]
    text = "\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in options.items())]) + "\n\0"
    arrays |= {SETTINGS: np.frombuffer(text.encode(), np.int8)} | changes
    np.savez(folder / "model.npz", **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transformer-preprocess": "n"}, "transformer-preprocess is 'n'"),
        ({"transformer-postprocess": "da", "transformer-preprocess": "n"}, "Heed imports post-norm"),
        ({"transformer-postprocess-top": "n"}, "transformer-postprocess-top is 'n'"),
        ({"transformer-postprocess": ["dan"]}, "transformer-postprocess is ['dan']"),
        ({"type": "s2s"}, "type is 's2s', which Heed does not have"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg is 'rnn'"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth is 3"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation is 'gelu'"),
        ({"transformer-ffn-activation": {}}, "transformer-ffn-activation is {}"),
        ({"transformer-train-positions": True}, "transformer-train-positions is True"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers is [1, 1]"),
        ({"transformer-decoder-dim-ffn": 7}, "transformer-decoder-dim-ffn differs"),
        ({"input-types": ["class", "sequence"]}, "input-types is ['class', 'sequence']"),
        ({"tied-embeddings-all": False, "tied-embeddings-src": True}, "tied-embeddings-src without tied-embeddings"),
        ({"tied-embeddings-all": False}, "encoder_Wemb is missing"),
        ({"dim-emb": "32"}, "dim-emb is '32'; expected a number"),
        ({"enc-depth": None}, "enc-depth is None; expected a number"),
        ({"dim-vocabs": [5]}, "dim-vocabs is [5]; expected the sizes of two vocabularies"),
        ({"dim-emb": -32}, "d_model"),
        ({"transformer-heads": 0}, "n_heads"),
        ({"transformer-dim-ffn": 1_000_000}, "has shape"),
        ({"output-omit-bias": False}, "decoder_ff_logit_out_b is missing"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_options_of_the_network_that_heed_does_not_have_are_named(npz, not_imported, options, message):
    change_arrays(npz, {}, **options)
    not_imported(npz, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ["a.npz", "b.npz"]}, "an ensemble of 2 models; import each with its own settings"),
        ({"models": []}, "an ensemble of 0 models"),
        ({"models": "model.npz"}, "models is not a list of files"),
        ({"models": ["other.npz"]}, "other.npz: missing; model.npz.decoder.yml names it"),
        ({"models": ["x" * 5000]}, "missing; model.npz.decoder.yml names it"),
        ({"models": ["\0"]}, "missing"),
        ({"vocabs": ["joint.spm"]}, "1 vocabularies; Heed's models have a source and a target"),
        ({"vocabs": ["../../etc/passwd", "/etc/passwd"]}, "marian/passwd: missing"),
        ({"beam-size": "4"}, "beam_size"),
        ({"beam-size": 0}, "beam_size"),
        ({"normalize": -1}, "length_penalty"),
        ({"max-length-factor": 0}, "max_length_factor"),
        ({"word-penalty": 0.5}, "word-penalty is 0.5, which Heed does not have"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_settings_of_the_decoder_that_heed_does_not_have_are_named(npz, not_imported, changes, message):
    change_yml(npz, **changes)
    not_imported(npz, message)


def test_files_are_those_beside_the_settings_wherever_these_say_they_lie(npz, command):
    change_yml(npz, models=["/nowhere/model.npz"], vocabs=["../../joint.spm", "/etc/joint.spm"])
    status, lines = command("import", npz, npz.parent / "out", "--from", "marian")
    assert status == 0 and (npz.parent / "out" / "model.safetensors").exists(), lines


BOMB = "a: &a [1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "- a", "models", "[" * 100_000, "{a: " * 30_000, "a: " * 40_000, BOMB + "word-penalty: *i\n", 
     "a: &a [*a]", "a: !!python/object/apply:os.mknod [x]", 'a: !!int ""', "a: !!bool x", "a: !!timestamp x", 
     "a: !!binary =", "? [a]\n: b", "a: [", "\xff", "\0", "a: " + "1" * 5000, "a: 0x" + "f" * 100_000, 
     "%YAML 9.9\n---\na: b", "x" * 2**18],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_yaml_made_to_do_harm_is_one_line(npz, not_imported, content):
    (npz / "model.npz.decoder.yml").write_bytes(content.encode("latin-1"))
    not_imported(npz, "model.npz.decoder.yml: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Wemb": np.ones((5, 5), np.int8)}, "'Wemb' is of type int8; import the model before it was quantised"),
        ({"Wemb": np.ones((5, 5), np.float64)}, "'Wemb' is of type float64"),
        ({"Wemb": np.float32(1)}, "'Wemb' has 0 axes; expected a matrix"),
        ({"Wemb": np.ones((5, 5, 5), np.float32)}, "'Wemb' has 3 axes; expected a matrix"),
        ({"Wemb": np.ones((5, 32), np.float32)}, "src_embedding.weight has shape (5, 32)"),
        ({"Wemb": np.array([{}], object)}, "damaged or not an .npz"),
        ({"encoder_l1_self_Wq": np.full((32, 32), np.nan, np.float32)}, "not finite"),
        ({"encoder_l1_self_Wq": np.ones((32, 31), np.float32)}, "self_attention.q.weight has shape (31, 32)"),
        ({"encoder_l1_self_bq": np.ones((1, 31), np.float32)}, "self_attention.q.bias has shape (31,)"),
        ({"encoder_l1_self_Wq": None}, "encoder_l1_self_Wq is missing"),
        ({"Wpos": np.ones((32, 32), np.float32)}, "'Wpos' is not part of a Transformer that Heed has"),
        ({SETTINGS: None}, "has no special:model.yml; was it trained with Marian?"),
        ({SETTINGS: np.zeros(5, np.int8)}, "holds no settings of Marian's"),
        ({SETTINGS: np.frombuffer(b"[" * 100_000, np.int8)}, "damaged settings"),
        ({SETTINGS: np.zeros(2**20, np.int8) + 32}, "special:model.yml is longer than 131,072 bytes"),
    ],
)
def test_arrays_that_are_not_the_models_are_named(npz, not_imported, changes, message):
    change_arrays(npz, changes)
    not_imported(npz, message)


def test_an_archive_that_is_cut_expands_or_claims_a_huge_array_is_refused(npz, not_imported):
    path = npz / "model.npz"
    whole = path.read_bytes()
    for content in (whole[:-50], whole[: len(whole) // 2], whole[100:], b"", b"PK"):
        path.write_bytes(content)
        not_imported(npz, "model.npz: damaged or no")
    write_archive(path, {"Wemb.npy": bytes(10**8)}, zipfile.ZIP_DEFLATED)
    not_imported(npz, "would expand to 100,000,000 bytes")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**7, 10**7)})
    write_archive(path, {"Wemb.npy": header.getvalue()})
    not_imported(npz, "model.npz: damaged or not an .npz")
    write_archive(path, {"special:model.yml": b"hello"})
    not_imported(npz, "'special:model.yml' is not an array")


# Commands


def test_out_that_holds_something_else_is_left_alone(originals, refused, tmp_path):
    for name, make in (("file", Path.touch), ("folder", Path.mkdir)):
        out = tmp_path / name
        make(out)
        if name == "folder":
            (out / "thesis.txt").write_text("mine")
        refused("export", originals / "model", out, "--to", "huggingface", message=f"{out}: ")
        refused("import", originals / "hf", out, "--from", "huggingface", message=f"{out}: ")
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine"


def test_a_model_of_another_program_is_never_replaced(originals, refused, tmp_path):
    """Its files have the names of Heed's."""
    out = tmp_path / "thesis"
    shutil.copytree(originals / "hf", out)
    for name in os.listdir(out):
        if name not in ("config.json", "model.safetensors", "tokenizer.json"):
            (out / name).unlink()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    message = "has no manifest.json of Heed's that lists its files"
    refused("import", originals / "hf", out, "--from", "huggingface", message=message)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_commands_that_ask_for_what_is_not_there_are_refused(originals, refused, tmp_path):
    out = tmp_path / "out"
    model = originals / "model"
    refused("export", model, out, "--to", "onnx", message="--to onnx: expected huggingface, ctranslate2 or marian")
    refused("import", model, out, "--from", "ctranslate2", message="--from ctranslate2: expected huggingface or marian")
    refused("export", model, out, "--to", "huggingface", "--int8", message="--int8 is for --to ctranslate2")
    refused("export", model, out, "--to", "marian", "--int8", message="--int8 is for --to ctranslate2")
    refused("export", tmp_path / "none", out, "--to", "marian", message="none: no such folder")
    refused("import", tmp_path / "none", out, "--from", "marian", message="none: no such file or folder")
    refused("import", model, out, "--from", "huggingface", message="model_type is None")
    refused("import", model, out, "--from", "marian", message="holds 0 settings of a decoder")
    refused("import", originals / "marian", out, "--from", "huggingface", message="config.json: missing")
    refused("import", originals / "hf" / "config.json", out, message="config.json is a file of a model folder")
    message = "holds half a surrogate pair"
    refused("import", originals / "hf", out, "--from", "huggingface", "--src", "\udcff", message=message)
    out.mkdir()
    (out / "config.json").touch()
    message = f"{out}: is not empty; choose a new or an empty folder"
    refused("export", model, out, "--to", "huggingface", message=message)


def test_a_parser_is_not_exported(originals, refused, tmp_path, number_tokenizer):
    card = ModelCard("en", "trees", parsing={"leaves": "words"})
    save_model(tmp_path / "parser", random_network(len(number_tokenizer)), number_tokenizer, card)
    for name in ("huggingface", "ctranslate2", "marian"):
        refused("export", tmp_path / "parser", tmp_path / "out", "--to", name, message="only translators can be")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_beams": 0}, "its search (num_beams, length_penalty, limits)"),
        ({"decoder_start_token_id": 3}, "decoder_start_token_id is 3, but 1 in config.json"),
        ({"eos_token_id": [2, 3]}, "eos_token_id is [2, 3], but 2 in config.json"),
    ],
)
def test_a_search_that_cannot_be_is_named_as_the_folder_names_it(hf, refused, changes, message):
    (hf / "generation_config.json").write_text(json.dumps(changes))
    change_config(hf, heed={})
    refused("import", hf, hf.parent / "out", message=message)


def test_a_model_that_writes_symbols_is_not_exported(refused, tmp_path):
    tokenizer = train_tokenizer(ENGLISH, TokenizerSettings(vocab_size=600), ["A", "B"])
    random_folder(tmp_path / "model", tokenizer, n_layers=1)
    for name in ("huggingface", "ctranslate2", "marian"):
        refused("export", tmp_path / "model", tmp_path / "out", "--to", name, message="it writes symbols")


ELSEWHERE = [({"radius": 2}, "a radius"), ({"d_k": 4}, "d_k · n_heads = 16, not d_model"),
             ({"d_v": 16}, "d_v · n_heads = 64, not d_model")]  # fmt: skip
HUGGING_FACE = [({name: value}, f"{name} = {value}") for name, value in (
    ("positions", "learned"), ("positions", "sinusoid-t2t"), ("norm", "pre"), ("decoder_start", "zero"))]  # fmt: skip
# Marian's search makes keys and values of what it did not normalise, from the second token on, and it ignores its own
# option for positions.
MARIAN = [({"norm": "pre"}, "norm = pre"), ({"decoder_start": "bos"}, "decoder_start = bos, not zero"),
          ({"activation": "gelu"}, "activation = gelu")]  # fmt: skip
MARIAN += [
    ({"positions": kind}, f"positions = {kind}, not sinusoid-t2t")
    for kind in ("learned", "sinusoid-halves", "sinusoid")
]


@pytest.mark.parametrize(
    ("program", "to", "base", "changes", "message"),
    [
        (program, to, base, *lacking)
        for program, to, base, own in (
            ("Hugging Face's MarianMTModel", "huggingface", {}, HUGGING_FACE),
            ("Marian", "marian", LIKE_MARIAN, MARIAN),
            ("CTranslate2", "ctranslate2", {}, []),
        )
        for lacking in (*own, *ELSEWHERE)
    ],
)
def test_what_another_program_does_not_have_is_named(
    number_tokenizer, refused, tmp_path, program, to, base, changes, message
):
    random_folder(tmp_path / "model", number_tokenizer, n_layers=1, **(base | changes))
    message = f"this model has {message}, which {program} cannot express"
    refused("export", tmp_path / "model", tmp_path / "out", "--to", to, message=message)
