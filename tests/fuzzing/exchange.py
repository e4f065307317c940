"""Any bytes, as a file of another program's model, beside good ones: it is imported or refused in one line.

Heed loads each model that it has imported.
"""

import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from heed.apps.exchange import huggingface, marian
from heed.apps.exchange.convert import ImportFormat, import_
from heed.apps.exchange.marian import SETTINGS
from heed.apps.exchange.tokenizers import write_hugging_face_tokenizer
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import ModelCard, ModelFolder, read_weights, shared_weights
from heed.model_folder.card import ModelConfig
from heed.model_folder.folder import folder_of
from heed.text.sentencepiece import marian_tokenizer, opus_mt_tokenizer
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from heed.text.tokenizer_kinds import AnyTokenizer
from tests.apps.exchange.folders import random_network
from tests.apps.exchange.test_marian import LIKE_MARIAN
from tests.fuzzing.inputs import kind_of, of_kind, refused_in_one_line
from tests.text.test_sentencepiece import ENGLISH, GERMAN, trained

N_LINES = 60  # of each language
TINY = {"n_layers": 1, "d_model": 4, "d_ff": 4, "n_heads": 2}
WORDS = (
    *(b": ", b"- ", b"[", b"]", b"{", b"}", b"null"),
    *(b"true", b"false", b".nan", b".inf", b"!!python/tuple", b"&a", b"*a"),
    *(b"<<: ", b"---\n", b"!!int", b"!!binary", b"1e999", b"\\ud800", b"18446744073709551616", b"-1"),
    *(setting.encode() for setting in marian.EXPECTED),
    *(
        b"\x93NUMPY\x01\x00",
        b"'descr': '<f4'",
        b"'<f2'",
        b"'|O'",
        b"'shape': (",
        b"'fortran_order': True",
        b"PK\x03\x04",
    ),
    *(
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ccollections\nOrderedDict\n",
        b"ctorch\nFloatStorage\n",
        b")R",
        b"q\x00",
    ),
    *(b"\x0a\x03", b"\x15\x00\x00\x80\x7f", b"\x18\x06", b"\x12\x02\x18\x02", b"\x1a\x06", b"<0x00>"),
    *(b'"model_type":', b'"heed":', b'"architecture":', b'"card":', b'"BF16"', b'"data_offsets":', b'"dtype":'),
)


@dataclass(frozen=True)
class _Place:
    """Where the input goes: a file of a folder, or a member of the archive that this file is, which then is intact."""

    folder: str
    file: str
    member: str = ""


KINDS = (
    *(_Place("marian", name) for name in ("model.npz.decoder.yml", "joint.spm", "model.npz")),
    *(_Place("marian", "model.npz", member) for member in (f"{SETTINGS}.npy", "settings", "Wemb.npy")),
    *(_Place("tables", name) for name in ("src.yml", "tgt.yml")),
    *(_Place("hf", f"{name}.json") for name in ("config", "tokenizer", "tokenizer_config", "generation_config")),
    *(_Place("hf", "model.safetensors", member) for member in ("", "header")),
    *(_Place("opus", name) for name in ("source.spm", "target.spm", "vocab.json")),
    *(_Place("bin", "pytorch_model.bin", member) for member in ("", "data.pkl")),
    _Place("old", "pytorch_model.bin"),
)  # fmt: skip
PROGRAMS: dict[str, ImportFormat] = {
    **dict.fromkeys(("marian", "tables"), "marian"),
    **dict.fromkeys(("hf", "opus", "bin", "old"), "huggingface"),
}


@cache
def originals() -> Path:
    """A folder of each kind, all of whose models are good."""
    parent = Path(tempfile.mkdtemp(prefix="heed-fuzzing-"))
    english, german = ENGLISH[:N_LINES], GERMAN[:N_LINES]
    for name in PROGRAMS:
        (parent / name).mkdir()
    (parent / "rules.tsv").write_text("41\t61\n42 43\t78\n")  # A → a, BC → x
    rules = {"normalization_rule_tsv": str(parent / "rules.tsv")}
    (parent / "marian" / "joint.spm").write_bytes(trained([*english, *german], vocab_size=70, **rules))
    for side, lines in (("source", english), ("target", german)):
        model = trained(lines, vocab_size=50, model_type="bpe", normalization_rule_name="identity")
        (parent / "opus" / f"{side}.spm").write_bytes(model)
    letters = sorted({sign for line in (*english, *german) for sign in line if sign != " "})
    table = ["</s>", "<unk>", "▁", *letters, ">>de<<", "<pad>"]
    (parent / "opus" / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}))

    joint = marian_tokenizer(*[parent / "marian" / "joint.spm"] * 2)
    words = train_tokenizer(english, TokenizerSettings(vocab_size=600))
    marian.export(_model(joint, **LIKE_MARIAN), parent / "marian", report=lambda _: None)
    marian.export(_model(words, **LIKE_MARIAN), parent / "tables", report=lambda _: None)
    for name, tokenizer in (("hf", words), ("opus", opus_mt_tokenizer(parent / "opus"))):
        model = _model(tokenizer)
        huggingface.write_model(model, parent / name)
        write_hugging_face_tokenizer(model.tokenizer, parent / name, max_positions=512)
    weights = read_weights(parent / "hf" / "model.safetensors")
    for name in ("bin", "old"):
        shutil.copytree(parent / "hf", parent / name, dirs_exist_ok=True)
        (parent / name / "model.safetensors").unlink()
        torch.save(weights, parent / name / "pytorch_model.bin", _use_new_zipfile_serialization=name == "bin")
    return parent


def _model(tokenizer: AnyTokenizer, **changes: str) -> ModelFolder:
    network = random_network(len(tokenizer), **TINY, **changes)
    config = ModelConfig(network.arch, network.vocab_size, ModelCard("en", "de"))
    weights = {name: tensor.numpy() for name, tensor in shared_weights(network).items()}
    return folder_of(config, weights, tokenizer, where=Path("random"))


@cache
def _original(place: _Place) -> bytes:
    return (originals() / place.folder / place.file).read_bytes()


def close() -> None:
    """Removes the files that `target` works with."""
    if originals.cache_info().currsize:
        shutil.rmtree(originals())
        originals.cache_clear()


def target(data: bytes) -> None:
    if not data:
        return
    place, content = kind_of(KINDS, data)
    folder, original = originals() / place.folder, _original(_Place(place.folder, place.file))
    (folder / place.file).write_bytes(_with_content(original, place, content))
    try:
        with refused_in_one_line(), tempfile.TemporaryDirectory() as out:
            import_(folder, Path(out) / "model", PROGRAMS[place.folder], src=None, tgt=None)
            _check_loadable(Path(out) / "model")
    finally:
        (folder / place.file).write_bytes(original)


def _check_loadable(folder: Path) -> None:
    try:
        tokenizer = Translator.load(folder, precision="fp32").tokenizer
        tokenizer.encode("nine hundred ä🐕")
        tokenizer.decode(tokenizer.encode_targets(["nine hundred ä🐕"])[0])
    except HeedError as error:
        raise AssertionError(f"Heed imported what it does not load: {error}") from None


def _with_content(original: bytes, place: _Place, content: bytes) -> bytes:
    if not place.member:
        return content
    if place.member == "header":
        behind = 8 + int.from_bytes(original[:8], "little")
        return len(content).to_bytes(8, "little") + content + original[behind:]
    name = place.member
    if name == "settings":
        name, written = f"{SETTINGS}.npy", io.BytesIO()
        np.save(written, np.frombuffer(content, np.int8))
        content = written.getvalue()
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(original)) as archive, zipfile.ZipFile(changed, "w") as out:
        for info in archive.infolist():
            is_it = info.filename.rpartition("/")[2] == name
            out.writestr(info.filename, content if is_it else archive.read(info))
    return changed.getvalue()


def seeds() -> Iterator[bytes]:
    for place in KINDS:
        content = _original(_Place(place.folder, place.file))
        if place.member == "header":
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
        elif place.member == "settings":
            with np.load(io.BytesIO(content)) as arrays:
                content = arrays[SETTINGS].tobytes()
        elif place.member:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                name = next(name for name in archive.namelist() if name.rpartition("/")[2] == place.member)
                content = archive.read(name)
        yield of_kind(KINDS, place, content)
