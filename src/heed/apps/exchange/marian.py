"""Marian's models: an .npz of float matrices, (in, out), with their settings inside in YAML, and one vocabulary a side.

Marian's network is the paper's but for its positions, all sines before all cosines and with the frequencies of
tensor2tensor, and for its decoder, which starts from a zero vector instead of an embedding. What else Heed has Marian
lacks, as measured with 1.12.42: its approximation of GELU, x · σ(1.702 x), differs from other programs'; with pre-norm
its search makes keys and values of the target's positions from inputs that are not normalised, from the second token
on; and its network ignores the option for learned positions.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from heed.apps.exchange.archives import check_expansion
from heed.apps.exchange.tokenizers import piece_names
from heed.apps.exchange.unmerged_weights import (
    IN_ALL_FORMATS,
    Array,
    Parts,
    check_covered,
    check_parts,
    listed,
    merge_parts,
    missing_part,
    not_neutral,
    parts_of,
    with_symbols_barred,
)
from heed.apps.exchange.verify import ranking_note, sample_ids
from heed.config import SHOWN, cut, reason, shown, validated
from heed.decoding.beam import beam_search
from heed.decoding.loading import no_report, ready_models
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source, maximum_length
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.coverage import Coverage
from heed.model_folder import IMPORTED_FROM, UNKNOWN_LANGUAGES, ModelCard, ModelConfig, ModelFolder, folder_of
from heed.runtime.reading import read_bounded
from heed.text.sentencepiece import SentencePieceTokenizer, marian_tokenizer
from heed.text.sentencepiece_model import MAX_PIECES
from heed.text.tokenizer_kinds import AnyTokenizer

MAX_CONFIG_BYTES = 2**17
MAX_DEPTH = 16  # of nested settings; PyYAML's time grows with its square
SETTINGS = "special:model.yml"
ACTIVATIONS = ("relu", "swish")
TOLERANCE = 1e-3  # of a score
MAX_LENGTH = 1024  # tokens of a line that Marian reads

# Ours → Marian's within a layer: prefix of the sub-layer, suffix of the matrix.
MATRICES = {
    **{f"self_attention.{part}": ("self_W" + part[0], "self_b" + part[0]) for part in ("q", "k", "v", "out")},
    **{f"cross_attention.{part}": ("context_W" + part[0], "context_b" + part[0]) for part in ("q", "k", "v", "out")},
    "feed_forward.inner": ("ffn_W1", "ffn_b1"),
    "feed_forward.outer": ("ffn_W2", "ffn_b2"),
}
NORMS = {"self_attention_norm": "self_Wo", "cross_attention_norm": "context_Wo", "feed_forward_norm": "ffn_ffn"}
# Settings that change the network, with the values for which it is one that Heed has.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-attention-mask": ("default",),
    "transformer-no-projection": (False,),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-tied-layers": ([],),
    "input-types": ([], ["sequence"]),
    "lemma-dependency": ("",),
    "lemma-dim-emb": (0,),
    "factors-dim-emb": (0,),
    "ulr": (False,),
    "right-left": (False,),
}

# Settings of a decoder that change translations, with the values that change none. Sentences beyond max-length are left
# out, or cut with max-length-crop.
OFF = ("max-length-crop", "allow-unk", "allow-special", "force-decode", "no-spm-decode", "no-spm-encode", "tsv")
NOT_IN_HEED: dict[str, tuple[Any, ...]] = dict.fromkeys(OFF, (False,)) | {"max-length": (0, 1000)}
NOT_IN_HEED |= {"shortlist": ([],), "output-approx-knn": ([],), "output-sampling": (False, [])}


def load(path: Path, *, report: Callable[[str], None]) -> ModelFolder:
    """The model of a decoder's settings (NAME.npz.decoder.yml), of the one in a folder, or of the one beside an .npz.

    report: of settings of its search that Heed lacks. HeedError names what is missing, damaged, or cannot be expressed.
    """
    yml = _decoder_settings(path)
    decoder = _yaml(read_bounded(yml, MAX_CONFIG_BYTES), yml)
    model_path, vocabularies = _files(decoder, yml)
    arrays = _arrays(model_path)
    if SETTINGS not in arrays:
        raise HeedError(f"{model_path}: has no {SETTINGS}; was it trained with Marian?")
    stored = arrays.pop(SETTINGS)
    if stored.nbytes > MAX_CONFIG_BYTES:
        raise HeedError(f"{model_path}: its {SETTINGS} is longer than {MAX_CONFIG_BYTES:,} bytes.")
    settings = _yaml(stored.tobytes().rstrip(b"\0"), model_path)
    tokenizer = marian_tokenizer(*vocabularies, sizes=_vocabulary_sizes(settings, model_path))
    weights = {name: _matrix(name, array, model_path) for name, array in arrays.items()}
    arch = _architecture(settings, model_path)
    parts = _our_parts(weights, arch, model_path)
    config = ModelConfig.of(arch, tokenizer, _card(decoder, yml, report))
    check_parts(parts, config, where=model_path)
    return folder_of(config, merge_parts(parts), tokenizer, where=model_path)


def _decoder_settings(path: Path) -> Path:
    if path.is_dir():
        files = sorted(path.glob("*.yml"))
        files = [yml for yml in files if yml.name.endswith("decoder.yml")] or files
        if len(files) != 1:
            raise HeedError(
                f"{path}: holds {len(files)} settings of a decoder; name one, such as model.npz.decoder.yml."
            )
        return files[0]
    if path.suffix == ".npz":
        return path.with_name(path.name + ".decoder.yml")
    return path


def _yaml(content: bytes, path: Path) -> dict[str, Any]:
    try:
        text = content.decode("utf-8")
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            # A value of a few lines that refer to each other could be longer than the memory.
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
                raise ValueError("aliases or deeply nested values, which Marian never writes")
        settings = yaml.safe_load(text)
    except Exception as error:  # PyYAML raises half a dozen kinds for a tag on a value of another type
        raise HeedError(f"{path}: damaged settings ({reason(error)}).") from None
    if not isinstance(settings, dict):
        raise HeedError(f"{path}: holds no settings of Marian's.")
    return settings


def _files(decoder: Mapping[str, Any], yml: Path) -> tuple[Path, tuple[Path, Path]]:
    """The model and its two vocabularies, next to their settings wherever those say that they lie."""

    def names(key: str) -> list[str]:
        value = decoder.get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise HeedError(f"{yml}: {key} is not a list of files.")
        return value

    models, vocabularies = names("models"), names("vocabs")
    if len(models) != 1:
        raise HeedError(f"{yml}: an ensemble of {len(models)} models; import each with its own settings.")
    if len(vocabularies) != 2:
        raise HeedError(f"{yml}: {len(vocabularies)} vocabularies; Heed's models have a source and a target.")
    paths = [yml.parent / Path(name).name for name in (*models, *vocabularies)]
    for path in paths:
        if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
            raise HeedError(f"{cut(str(path), 4 * SHOWN)}: missing; {yml.name} names it.")
    return paths[0], (paths[1], paths[2])


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz; nothing in it is unpickled."""
    check_expansion(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for a damaged file
        raise HeedError(f"{path}: damaged or not an .npz ({reason(error)}).") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member that does not begin as an array does
            raise HeedError(f"{path}: damaged or not an .npz ({shown(name)} is not an array).")
    return arrays


def _matrix(name: str, array: np.ndarray, path: Path) -> Array:
    if array.dtype not in (np.float32, np.float16):
        raise HeedError(f"{path}: {shown(name)} is of type {array.dtype}; import the model before it was quantised.")
    if array.ndim != 2:
        raise HeedError(f"{path}: {shown(name)} has {array.ndim} axes; expected a matrix.")
    return np.asarray(array, np.float32)


def _vocabulary_sizes(settings: Mapping[str, Any], path: Path) -> tuple[int, int] | None:
    """The sizes of source and target vocabulary, or None if the settings do not say."""
    sizes = settings.get("dim-vocabs")
    if sizes is None:
        return None
    if not (isinstance(sizes, list) and len(sizes) == 2 and all(type(n) is int and 0 < n <= MAX_PIECES for n in sizes)):
        raise HeedError(f"{path}: dim-vocabs is {shown(sizes)}; expected the sizes of two vocabularies.")
    return sizes[0], sizes[1]


def _architecture(settings: Mapping[str, Any], path: Path) -> Architecture:
    # Options that Heed cannot express are refused by Marian's names.
    for key in ("enc-depth", "dec-depth", "dim-emb", "transformer-dim-ffn", "transformer-heads"):
        if type(settings.get(key)) is not int:
            raise HeedError(f"{path}: {key} is {shown(settings.get(key))}; expected a number.")
    for key, allowed in EXPECTED.items():
        if key in settings and settings[key] not in allowed:
            raise HeedError(f"{path}: {key} is {shown(settings[key])}, which Heed does not have.")
    if settings.get("transformer-decoder-dim-ffn", 0) not in (0, settings.get("transformer-dim-ffn")):
        raise HeedError(f"{path}: transformer-decoder-dim-ffn differs from the encoder's, which Heed does not have.")
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        raise HeedError(
            f"{path}: transformer-ffn-activation is {shown(activation)}; Heed has {', '.join(ACTIVATIONS)}."
        )
    _check_norm(settings, path)
    # What Marian always has, and Heed has as a choice.
    n_layers, n_decoder_layers = settings.get("enc-depth"), settings.get("dec-depth")
    values = {
        "n_layers": n_layers,
        "d_model": settings.get("dim-emb"),
        "d_ff": settings.get("transformer-dim-ffn"),
        "n_heads": settings.get("transformer-heads"),
        "activation": activation,
        "attention_bias": True,
        "output_bias": not settings.get("output-omit-bias", False),
        "share": _share(settings, path),
        "positions": "sinusoid-t2t",
        "decoder_start": "zero",
    }
    if n_decoder_layers != n_layers:
        values["n_decoder_layers"] = n_decoder_layers
    return validated(Architecture, values, where=str(path))


def _check_norm(settings: Mapping[str, Any], path: Path) -> None:
    """HeedError unless a sub-layer's sum is normalised and nothing else; d is dropout, a the addition, n the norm."""
    defaults = {"preprocess": "", "postprocess": "dan", "postprocess-top": "", "postprocess-emb": "d"}
    for where, default in defaults.items():
        value = settings.get(f"transformer-{where}", default)
        if str(value).replace("d", "") != default.replace("d", ""):
            raise HeedError(
                f"{path}: transformer-{where} is {shown(value)}, expected {default!r}: Heed imports post-norm, because "
                "Marian's search does not normalise a pre-norm decoder's keys."
            )


def _share(settings: Mapping[str, Any], path: Path) -> str:
    tied_all, tied_src, tied = (settings.get(f"tied-embeddings{of}", False) for of in ("-all", "-src", ""))
    if tied_all or (tied_src and tied):
        return "all"
    if tied_src:
        raise HeedError(f"{path}: tied-embeddings-src without tied-embeddings, which Heed does not have.")
    return "tgt" if tied else "none"


def _our_parts(theirs: dict[str, Array], arch: Architecture, path: Path) -> Parts:
    left, parts = dict(theirs), Parts()

    def take(ours: str, name: str, *, transposed: bool = False) -> None:
        if name not in left:
            raise HeedError(f"{path}: {name} is missing.")
        weight = left.pop(name)
        is_vector = ours.endswith("bias") or "_ln_" in name
        parts[ours] = weight.flatten() if is_vector else weight.T if transposed else weight

    if arch.share == "all":
        take("src_embedding.weight", "Wemb")
    else:
        take("src_embedding.weight", "encoder_Wemb")
        take("tgt_embedding.weight", "decoder_Wemb")
    if arch.share == "none":
        is_old = "decoder_ff_logit_out_W" in left  # older versions have it as (in, out)
        take("output.weight", f"decoder_ff_logit_out_W{'' if is_old else 't'}", transposed=is_old)
    if arch.output_bias:
        take("output.bias", "decoder_ff_logit_out_b")
    for ours, name in _layer_names(arch):
        take(ours, name, transposed=True)
    if left:
        raise HeedError(f"{path}: {shown(min(left))} is not part of a Transformer that Heed has.")
    return parts


def _layer_names(arch: Architecture) -> Iterator[tuple[str, str]]:
    """Our name and Marian's of every weight of the layers, biases included."""
    for stack, n_layers in (("encoder", arch.encoder_layers), ("decoder", arch.decoder_layers)):
        for i in range(n_layers):
            ours_layer, theirs_layer = f"{stack}.{i}", f"{stack}_l{i + 1}"
            for ours, (weight, bias) in MATRICES.items():
                if stack == "decoder" or not ours.startswith("cross"):
                    yield f"{ours_layer}.{ours}.weight", f"{theirs_layer}_{weight}"
                    yield f"{ours_layer}.{ours}.bias", f"{theirs_layer}_{bias}"
            for ours, where in NORMS.items():
                if stack == "decoder" or not ours.startswith("cross"):
                    yield f"{ours_layer}.{ours}.weight", f"{theirs_layer}_{where}_ln_scale"
                    yield f"{ours_layer}.{ours}.bias", f"{theirs_layer}_{where}_ln_bias"


def _card(decoder: Mapping[str, Any], yml: Path, report: Callable[[str], None]) -> ModelCard:
    # Marian's score is (log P - w n) / n^α: with α = 1 a word penalty w is a constant.
    alpha, penalty = decoder.get("normalize", 0), decoder.get("word-penalty", 0)
    if penalty != 0 and alpha != 1:
        raise HeedError(f"{yml}: word-penalty is {shown(penalty)}, which Heed does not have; set it to 0.")
    if penalty != 0:
        report(f"{yml}: word-penalty {shown(penalty)} only shifts Marian's scores, since normalize is 1; left out.")
    if others := not_neutral(decoder, NOT_IN_HEED):
        report(f"{yml}: Heed has no {listed(others)}; its translations differ from Marian's.")
    form = {"length_penalty": alpha, "length_penalty_form": "average"} if alpha else {"length_penalty_form": "none"}
    settings = {
        "beam_size": decoder.get("beam-size", 12),
        "max_length_factor": decoder.get("max-length-factor", 3.0),
        "max_extra_tokens": 10_000,
        **form,
    }
    decoding = validated(DecodingSettings, settings, where=str(yml)).model_dump()
    return ModelCard(*UNKNOWN_LANGUAGES, decoding=decoding, trained_on={IMPORTED_FROM: "Marian"})


def export(folder: ModelFolder, out: Path, *, report: Callable[[str], None]) -> None:
    """Writes the model into the empty folder `out`. HeedError for a model that Marian cannot express."""
    # Before any work: a network that Marian lacks is refused.
    check_covered(covers(folder.config.arch), program="Marian")

    # The network: arrays by Marian's names, and its options as one of them.
    folder = with_symbols_barred(folder)
    theirs = _their_arrays(folder)
    settings = _settings(folder.config)
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
    theirs[SETTINGS] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(out / "model.npz", **theirs)  # type: ignore[arg-type]  # a name could be that of its option
    vocabularies = _write_vocabularies(folder.tokenizer, out, report)

    # The search: what Marian has no word for is reported.
    search = validated(DecodingSettings, folder.card.decoding, where="the model's search settings")
    if note := ranking_note(folder.card, "Marian"):
        report(note)
    for name in ("min_tokens", "early_stopping"):
        if value := getattr(search, name):
            report(f"Marian has no {name}, which is {value} in the model's search settings.")

    # marian-decoder and pymarian read this file (`-c`); Heed has no word penalty.
    decoder = {
        "relative-paths": True,
        "models": ["model.npz"],
        "vocabs": vocabularies,
        "beam-size": search.beam_size,
        "normalize": 0 if search.length_penalty_form == "none" else search.length_penalty,
        "word-penalty": 0,
        "max-length-factor": _length_factor(search),
    }
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in decoder.items())
    (out / "model.npz.decoder.yml").write_text(text, encoding="utf-8")

    # The check reads the files just written, not what was in memory.
    _check_export(folder, out, report)


def _length_factor(search: DecodingSettings) -> float:
    """Marian's limit of a target, in times the tokens of its source and eos: not lower than Heed's for any source.

    But for 1,000 at most, which Heed can read again. Marian has neither max_extra_tokens nor max_tokens.
    """
    if search.max_length_factor is not None:
        return search.max_length_factor
    return min(max(3.0, maximum_length(Source(0, [0]), search) / 2), 1000.0)


COVERAGE = Coverage(
    IN_ALL_FORMATS
    | {
        "activation": {"relu": True, "gelu": False, "swish": True},
        "norm": {"post": True, "pre": False},
        "positions": {"sinusoid-t2t": True}
        | {name: f"positions = {name}, not sinusoid-t2t" for name in ("sinusoid", "sinusoid-halves", "learned")},
        "decoder_start": {"bos": "decoder_start = bos, not zero", "zero": True},
    }
)


def covers(arch: Architecture) -> str | None:
    """The part of this network that Marian lacks; None if it has all."""
    return missing_part(arch, COVERAGE)


def _their_arrays(folder: ModelFolder) -> dict[str, np.ndarray]:
    arch, parts = folder.config.arch, {name: weight[:] for name, weight in parts_of(folder).items()}
    embeddings = {"src_embedding.weight": "Wemb" if arch.share == "all" else "encoder_Wemb"}
    embeddings |= {"tgt_embedding.weight": "decoder_Wemb"}
    theirs = {name: parts[ours] for ours, name in embeddings.items() if ours in parts}
    if arch.share == "none":
        theirs["decoder_ff_logit_out_Wt"] = parts["output.weight"]
    if arch.output_bias:
        theirs["decoder_ff_logit_out_b"] = parts["output.bias"][None]
    for ours, name in _layer_names(arch):
        if ours in parts:
            theirs[name] = parts[ours].T if parts[ours].ndim == 2 else parts[ours][None]
        else:  # a bias of attention, which Marian always has
            theirs[name] = np.zeros((1, len(parts[ours.removesuffix("bias") + "weight"])), np.float32)
    return {name: np.ascontiguousarray(array) for name, array in theirs.items()}


def _settings(config: ModelConfig) -> dict[str, Any]:
    """Marian's options for this network: those that are not the defaults of `transformer`."""
    # Of the letters, d is dropout, a adds the input, n is layer normalization: "dan" after each sub-layer is post-norm.
    arch = config.arch
    return {
        "version": "v1.12.0",
        "type": "transformer",
        "dim-vocabs": [config.src_vocab_size or config.vocab_size, config.vocab_size],
        "dim-emb": arch.d_model,
        "enc-depth": arch.encoder_layers,
        "dec-depth": arch.decoder_layers,
        "transformer-heads": arch.n_heads,
        "transformer-dim-ffn": arch.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": arch.activation,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-top": "",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "tied-embeddings": arch.share == "tgt",
        "tied-embeddings-all": arch.share == "all",
        "tied-embeddings-src": False,
        "output-omit-bias": not arch.output_bias,
        "max-length": MAX_LENGTH,
        "layer-normalization": False,
        "input-types": [],
        "skip": False,
        "ulr": False,
    }


def _write_vocabularies(tokenizer: AnyTokenizer, out: Path, report: Callable[[str], None]) -> list[str]:
    """The names of the source's and the target's vocabulary, which may be one file."""
    if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.src.pieces is None and tokenizer.tgt.pieces is None:
        models = [vocabulary.model for vocabulary in (tokenizer.src, tokenizer.tgt)]
        names = ["joint.spm"] * 2 if models[0] == models[1] else ["src.spm", "tgt.spm"]
        for name, model in zip(names, models, strict=True):
            assert model is not None
            (out / name).write_bytes(model.protobuf())
        return names
    report("Marian knows no tokenizer of this kind: give it lines of pieces, spaces between, as Heed's tokenizer cuts.")
    special = tokenizer.special
    names = []
    for side in ("src", "tgt"):
        pieces = piece_names(tokenizer, src=side == "src")
        if special.unk is None:
            pieces[special.eos], pieces[special.pad] = "</s>", "<unk>"  # Marian writes no <unk>, Heed no pad
        lines = (f"{_quote(piece)}: {i}\n" for i, piece in enumerate(pieces))
        (out / f"{side}.yml").write_text("".join(lines), encoding="utf-8")
        names.append(f"{side}.yml")
    return names


def _quote(text: str) -> str:
    """A string of YAML, which has no surrogate pairs as JSON does."""
    return "".join(json.dumps(char)[1:-1] if char < "\U00010000" else f"\\U{ord(char):08x}" for char in text).join('""')


def _check_export(folder: ModelFolder, out: Path, report: Callable[[str], None]) -> None:
    """Compares greedy translations and their scores. HeedError if they differ."""
    # An optional package: without it the export stands, unchecked.
    try:
        import pymarian
    except ImportError:
        report("Not checked: pymarian is not installed.")
        return

    # Marian takes text, so sources are lines that both programs split into the same ids.
    tokenizer, special = folder.tokenizer, folder.tokenizer.special
    sources, _ = sample_ids(folder)
    if (out / "src.yml").exists():
        names = piece_names(tokenizer, src=True)
        sources = [[i for i in ids if " " not in names[i]] for ids in sources]
        lines = [" ".join(names[i] for i in ids) for ids in sources]
    else:
        assert isinstance(tokenizer, SentencePieceTokenizer)
        lines = ["".join(tokenizer.src_pieces(ids)).strip() for ids in sources]
        sources = tokenizer.encode_lines(lines)

    # Greedy, without length penalty: what is left to compare is log P.
    settings = DecodingSettings(beam_size=1, length_penalty_form="none", max_length_factor=3, max_extra_tokens=10_000)
    options = {"beam_size": 1, "normalize": 0, "max_length_factor": 3, "n_best": True, "cpu_threads": 1, "quiet": True}
    [model], _ = ready_models([folder], "fp32", device="cpu", report=no_report)
    theirs = pymarian.Translator(config=str(out / "model.npz.decoder.yml"), **options)
    for ids, line in zip(sources, lines, strict=True):
        ours = beam_search(model, [ids], special, settings)[0][0]
        score = float(theirs.translate([line])[0].rsplit(" ||| ", 1)[1])
        if abs(score - ours.log_prob) > TOLERANCE * max(1.0, abs(score)):
            raise HeedError(
                f"Marian's greedy translation has log P {score:.4f}, Heed's {ours.log_prob:.4f}; nothing was written; "
                "please report it."
            )
    report(f"Checked: Marian {pymarian.__version__} gives greedy translations the same scores.")
