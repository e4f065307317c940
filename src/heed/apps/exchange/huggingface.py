"""Hugging Face's MarianMTModel: folders that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load, and OPUS-MT's models.

Its network is the paper's but for the order of the positions' channels, all sines before all cosines, which it makes
anew when it loads. A model with interleaving positions is therefore written with its channels in that order.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heed.apps.exchange.generation_config import (
    LENGTH_OF_LANGUAGES,
    MAX_POSITIONS,
    NOT_IN_HEED,
    OTHER_SETTINGS,
    generation_config,
    other_settings,
    says_otherwise,
    search_of_languages,
    search_settings,
)
from heed.apps.exchange.many_languages import vocabularies, write_vocabularies
from heed.apps.exchange.their_weights import weights_of
from heed.apps.exchange.tokenizers import (
    check_special,
    hugging_face_tokenizer,
    optional_json,
    write_hugging_face_tokenizer,
)
from heed.apps.exchange.unmerged_weights import (
    IN_ALL_FORMATS,
    Parts,
    check_covered,
    check_parts,
    halves,
    interleaving,
    listed,
    merge_parts,
    missing_part,
    not_neutral,
    parts_of,
    reorder_channels,
)
from heed.apps.exchange.verify import compare_logits, ranking_note
from heed.config import shown, validated
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import Rows
from heed.model.coverage import Coverage
from heed.model.sinusoids import sinusoid
from heed.model.weight_files import row_blocks, write_weights
from heed.model_folder import (
    IMPORTED_FROM,
    UNKNOWN_LANGUAGES,
    ModelCard,
    ModelConfig,
    ModelFolder,
    folder_of,
    model_card,
)
from heed.runtime.json_files import json_object, write_json
from heed.runtime.manifest import sha256_of
from heed.text.languages import SEVERAL, Languages
from heed.text.sentencepiece import SentencePieceTokenizer
from heed.text.tokenizer import SpecialIds
from heed.text.tokenizer_kinds import AnyTokenizer

if TYPE_CHECKING:
    from torch import Tensor

MAX_CONFIG_BYTES = 2**22
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # their names → ours
STACKS = ("encoder", "decoder")
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
NORMS = {"layer_norm": "_norm", "layernorm_embedding": "_embedding_norm"}  # of a stack → what its name, or side's, has
N_UNUSED_POSITIONS = 2  # the first rows of a table of learned positions
ATTENTION_BIASES = tuple(f"{part}.bias" for part in ("q", "k", "v", "out"))

NEUTRAL: dict[str, Any] = {"norm": "post", "first_position": 0, "embedding_norm": False}
# The networks of their model types, beside what config.json says.
NETWORKS: dict[str, dict[str, Any]] = {
    "marian": {"positions": "sinusoid-halves"},
    "m2m_100": {"norm": "pre", "positions": "sinusoid-t2t", "first_position": 2},
    "mbart": {"norm": "pre", "positions": "learned", "embedding_norm": True},
}


def export(model: ModelFolder, out: Path, *, report: Callable[[str], None]) -> None:
    """Writes the model into the empty folder `out`, and compares the logits of what transformers loads from it.

    HeedError for a model that MarianMTModel cannot be.
    """
    write_model(model, out)
    card = model.card
    if model_type(model.config.arch) == "marian":
        write_hugging_face_tokenizer(model.tokenizer, out, max_positions=MAX_POSITIONS)
    elif isinstance(model.tokenizer, SentencePieceTokenizer) and card.languages:
        write_vocabularies(model.tokenizer, Languages.model_validate(card.languages), out, max_positions=MAX_POSITIONS)
    else:
        raise HeedError("its tokenizer is not that of a model of several languages, which its network is.")
    if note := ranking_note(card, "Hugging Face"):
        report(note)
    _check_export(model, out, report)


CLASSES = {
    "marian": "MarianMTModel",
    "m2m_100": "M2M100ForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
}
COVERAGE = Coverage(
    IN_ALL_FORMATS
    | {
        "activation": {"relu": True, "gelu": True, "swish": True},
        "norm": {"post": True, "pre": False},
        "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": False, "learned": False},
        "decoder_start": {"bos": True, "zero": False},
    }
)


# Of models of several languages, one matrix serves both sides.
OF_LANGUAGES = {
    name: Coverage(
        IN_ALL_FORMATS
        | {
            "activation": {"relu": True, "gelu": True, "swish": True},
            "decoder_start": {"bos": True, "zero": False},
            "share": {"all": True, "tgt": False, "none": False},
            "output_bias": {False: True, True: name == "mbart"},
        }
        | {setting: {value: True, ...: False} for setting, value in (NEUTRAL | NETWORKS[name]).items()}
    )
    for name in ("m2m_100", "mbart")
}


def model_type(arch: Architecture) -> str:
    """The type of model, in their config.json, that has this network if any has."""
    fits = (name for name, coverage in OF_LANGUAGES.items() if coverage.missing_setting(arch) is None)
    return next(fits, "marian")


def covers(arch: Architecture) -> str | None:
    """The part of this network that MarianMTModel lacks, if it is no other model's; None if one has all."""
    return missing_part(arch, OF_LANGUAGES.get(model_type(arch), COVERAGE))


def write_model(model: ModelFolder, out: Path) -> None:
    """Writes the files that `AutoModelForSeq2SeqLM` loads. HeedError for a model that MarianMTModel cannot be."""
    arch = model.config.arch
    check_covered(covers(arch), program=f"Hugging Face's {CLASSES[model_type(arch)]}")
    special = model.tokenizer.special
    write_weights(out / "model.safetensors", _their_weights(model))
    write_json(out / "config.json", _config(model, special) | {"heed": _for_the_way_back(model, out)})
    write_json(out / "generation_config.json", generation_config(model.card, special))


def _their_weights(folder: ModelFolder) -> Parts:
    arch, parts = folder.config.arch, parts_of(folder)
    if arch.positions == "sinusoid":
        parts = reorder_channels(parts, halves(arch.d_model))
    kind, bias = model_type(arch), parts.pop("output.bias", np.zeros(folder.config.vocab_size, np.float32))[:][None]
    theirs: Parts = {} if kind == "m2m_100" else {"final_logits_bias": bias}
    src, output = parts.pop("src_embedding.weight"), parts.pop("output.weight", None)
    tgt = parts.pop("tgt_embedding.weight", src)
    if arch.share == "all":
        theirs["model.shared.weight"] = src
    else:
        theirs |= {"model.encoder.embed_tokens.weight": src, "model.decoder.embed_tokens.weight": tgt}
        if output is not None:
            theirs["lm_head.weight"] = output
    for name, weight in parts.items():
        stack, *rest = name.split(".")
        if len(rest) == 1:  # of a side or a stack
            side = {"src": "encoder", "tgt": "decoder"}.get(stack[:3], stack[:7])
            if stack.endswith("_positions"):
                unused = np.zeros((N_UNUSED_POSITIONS, weight.shape[1]), np.float32)
                theirs[f"model.{side}.embed_positions.weight"] = np.concatenate([unused, weight[:]])
            else:
                norm = "layernorm_embedding" if "embedding" in stack else "layer_norm"
                theirs[f"model.{side}.{norm}.{rest[0]}"] = weight
            continue
        layer, *part, kind = rest
        prefix = f"model.{stack}.layers.{layer}.{LAYER_NAMES['.'.join(part)]}"
        theirs[f"{prefix}.{kind}"] = weight
        if kind == "weight" and part[-1] in ("q", "k", "v", "out"):
            theirs.setdefault(f"{prefix}.bias", np.zeros(weight.shape[0], np.float32))
    return theirs


def _config(folder: ModelFolder, special: SpecialIds) -> dict[str, Any]:
    # MarianConfig has these for each stack; a network that we export differs only in the number of layers.
    arch, vocab_size = folder.config.arch, folder.config.vocab_size
    by_stack = {
        f"{stack}_{name}": value
        for stack, n_layers in zip(STACKS, (arch.encoder_layers, arch.decoder_layers), strict=True)
        for name, value in (("layers", n_layers), ("attention_heads", arch.n_heads), ("ffn_dim", arch.d_ff))
    }

    # The decoder starts with bos and its end is never forced; MarianConfig's defaults are pad and eos.
    kind = model_type(arch)
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        **({"_name_or_path": "small100"} if folder.card.languages.get("source") == "target" else {}),
        "is_encoder_decoder": True,
        "d_model": arch.d_model,
        **by_stack,
        "activation_function": arch.activation,
        "dropout": arch.dropout,
        "attention_dropout": arch.attention_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": arch.max_positions if arch.positions == "learned" else MAX_POSITIONS,
        "vocab_size": folder.config.src_vocab_size or vocab_size,
        "decoder_vocab_size": vocab_size,
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
    return {"architecture": folder.config.arch.model_dump(), "card": vars(folder.card), "sha256 of weights": weights}


def _check_export(model: ModelFolder, out: Path, report: Callable[[str], None]) -> None:
    try:
        import torch  # noqa: F401  # without which transformers computes nothing
        import transformers
    except ImportError:
        report("Not checked: transformers or PyTorch is not installed.")
        return
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(out), trust_remote_code=False).eval()

    def logits(src: "Tensor", src_mask: "Tensor", tgt: "Tensor") -> "Tensor":
        result: Tensor = theirs(input_ids=src, attention_mask=src_mask.long(), decoder_input_ids=tgt).logits
        return result

    difference = compare_logits(logits, model)
    report(f"Checked: transformers {transformers.__version__} gives the same logits, to {difference:.1e}.")


def load(path: Path, *, report: Callable[[str], None]) -> ModelFolder:
    """The model in a folder of Hugging Face's, of a type in NETWORKS; nothing in it is executed.

    report: of settings of its search that Heed lacks. HeedError names what is missing, damaged, or cannot be expressed.
    """
    config = _json(path / "config.json")
    if config.get("model_type") not in list(NETWORKS):  # which may be of any type
        raise HeedError(
            f"{path / 'config.json'}: model_type is {shown(config.get('model_type'))}; Heed imports "
            f"{', '.join(NETWORKS)}."
        )
    theirs = weights_of(path)
    special, own = _special(config, path), config.get("heed")
    ours: dict[str, Any] = own if isinstance(own, dict) else {}
    share = _share(config, path)
    parts = _our_parts(theirs, share, path, learned=NETWORKS[config["model_type"]]["positions"] == "learned")
    arch = _architecture(config, parts, share, path)
    if "architecture" in ours:
        arch = _own_architecture(ours["architecture"], arch, path)
    if not arch.attention_bias:
        parts = {name: weight for name, weight in parts.items() if not name.endswith(ATTENTION_BIASES)}
    if not arch.output_bias:
        del parts["output.bias"]
    n_rows = [parts[name].shape[0] for name in ("src_embedding.weight", "tgt_embedding.weight") if name in parts]
    tokenizer: AnyTokenizer
    languages = None
    if config["model_type"] == "marian":
        tokenizer = hugging_face_tokenizer(path, n_src_rows=n_rows[0], n_tgt_rows=n_rows[-1])
    else:
        tokenizer, _, languages = vocabularies(path, config, n_rows=n_rows[0])
    check_special(path, special, tokenizer)
    card = _card(ours, config, path, special=tokenizer.special, report=report, languages=languages)
    model_config = ModelConfig.of(arch, tokenizer, card)
    check_parts(parts, model_config, where=path)
    if arch.positions == "sinusoid":
        parts = reorder_channels(parts, interleaving(arch.d_model))
    return folder_of(model_config, merge_parts(parts), tokenizer, where=path)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HeedError(f"{path}: missing; expected a folder of Hugging Face's, with its config.json.")
    return json_object(path, MAX_CONFIG_BYTES)


def _special(config: Mapping[str, Any], path: Path) -> SpecialIds:
    ids = [config.get(name) for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id")]
    if any(type(i) is not int or i < 0 for i in ids):
        raise HeedError(f"{path / 'config.json'}: pad_token_id, decoder_start_token_id and eos_token_id must be ids.")
    return SpecialIds(*(int(i) for i in ids))  # type: ignore[arg-type]


def _flag(config: Mapping[str, Any], name: str, path: Path, *, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise HeedError(f"{path / 'config.json'}: {name} is {shown(value)}; expected true or false.")
    return value


def _share(config: Mapping[str, Any], path: Path) -> str:
    if _flag(config, "share_encoder_decoder_embeddings", path, default=True):
        return "all"
    return "tgt" if _flag(config, "tie_word_embeddings", path, default=True) else "none"


def _our_parts(theirs: Parts, share: str, path: Path, *, learned: bool) -> Parts:
    """Their weights under our names, with all biases. learned: whether positions are."""
    # Weights leave `left` as they are used, so that what remains is known.
    parts, left = Parts(), dict(theirs)

    def take(ours: str, *names: str) -> None:
        """A matrix that stands under any of these names, and is the same wherever it stands."""
        copies = [left.pop(name) for name in names if name in left]
        if not copies:
            raise HeedError(f"{path}: weight {names[0]} is missing.")
        if len(shape := copies[0].shape) != 2:  # check_parts, which knows all shapes, needs the tokenizer first
            raise HeedError(f"{path}: {ours} has shape {shape}, expected two dimensions.")
        if any(not _equal(copies[0], other) for other in copies[1:]):
            raise HeedError(f"{path}: {' and '.join(names)} differ, which config.json says are one matrix.")
        parts[ours] = copies[0]

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
    parts["output.bias"] = left.pop("final_logits_bias", np.zeros(table.shape[:1], np.float32))[:].flatten()

    # Layers: model.STACK.layers.N.PART.KIND.
    ours_of = {theirs_name: ours for ours, theirs_name in LAYER_NAMES.items()}
    for name, weight in left.items():
        words = name.split(".")
        side = {"encoder": "src", "decoder": "tgt"}.get(words[1] if len(words) == 4 else "")
        if side and words[2] == "embed_positions" and learned:
            parts[f"{side}_positions.weight"] = weight[N_UNUSED_POSITIONS:]
            continue
        if "embed_positions" in words[2:3] or name == shared:  # made anew; not used where nothing is shared
            if words[3:] == ["weight"]:  # a buffer of M2M100 is called otherwise, and not read from a file
                _check_sinusoids(weight, name, path)
            continue
        if side and words[2] in NORMS:
            parts[f"{side if words[2] == 'layernorm_embedding' else words[1]}{NORMS[words[2]]}.{words[3]}"] = weight
            continue
        part = ours_of.get(".".join(words[4:-1]))
        if part is None or words[0] != "model" or words[1] not in STACKS or words[2] != "layers":
            raise HeedError(f"{path}: a model of this type has no weight {shown(name)}.")
        parts[f"{words[1]}.{words[3]}.{part}.{words[-1]}"] = weight
    return parts


def _equal(a: Rows, b: Rows) -> bool:
    return a.shape == b.shape and all(np.array_equal(a[rows], b[rows]) for rows in row_blocks(a.shape))


def _check_sinusoids(table: Rows, name: str, path: Path) -> None:
    """HeedError unless a stored table of positions, in whatever precision, is the one that Heed makes."""
    n_positions, width = table.shape if len(table.shape) == 2 else (0, 0)
    own = sinusoid(n_positions, width, "sinusoid-halves") if width > 0 and width % 2 == 0 else None
    if own is None or not np.allclose(own, table[:], rtol=1e-5, atol=0.01):
        raise HeedError(f"{path}: {name} are not the sinusoids that a model of this type has.")


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
        "attention_bias": any(bool(parts[name][:].any()) for name in parts if name.endswith(ATTENTION_BIASES)),
        "output_bias": bool(parts["output.bias"][:].any()),
        "share": share,
        **NETWORKS[config["model_type"]],
    }
    if values["positions"] == "learned":
        values["max_positions"] = config.get("max_position_embeddings")
    if values["n_decoder_layers"] == values["n_layers"]:
        del values["n_decoder_layers"]
    return validated(Architecture, values, where=where)


def _own_architecture(own: Any, theirs: Architecture, path: Path) -> Architecture:
    """The settings that Heed wrote, if they are of the network found: they also say what no folder of theirs does.

    found: with all sines before all cosines, which another order of the channels makes the same network.
    """
    written = validated(Architecture, own, where=f"{path / 'config.json'}: heed.architecture")
    unsaid = {name: getattr(written, name) for name in ("word_dropout", "max_positions", "d_k", "d_v")}
    for name in ("attention_bias", "output_bias"):  # one that was not trained may be zero all over
        unsaid[name] = getattr(written, name) or getattr(theirs, name)
    if (written.encoder_layers, written.decoder_layers) == (theirs.encoder_layers, theirs.decoder_layers):
        unsaid |= {name: getattr(written, name) for name in ("n_layers", "n_encoder_layers", "n_decoder_layers")}
    if written.positions == "sinusoid":
        unsaid["positions"] = "sinusoid"
    return validated(Architecture, theirs.model_dump() | unsaid, where=f"{path / 'config.json'}: heed.architecture")


def _card(
    ours: Mapping[str, Any],
    config: Mapping[str, Any],
    path: Path,
    *,
    special: SpecialIds,
    report: Callable[[str], None],
    languages: Languages | None = None,
) -> ModelCard:
    """The card that Heed wrote, or what the folder says of languages and search.

    Weights that another program has written since keep the languages, but neither scores nor search; a search that
    somebody has changed since is taken as it is.
    """
    where = str(path / "config.json")
    written = model_card(ours["card"], where=where) if isinstance(ours.get("card"), dict) else None
    weights = path / "model.safetensors"
    hashed = ours.get("sha256 of weights")
    has_our_weights = hashed is None or (weights.is_file() and sha256_of(weights) == hashed)

    # As in transformers, what config.json says of the search counts only without generation_config.json.
    generation = _json(file) if (file := path / "generation_config.json").is_file() else config
    for name in ("decoder_start_token_id", "eos_token_id"):
        if generation.get(name) not in (None, config[name], [config[name]]):
            raise HeedError(f"{file}: {name} is {shown(generation[name])}, but {config[name]} in config.json.")
    if written and has_our_weights:
        validated(DecodingSettings, written.decoding, where=f"{where}: heed.card.decoding")
        if hashed is None or generation is config or not says_otherwise(generation, written, special):
            return replace(written, parsing={})

    # The search: settings that Heed has, and those that it lacks.
    forced, generation = generation.get("forced_bos_token_id"), search_of_languages(generation, languages)
    decoding = validated(
        DecodingSettings,
        ({} if languages is None else {"max_extra_tokens": LENGTH_OF_LANGUAGES}) | search_settings(generation),
        where=f"{path}: its search (num_beams, length_penalty, limits)",
    )
    others = other_settings(generation, special)
    if missing := not_neutral(others, NOT_IN_HEED):
        report(f"{path}: Heed has no {listed(missing)}; its translations differ from those of transformers.")

    # The rest of the card.
    tokenizer = optional_json(path / "tokenizer_config.json")
    src, tgt = (str(tokenizer.get(f"{side}_lang") or side) for side in UNKNOWN_LANGUAGES)
    if languages is not None:  # of a model for one target language, generate's settings say which
        src, tgt = SEVERAL, next((code for code, i in languages.ids.items() if i == forced), SEVERAL)
    card = written or ModelCard(src, tgt)
    card = card if languages is None else replace(card, languages=languages.model_dump())
    trained_on = {name: value for name, value in card.trained_on.items() if name != OTHER_SETTINGS}
    if not (written and has_our_weights):
        trained_on[IMPORTED_FROM] = "Hugging Face"
    if others:
        trained_on[OTHER_SETTINGS] = json.dumps(others)
    return replace(card, decoding=decoding.model_dump(), trained_on=trained_on, scores={}, parsing={})
