"""Hugging Face's MarianMTModel: folders that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load, and OPUS-MT's models.

Its network is the paper's but for the order of the positions' channels, all sines before all cosines, which it makes
anew when it loads. A model with interleaving positions is therefore written with its channels in that order.
"""

import io
import pickle
import pickletools
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from heed.apps.exchange.archives import check_expansion
from heed.apps.exchange.parts import (
    IN_ALL_FORMATS,
    Parts,
    check_covered,
    check_parts,
    halves,
    interleaving,
    merge_parts,
    missing_part,
    parts_of,
    reorder_channels,
)
from heed.apps.exchange.samples import compare_logits, logits_of, ranking_note
from heed.apps.exchange.tokenizers import hugging_face_tokenizer, write_hugging_face_tokenizer
from heed.config import shown, validated
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.coverage import Coverage
from heed.model.transformer import Transformer
from heed.model_folder import (
    IMPORTED_FROM,
    UNKNOWN_LANGUAGES,
    ModelCard,
    ModelConfig,
    ModelFolder,
    model_card,
    model_of,
    read_weights,
    write_weights,
)
from heed.runtime.json_files import json_object, write_json
from heed.runtime.manifest import sha256_of
from heed.runtime.reading import regular_file
from heed.text.tokenizer import SpecialIds

MAX_POSITIONS = 1024  # for which a folder that we write has encodings
MAX_CONFIG_BYTES = 2**22
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # their names → ours
# What a pickle of tensors names, and how long it is at most: of thousands of tensors, whose numbers are not in it.
ORDERED_DICT = "collections OrderedDict"
OBJECTS = re.compile(ORDERED_DICT + r"|torch\._utils _rebuild_(tensor_v2|parameter)|torch [A-Za-z0-9]+Storage")
N_PICKLES = 5  # before the numbers in a file of torch before version 1.6: magic number, version, system, tensors, names
CHECKING_TORCH = (2, 10)  # from which on it compares the size of a storage with what the archive holds
MAX_PICKLE_BYTES = 2**20
SHARD = re.compile(r"[\w-][\w.-]*\.(?:safetensors|bin)")
STACKS = ("encoder", "decoder")
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Ours → theirs, within a layer; a decoder's own norms and cross-attention follow the same pattern.
LAYER_NAMES = {
    **{f"self_attention.{ours}": f"self_attn.{ours}_proj" for ours in ("q", "k", "v", "out")},
    **{f"cross_attention.{ours}": f"encoder_attn.{ours}_proj" for ours in ("q", "k", "v", "out")},
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
ATTENTION_BIASES = tuple(f"{part}.bias" for part in ("q", "k", "v", "out"))


def export(model: ModelFolder, out: Path, *, report: Callable[[str], None]) -> None:
    """Writes the model into the empty folder `out`, and compares the logits of what transformers loads from it.

    HeedError for a model that MarianMTModel cannot be.
    """
    write_model(model, out)
    card = model.card
    write_hugging_face_tokenizer(model.tokenizer, out, max_positions=MAX_POSITIONS)
    if note := ranking_note(card, "Hugging Face"):
        report(note)
    _check_export(model, out, report)


COVERAGE = Coverage(
    IN_ALL_FORMATS
    | {
        "activation": {"relu": True, "gelu": True, "swish": True},
        "norm": {"post": True, "pre": False},
        "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": False, "learned": False},
        "decoder_start": {"bos": True, "zero": False},
    }
)


def covers(model: Transformer) -> str | None:
    """The part of this network that MarianMTModel lacks; None if it has all."""
    return missing_part(model, COVERAGE)


def write_model(model: ModelFolder, out: Path) -> None:
    """Writes the files that `AutoModelForSeq2SeqLM` loads. HeedError for a model that MarianMTModel cannot be."""
    check_covered(covers(model.model), program="Hugging Face's MarianMTModel")
    special = model.tokenizer.special
    write_weights(out / "model.safetensors", _their_weights(model))
    write_json(out / "config.json", _config(model, special) | {"heed": _for_the_way_back(model, out)})
    write_json(out / "generation_config.json", _generation(model.card, special))


def _their_weights(folder: ModelFolder) -> dict[str, Tensor]:
    model, arch = folder.model, folder.model.arch
    parts = parts_of(model)
    if arch.positions == "sinusoid":
        parts = reorder_channels(parts, halves(arch.d_model))
    theirs = {"final_logits_bias": parts.pop("output.bias", torch.zeros(model.vocab_size))[None]}
    src, output = parts.pop("src_embedding.weight"), parts.pop("output.weight", None)
    tgt = parts.pop("tgt_embedding.weight", src)
    if arch.share == "all":
        theirs["model.shared.weight"] = src
    else:
        theirs |= {"model.encoder.embed_tokens.weight": src, "model.decoder.embed_tokens.weight": tgt}
        if output is not None:
            theirs["lm_head.weight"] = output
    for name, tensor in parts.items():
        stack, layer, *part, kind = name.split(".")
        prefix = f"model.{stack}.layers.{layer}.{LAYER_NAMES['.'.join(part)]}"
        theirs[f"{prefix}.{kind}"] = tensor
        if kind == "weight" and part[-1] in ("q", "k", "v", "out"):
            theirs.setdefault(f"{prefix}.bias", torch.zeros(len(tensor)))
    return theirs


def _config(folder: ModelFolder, special: SpecialIds) -> dict[str, Any]:
    # MarianConfig has these for each stack; a network that we export differs only in the number of layers.
    arch, model = folder.model.arch, folder.model
    by_stack = {
        f"{stack}_{name}": value
        for stack, n_layers in zip(STACKS, (arch.encoder_layers, arch.decoder_layers), strict=True)
        for name, value in (("layers", n_layers), ("attention_heads", arch.n_heads), ("ffn_dim", arch.d_ff))
    }

    # The decoder starts with bos and its end is never forced; MarianConfig's defaults are pad and eos.
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": arch.d_model,
        **by_stack,
        "activation_function": arch.activation,
        "dropout": arch.dropout,
        "attention_dropout": arch.attention_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": model.src_vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "share_encoder_decoder_embeddings": arch.share == "all",
        "tie_word_embeddings": arch.share != "none",
        "pad_token_id": special.pad,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "decoder_start_token_id": special.bos,
        "forced_eos_token_id": None,
    }


def _for_the_way_back(folder: ModelFolder, out: Path) -> dict[str, Any]:
    """The part of a Heed model that MarianMTModel lacks, for importing it again."""
    weights = sha256_of(out / "model.safetensors")
    return {"architecture": folder.model.arch.model_dump(), "card": vars(folder.card), "sha256 of weights": weights}


def _generation(card: ModelCard, special: SpecialIds) -> dict[str, Any]:
    settings = validated(DecodingSettings, card.decoding, where="the model's search settings")
    barred = {special.pad, special.bos, special.unk} - {special.eos, None}  # Heed's searches write none of them
    return {
        "decoder_start_token_id": special.bos,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        **({"bad_words_ids": [[i] for i in sorted(i for i in barred if i is not None)]} if barred else {}),
        **({"min_new_tokens": settings.min_tokens} if settings.min_tokens else {}),
        "num_beams": settings.beam_size,
        "length_penalty": 0.0 if settings.length_penalty_form == "none" else settings.length_penalty,
        **({"early_stopping": settings.early_stopping or "never"} if settings.beam_size > 1 else {}),
        "max_length": 512,
    }


def _check_export(model: ModelFolder, out: Path, report: Callable[[str], None]) -> None:
    try:
        import transformers
    except ImportError:
        report("Not checked: transformers is not installed.")
        return
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(out), trust_remote_code=False).eval()

    def logits(src: Tensor, src_mask: Tensor, tgt: Tensor) -> Tensor:
        result: Tensor = theirs(input_ids=src, attention_mask=src_mask.long(), decoder_input_ids=tgt).logits
        return result

    difference = compare_logits(logits_of(model.model), logits, model)
    report(f"Checked: transformers {transformers.__version__} gives the same logits, to {difference:.1e}.")


def load(path: Path) -> ModelFolder:
    """The model in a folder of Hugging Face's MarianMTModel; nothing in it is executed.

    HeedError names what is missing, damaged, or cannot be expressed.
    """
    config = _json(path / "config.json")
    if config.get("model_type") != "marian":
        raise HeedError(
            f"{path / 'config.json'}: model_type is {shown(config.get('model_type'))}; Heed imports marian alone."
        )
    theirs = _weights(path)
    special, found = _special(config, path), config.get("heed")
    ours: dict[str, Any] = found if isinstance(found, dict) else {}
    share = _share(config, path)
    parts = _our_parts(theirs, share, path)
    arch = _architecture(config, parts, share, path)
    if "architecture" in ours:
        arch = _own_architecture(ours["architecture"], arch, path)
    if not arch.attention_bias:
        parts = {name: tensor for name, tensor in parts.items() if not name.endswith(ATTENTION_BIASES)}
    if not arch.output_bias:
        del parts["output.bias"]
    tables = {name: parts[name] for name in ("src_embedding.weight", "tgt_embedding.weight") if name in parts}
    for name, table in tables.items():
        if table.dim() != 2:  # check_parts, which knows all shapes, needs the tokenizer first
            raise HeedError(f"{path}: {name} has shape {tuple(table.shape)}, expected two dimensions.")
    n_rows = [len(table) for table in tables.values()]
    tokenizer = hugging_face_tokenizer(path, special, n_src_rows=n_rows[0], n_tgt_rows=n_rows[-1])
    model_config = ModelConfig.of(arch, tokenizer, _card(ours, config, path))
    check_parts(parts, model_config, where=path)
    if arch.positions == "sinusoid":
        parts = reorder_channels(parts, interleaving(arch.d_model))
    return ModelFolder(model_of(model_config, merge_parts(parts), where=path), tokenizer, model_config.card)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HeedError(f"{path}: missing; expected a folder of Hugging Face's, with its config.json.")
    return json_object(path, MAX_CONFIG_BYTES)


def _weights(path: Path) -> dict[str, Tensor]:
    """The weights in fp32, by their names."""
    for name, read in (("model.safetensors", read_weights), ("pytorch_model.bin", _unpickle)):
        if (path / name).is_file():
            found = read(path / name)
            break
        if (path / f"{name}.index.json").is_file():
            found = _shards(path / f"{name}.index.json", read)
            break
    else:
        raise HeedError(f"{path}: holds neither model.safetensors nor pytorch_model.bin, whole or in shards.")
    # Names of the same numbers share one copy, as they do in the file.
    copies = {_place(tensor): tensor.float() for tensor in found.values()}
    return {name: copies[_place(tensor)] for name, tensor in found.items()}


def _shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of all files that an index names. HeedError if they are not those that it lists."""
    listed = _json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise HeedError(f"{index}: has no weight_map, which says the file of each weight.")
    for name, file in listed.items():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise HeedError(f"{index}: {shown(name)} is in {shown(file)}; expected a file in the same folder.")
    found: dict[str, Tensor] = {}
    for file in sorted(set(listed.values())):
        if not (index.parent / file).is_file():
            raise HeedError(f"{index.parent / file}: missing; {index.name} lists it. Download the whole folder.")
        shard = read(index.parent / file)
        expected = {name for name, of_file in listed.items() if of_file == file}
        for name in sorted(shard.keys() ^ expected):
            fault = "lacks" if name in expected else "also holds"
            raise HeedError(f"{index.parent / file}: {fault} {shown(name)}, unlike {index.name}.")
        found |= shard
    return found


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """A key that two tensors share if they are the same numbers in memory."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _unpickle(path: Path) -> dict[str, Tensor]:
    """A pickle of tensors, by torch's reader of these alone: one that names code is refused, none of it runs."""
    # Reading: first the pickles inside are checked opcode by opcode, then torch reads what may be read.
    try:
        with _open_packed(path) as file:
            _check_pickles(file, path)
            file.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a pickle that torch did not write; it is refused, or checked below
                found = torch.load(file, map_location="cpu", weights_only=True)
    except HeedError:
        raise
    except pickle.UnpicklingError:
        raise HeedError(
            f"{path}: holds more than tensors, perhaps code; take the model as model.safetensors."
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise HeedError(f"{path}: cannot be read, or copied into {tempfile.gettempdir()} ({reason}).") from None
    except Exception as error:  # whatever torch raises for a file that is cut or of another kind
        raise HeedError(f"{path}: damaged or not a file of weights ({type(error).__name__}).") from None
    # Whatever was read is checked as if a stranger had built the objects: names, kinds, sizes.
    found = dict(dict.items(found)) if isinstance(found, dict) else {}  # its own methods, the pickle may have replaced
    if not found or not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()):
        raise HeedError(f"{path}: holds no tensors by name.")
    for name, tensor in found.items():
        # A pickle can describe a tensor that is larger than the file, or that has no numbers at all.
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.dtype not in FLOATS:
            raise HeedError(f"{path}: {shown(name)} is not a float matrix; import the model before it was quantised.")
    # Several names of the same numbers count once.
    sizes = {_place(tensor): tensor.numel() * tensor.element_size() for tensor in found.values()}
    if sum(sizes.values()) > path.stat().st_size:
        raise HeedError(f"{path}: its tensors are larger than the file.")
    return found


@contextmanager
def _open_packed(path: Path) -> Iterator[BinaryIO]:
    """The file, or a copy of an archive as zipfile reads it.

    torch's own reader may find other, larger files in the same archive than those that `check_expansion` has counted.
    """
    with regular_file(path) as file:
        if not _is_archive(file):
            yield file
            return
        check_expansion(path)
        with tempfile.TemporaryFile() as copy:
            with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as plain:
                for info in archive.infolist():
                    with archive.open(info) as member:
                        plain.writestr(info.filename, member.read(info.file_size))
            yield copy


def _is_archive(file: BinaryIO) -> bool:
    """Whether torch would read an archive, not the form that it wrote before version 1.6."""
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return start == b"PK\3\4"


def _check_pickles(file: BinaryIO, path: Path) -> None:
    """UnpicklingError if a pickle would take much more memory than the file, which torch's reader of tensors allows."""
    pickles: list[IO[bytes]] = [file] * N_PICKLES
    if _is_archive(file):  # which `_open_packed` wrote
        if tuple(map(int, torch.__version__.split(".")[:2])) < CHECKING_TORCH:
            raise HeedError(f"{path}: needs PyTorch 2.10 to be read safely; take the model as model.safetensors.")
        with zipfile.ZipFile(file) as archive:
            # torch looks in the folder of the first member, whatever the case of the letters.
            folder, _, _ = archive.namelist()[0].partition("/")
            if not all(name.startswith(f"{folder}/") for name in archive.namelist()):
                raise pickle.UnpicklingError
            pickles = [io.BytesIO(archive.read(f"{folder}/data.pkl"))]
    for source in pickles:
        _check_pickle(source)


def _check_pickle(source: IO[bytes]) -> None:
    """UnpicklingError if the pickle names anything but tensors, or makes an OrderedDict that is not empty at first.

    One that is made of another would be a copy, of which a few bytes could ask for any number.
    """
    of_class = set[Any]()  # the places of the memo that hold the class OrderedDict
    is_class = False
    awaited: list[str] = []  # what must follow the class: a call without arguments
    for opcode, argument, position in pickletools.genops(source):
        if (position or 0) > MAX_PICKLE_BYTES:
            raise pickle.UnpicklingError
        if opcode.name in ("BINPUT", "LONG_BINPUT"):
            (of_class.add if is_class else of_class.discard)(argument)
            continue
        if awaited and opcode.name != awaited.pop(0):
            raise pickle.UnpicklingError
        if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PUT", "MEMOIZE"):
            raise pickle.UnpicklingError
        if opcode.name == "GLOBAL" and not OBJECTS.fullmatch(str(argument)):
            raise pickle.UnpicklingError
        is_class = (opcode.name == "GLOBAL" and argument == ORDERED_DICT) or (
            opcode.name in ("GET", "BINGET", "LONG_BINGET") and argument in of_class
        )
        if is_class:
            awaited = ["EMPTY_TUPLE", "REDUCE"]


def _special(config: Mapping[str, Any], path: Path) -> SpecialIds:
    ids = [config.get(name) for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id")]
    if any(type(i) is not int or i < 0 for i in ids):
        raise HeedError(f"{path / 'config.json'}: pad_token_id, decoder_start_token_id and eos_token_id must be ids.")
    pad, start, eos = (int(i) for i in ids)  # type: ignore[arg-type]
    return SpecialIds(pad, start, eos)


def _flag(config: Mapping[str, Any], name: str, path: Path, *, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise HeedError(f"{path / 'config.json'}: {name} is {shown(value)}; expected true or false.")
    return value


def _share(config: Mapping[str, Any], path: Path) -> str:
    if _flag(config, "share_encoder_decoder_embeddings", path, default=True):
        return "all"
    return "tgt" if _flag(config, "tie_word_embeddings", path, default=True) else "none"


def _our_parts(theirs: dict[str, Tensor], share: str, path: Path) -> Parts:
    """Their weights under our names, with all biases."""
    # Weights leave `left` as they are used, so that what remains is known.
    parts, left = Parts(), dict(theirs)

    def take(ours: str, *names: str) -> None:
        """A matrix that stands under any of these names, and is the same wherever it stands."""
        found = [left.pop(name) for name in names if name in left]
        if not found:
            raise HeedError(f"{path}: weight {names[0]} is missing.")
        if any(not torch.equal(found[0], other) for other in found[1:]):
            raise HeedError(f"{path}: {' and '.join(names)} differ, which config.json says are one matrix.")
        parts[ours] = found[0]

    # Embeddings and output, which may be one matrix under several names.
    shared, src, tgt, output = (
        *("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        "lm_head.weight",
    )
    if share == "all":
        take("src_embedding.weight", shared, src, tgt, output)
    else:
        take("src_embedding.weight", src)
        take("tgt_embedding.weight", *((tgt, output) if share == "tgt" else (tgt,)))
        if share == "none":
            take("output.weight", output)
    table = parts["src_embedding.weight" if share == "all" else "tgt_embedding.weight"]
    parts["output.bias"] = left.pop("final_logits_bias", torch.zeros(table.shape[:1])).flatten()

    # Layers: model.STACK.layers.N.PART.KIND.
    ours_of = {theirs_name: ours for ours, theirs_name in LAYER_NAMES.items()}
    for name, tensor in left.items():
        words = name.split(".")
        if words[-2:] == ["embed_positions", "weight"] or name == shared:  # made anew; not used where nothing is shared
            continue
        if len(words) < 6 or words[0] != "model" or words[1] not in STACKS or words[2] != "layers":
            raise HeedError(f"{path}: MarianMTModel has no weight {shown(name)}.")
        _, stack, _, layer, *part, kind = words
        if ".".join(part) not in ours_of:
            raise HeedError(f"{path}: MarianMTModel has no weight {shown(name)}.")
        parts[f"{stack}.{layer}.{ours_of['.'.join(part)]}.{kind}"] = tensor
    return parts


def _architecture(config: Mapping[str, Any], parts: Parts, share: str, path: Path) -> Architecture:
    # What Heed cannot express is refused by the name that config.json gives it.
    where = str(path / "config.json")
    for name in ("attention_heads", "ffn_dim"):
        if config.get(f"encoder_{name}") != config.get(f"decoder_{name}"):
            raise HeedError(f"{where}: encoder_{name} and decoder_{name} differ; Heed's stacks have the same.")
    activation = config.get("activation_function")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise HeedError(f"{where}: activation_function is {shown(activation)}; Heed knows {known}.")
    if not _flag(config, "scale_embedding", path, default=False):
        raise HeedError(f"{where}: scale_embedding is false; Heed scales embeddings by √d_model (section 3.4).")
    for name in ("encoder_layers", "decoder_layers", "d_model", "encoder_ffn_dim", "encoder_attention_heads"):
        if type(config.get(name)) is not int:
            raise HeedError(f"{where}: {name} is {shown(config.get(name))}; expected a number.")
    # Biases that are all zero are as good as none.
    values = {
        "n_layers": config.get("encoder_layers"),
        "n_decoder_layers": config.get("decoder_layers"),
        "d_model": config.get("d_model"),
        "d_ff": config.get("encoder_ffn_dim"),
        "n_heads": config.get("encoder_attention_heads"),
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "activation": ACTIVATIONS[activation],
        "attention_bias": any(bool(parts[name].any()) for name in parts if name.endswith(ATTENTION_BIASES)),
        "output_bias": bool(parts["output.bias"].any()),
        "share": share,
        "positions": "sinusoid-halves",
    }
    if values["n_decoder_layers"] == values["n_layers"]:
        del values["n_decoder_layers"]
    return validated(Architecture, values, where=where)


def _own_architecture(own: Any, found: Architecture, path: Path) -> Architecture:
    """The settings that Heed wrote, if they are of the network found: they also say what no folder of theirs does.

    found: with all sines before all cosines, which another order of the channels makes the same network.
    """
    written = validated(Architecture, own, where=f"{path / 'config.json'}: heed.architecture")
    unsaid = {name: getattr(written, name) for name in ("word_dropout", "max_positions", "d_k", "d_v")}
    for name in ("attention_bias", "output_bias"):  # one that was not trained may be zero all over
        unsaid[name] = getattr(written, name) or getattr(found, name)
    if (written.encoder_layers, written.decoder_layers) == (found.encoder_layers, found.decoder_layers):
        unsaid |= {name: getattr(written, name) for name in ("n_layers", "n_encoder_layers", "n_decoder_layers")}
    if written.positions == "sinusoid":
        unsaid["positions"] = "sinusoid"
    return validated(Architecture, found.model_dump() | unsaid, where=f"{path / 'config.json'}: heed.architecture")


def _card(ours: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> ModelCard:
    """The card that Heed wrote, or what the folder says of languages and search.

    Weights that another program has written since keep the languages, but neither scores nor search.
    """
    where = str(path / "config.json")
    written = model_card(ours["card"], where=where) if isinstance(ours.get("card"), dict) else None
    weights = path / "model.safetensors"
    hashed = ours.get("sha256 of weights")
    if written and (hashed is None or (weights.is_file() and sha256_of(weights) == hashed)):
        validated(DecodingSettings, written.decoding, where=f"{where}: heed.card.decoding")
        return replace(written, parsing={})
    others = [path / name for name in ("tokenizer_config.json", "generation_config.json")]
    tokenizer, generation = (_json(file) if file.is_file() else {} for file in others)
    generation = {**config, **generation}
    search = {
        "beam_size": generation.get("num_beams", 1),
        "length_penalty": generation.get("length_penalty", 1.0),
        "length_penalty_form": "average",
        "early_stopping": generation.get("early_stopping") is True,
    }
    decoding = validated(
        DecodingSettings,
        search,
        where=f"{path}: its search (num_beams, length_penalty)",
    )
    src, tgt = (str(tokenizer.get(f"{side}_lang") or side) for side in UNKNOWN_LANGUAGES)
    card = written or ModelCard(src, tgt)
    trained_on = card.trained_on | {IMPORTED_FROM: "Hugging Face"}
    return replace(card, decoding=decoding.model_dump(), trained_on=trained_on, scores={}, parsing={})
