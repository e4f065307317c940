"""Any bytes, as a file of a model folder with a good manifest: the model translates or is refused in one line."""

import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from heed.apps.exchange import huggingface, marian
from heed.decoding.translator import Translator
from heed.model_folder import save_model
from heed.runtime.manifest import MANIFEST, seal
from tests.fuzzing import exchange
from tests.fuzzing.exchange import originals
from tests.fuzzing.inputs import kind_of, of_kind, refused_in_one_line

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
NAMES = tuple(sorted(path.name for path in GOLDEN.iterdir()))
SMALL = {"marian": marian.load, "opus": huggingface.load}  # of `originals`
HEADER = "header"  # of model.safetensors, whose tensors then are good
KINDS = (
    *((name, file) for name in NAMES for file in ("config.json", HEADER)),
    *((name, file) for name in SMALL for file in ("config.json", HEADER, "tokenizer.json", "model.safetensors")),
    *(("word-pieces", file) for file in ("tokenizer.json", MANIFEST)),
)
WORDS = (
    *(b"null", b"true", b"false", b"NaN", b"Infinity", b"1e999", b"-1"),
    *(b"0", b"[]", b"{}", b'""', b"\\ud800", b"\\u0000"),
    *(b'"format":', b'"architecture":', b'"vocab_size":', b'"src_vocab_size":', b'"card":', b'"decoding":'),
    *(b'"dtype":', b'"shape":', b'"data_offsets":', b'"BF16"', b'"F16"', b'"F64"', b'"I8"', b'"__metadata__":'),
    *(
        b'"pre_tokenizer":',
        b'"normalizer":',
        b'"decoder":',
        b'"merges":',
        b'"vocab":',
        b'"added_tokens":',
        b'"special":',
    ),
    *(b'"sentencepiece":', b'"scores":', b'"types":', b'"pieces":', b'"unk_surface":', b"sha256", b"bytes"),
)


@cache
def _originals() -> Path:
    """A folder of good model folders."""
    parent = Path(shutil.copytree(GOLDEN, tempfile.mkdtemp(prefix="heed-fuzzing-"), dirs_exist_ok=True))
    for name, load in SMALL.items():
        found = load(originals() / name, report=len)
        save_model(parent / name, found.model, found.tokenizer, found.card)
    return parent


@cache
def _original(name: str, file: str) -> bytes:
    return (_originals() / name / ("model.safetensors" if file == HEADER else file)).read_bytes()


def close() -> None:
    """Removes the files that `target` works with."""
    exchange.close()
    if _originals.cache_info().currsize:
        shutil.rmtree(_originals())
        _originals.cache_clear()


def target(data: bytes) -> None:
    if not data:
        return
    (name, file), content = kind_of(KINDS, data)
    original, manifest = _original(name, file), _original(name, MANIFEST)
    if file == HEADER:
        content = len(content).to_bytes(8, "little") + content + original[8 + int.from_bytes(original[:8], "little") :]
    folder = _originals() / name
    changed = folder / ("model.safetensors" if file == HEADER else file)
    changed.write_bytes(content)
    if file != MANIFEST:
        seal(folder)
    try:
        with refused_in_one_line():
            # Short searches: a folder may ask for long ones.
            translator = Translator.load(folder, precision="fp32", beam_size=2, min_tokens=0, max_extra_tokens=2)
            translator.translate(["nine hundred ä🐕", ""])
            translator.tokenizer.decode(translator.tokenizer.encode_targets(["nine hundred ä🐕"])[0])
    finally:
        changed.write_bytes(original)
        (folder / MANIFEST).write_bytes(manifest)


def seeds() -> Iterator[bytes]:
    for kind in KINDS:
        content = _original(*kind)
        if kind[1] == HEADER:
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
        yield of_kind(KINDS, kind, content)
