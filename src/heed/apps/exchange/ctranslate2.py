"""CTranslate2's folders: model.bin, its vocabularies, and the tokenizer that a program needs beside them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heed.apps.exchange.many_languages import tokens_of
from heed.apps.exchange.tokenizers import piece_names, tokenizer_json
from heed.apps.exchange.unmerged_weights import IN_ALL_FORMATS, check_covered, missing_part, with_symbols_barred
from heed.apps.exchange.verify import ranking_note, sample_ids
from heed.config import validated
from heed.decoding.given_pairs import pair_log_probs
from heed.decoding.loading import no_report, ready_models
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source, longest_source, maximum_length
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.coverage import Coverage
from heed.model.sinusoids import sinusoid
from heed.model_folder import ModelFolder
from heed.text.languages import Languages
from heed.text.sentencepiece import SentencePieceTokenizer
from heed.text.tokenizer import Tokenizer

N_POSITIONS = 1024
TOLERANCE = 1e-3  # of a token's log-probability

USE_TOKENIZERS = """\
import ctranslate2, tokenizers
folder = {out}
tokenizer, model = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json"), ctranslate2.Translator(folder)
tokenizer.encode_special_tokens = True  # a text that spells a special symbol is text
best = model.translate_batch([tokenizer.encode("{text}").tokens], {search})[0].hypotheses[0]
print(tokenizer.decode([tokenizer.token_to_id(token) for token in best]))
"""
USE_SENTENCEPIECE = """\
import ctranslate2, sentencepiece
folder = {out}
src, tgt = (sentencepiece.SentencePieceProcessor(folder + f"/{{side}}.spm") for side in ("source", "target"))
model = ctranslate2.Translator(folder)
best = model.translate_batch([{code}src.encode("{text}", out_type=str)], {search})[0].hypotheses[0]
print(tgt.decode(best))
"""
USE_WORDS = """\
import ctranslate2
model = ctranslate2.Translator({out})
best = model.translate_batch(["{text}".split()], {search})[0].hypotheses[0]
print(" ".join(best))
"""


def export(folder: ModelFolder, out: Path, *, name: str, int8: bool, report: Callable[[str], None]) -> None:
    """Writes the model into the empty folder `out`, and compares the scores that CTranslate2 gives with it.

    name: the folder's, at last. int8: whether to write weights in 8 bits, after the comparison. HeedError for a model
    that CTranslate2 cannot express, or if its package is not installed.
    """
    folder = with_symbols_barred(folder)
    write_model(folder, out, int8=False)
    import ctranslate2

    difference = _compare_scores(folder, ctranslate2.Translator(str(out), device="cpu", compute_type="float32"))
    report(f"Checked: CTranslate2 {ctranslate2.__version__} gives the same log-probabilities, to {difference:.1e}.")
    if int8:
        write_model(folder, out, int8=True)
    usage = _write_tokenizer(folder, out)
    search = validated(DecodingSettings, folder.card.decoding, where="the model's search settings")
    (out / "README.md").write_text(_readme(folder, usage, name, search), encoding="utf-8")
    if note := ranking_note(folder.card, "CTranslate2"):
        report(note)
    if search.beam_size > 1 and not search.early_stopping:
        report(
            "CTranslate2 ends a search once as many hypotheses as the beam holds are complete, as Heed does with "
            "decoding.early_stopping = true: with a beam, the best hypothesis is occasionally another."
        )


COVERAGE = Coverage(
    IN_ALL_FORMATS
    | {
        "activation": {"relu": True, "gelu": True, "swish": True},
        "norm": {"post": True, "pre": True},
        "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": True, "learned": True},
        "decoder_start": {"bos": True, "zero": True},
        "first_position": True,
        "embedding_norm": {False: True, True: True},
    }
)


def covers(arch: Architecture) -> str | None:
    """The part of this network that CTranslate2 lacks; None if it has all."""
    return missing_part(arch, COVERAGE)


def write_model(folder: ModelFolder, out: Path, *, int8: bool) -> None:
    """Writes what `ctranslate2.Translator` loads; errors as for `export`."""
    check_covered(covers(folder.config.arch), program="CTranslate2")
    try:
        specification = _specification(folder)
    except ImportError:
        raise HeedError(
            "CTranslate2's package writes its format, and is not installed: pip install 'heed-mt[exchange]'."
        ) from None
    specification.validate()
    if int8:
        specification.optimize(quantization="int8")
    specification.save(str(out))


def _specification(folder: ModelFolder) -> Any:
    """CTranslate2's description of a model, filled with the weights."""
    from ctranslate2.specs import transformer_spec
    from ctranslate2.specs.common_spec import Activation

    # The shape alone; its weights are still empty.
    arch = folder.config.arch
    activations = {"relu": Activation.RELU, "gelu": Activation.GELU, "swish": Activation.SWISH}
    specification = transformer_spec.TransformerSpec.from_config(
        (arch.encoder_layers, arch.decoder_layers),
        arch.n_heads,
        pre_norm=arch.norm == "pre",
        activation=activations[arch.activation],
        layernorm_embedding=arch.embedding_norm,
    )

    # Both stacks: tables, layers, and the last norm where norms come first.
    src = _array(folder, "src_embedding.weight")
    tgt = src if arch.share == "all" else _array(folder, "tgt_embedding.weight")
    stacks = (("encoder", "src", src), ("decoder", "tgt", tgt))
    for name, side, embedding in stacks:
        stack = getattr(specification, name)
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = embedding
        stack.scale_embeddings = True
        if arch.positions == "learned":
            stack.position_encodings.encodings = _array(folder, f"{side}_positions.weight")
        else:
            table = sinusoid(arch.first_position + N_POSITIONS, arch.d_model, arch.positions)
            stack.position_encodings.encodings = np.ascontiguousarray(table[arch.first_position :])
        if arch.embedding_norm:
            _fill_norm(stack.layernorm_embedding, folder, f"{side}_embedding_norm")
        for i, layer in enumerate(stack.layer):
            _fill_layer(layer, folder, f"{name}.{i}")
        if arch.norm == "pre":
            _fill_norm(stack.layer_norm, folder, f"{name}_norm")

    # The projection to the vocabulary, and the first input of the decoder: zeros, or an embedded token.
    projection = specification.decoder.projection
    projection.weight = tgt if arch.share != "none" else _array(folder, "output.weight")
    if arch.output_bias:
        projection.bias = _array(folder, "output.bias")
    specification.decoder.start_from_zero_embedding = arch.decoder_start == "zero"

    # CTranslate2 knows special tokens by the names of their pieces, and its Translator takes pieces, no ids.
    src_names, tgt_names = _names(folder)
    special, config = folder.tokenizer.special, specification.config
    config.bos_token = config.decoder_start_token = tgt_names[special.bos]
    config.eos_token = tgt_names[special.eos]
    config.unk_token = tgt_names[special.pad if special.unk is None else special.unk]
    config.add_source_eos = isinstance(folder.tokenizer, SentencePieceTokenizer)  # ours writes it itself
    specification.register_source_vocabulary(src_names)
    specification.register_target_vocabulary(tgt_names)
    return specification


def _names(folder: ModelFolder) -> tuple[list[str], list[str]]:
    """The names of the ids of both sides; languages are called as their tokenizer calls them."""
    both = piece_names(folder.tokenizer, src=True), piece_names(folder.tokenizer, src=False)
    if folder.card.languages and isinstance(folder.tokenizer, SentencePieceTokenizer):
        for token, i in tokens_of(Languages.model_validate(folder.card.languages))[1].items():
            for names in both:
                names[i] = token
    return both


def _array(folder: ModelFolder, name: str) -> np.ndarray:
    weight = folder.take(name)
    assert weight is not None, name
    return np.ascontiguousarray(weight[:])


def _fill_layer(target: Any, folder: ModelFolder, name: str) -> None:
    own, cross = f"{name}.self_attention", f"{name}.cross_attention"
    _fill_attention(target.self_attention, folder, [f"{own}.qkv", f"{own}.out"], f"{own}_norm")
    if name.startswith("decoder"):
        _fill_attention(target.attention, folder, [f"{cross}.{part}" for part in ("q", "kv", "out")], f"{cross}_norm")
    _fill_linear(target.ffn.linear_0, folder, f"{name}.feed_forward.inner")
    _fill_linear(target.ffn.linear_1, folder, f"{name}.feed_forward.outer")
    _fill_norm(target.ffn.layer_norm, folder, f"{name}.feed_forward_norm")


def _fill_attention(target: Any, folder: ModelFolder, names: list[str], norm: str) -> None:
    for linear, name in zip(target.linear, names, strict=True):
        _fill_linear(linear, folder, name)
    _fill_norm(target.layer_norm, folder, norm)


def _fill_linear(target: Any, folder: ModelFolder, name: str) -> None:
    target.weight = _array(folder, f"{name}.weight")
    if folder.take(f"{name}.bias") is not None:
        target.bias = _array(folder, f"{name}.bias")


def _fill_norm(target: Any, folder: ModelFolder, name: str) -> None:
    target.gamma, target.beta = _array(folder, f"{name}.weight"), _array(folder, f"{name}.bias")


def _compare_scores(folder: ModelFolder, theirs: Any) -> float:
    """The largest difference of a token's log-probability. HeedError if it is more than a rounding error."""
    src_names, tgt_names = _names(folder)
    special, worst = folder.tokenizer.special, 0.0
    adds_eos = isinstance(folder.tokenizer, SentencePieceTokenizer)
    models, _ = ready_models([folder], "fp32", device="cpu", report=no_report)
    for src, tgt in zip(*sample_ids(folder), strict=True):
        (ours,) = pair_log_probs(models, [(src, tgt)], special)
        source = [src_names[i] for i in (src if adds_eos else [*src, special.eos])]
        scores = theirs.score_batch([source], [[tgt_names[i] for i in tgt]])[0].log_probs
        worst = max(worst, float(np.abs(np.array(ours) - scores).max()))
    if not worst <= TOLERANCE:
        raise HeedError(
            f"CTranslate2's log-probabilities differ by {worst:.1e}; nothing was written. Please report this."
        )
    return worst


def _write_tokenizer(folder: ModelFolder, out: Path) -> str:
    """Writes the tokenizer; returns the lines of Python that use it."""
    tokenizer = folder.tokenizer
    if isinstance(tokenizer, Tokenizer):
        content = tokenizer_json(tokenizer, with_eos=True)
        (out / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        return USE_TOKENIZERS
    for name, vocabulary in (("source", tokenizer.src), ("target", tokenizer.tgt)):
        if vocabulary.model is None:
            return USE_WORDS
        (out / f"{name}.spm").write_bytes(vocabulary.model.protobuf())
    return USE_SENTENCEPIECE


def _readme(folder: ModelFolder, usage: str, name: str, search: DecodingSettings) -> str:
    n_src = longest_source(folder.config.arch, search)
    options: dict[str, Any] = {
        "beam_size": search.beam_size,
        "length_penalty": 0 if search.length_penalty_form == "none" else search.length_penalty,
        "max_input_length": n_src + 1,
        "max_decoding_length": min(maximum_length(Source(0, (), length=n_src), search), N_POSITIONS),
        "min_decoding_length": search.min_tokens,
        "disable_unk": True,
    }
    code = _language_code(folder)
    if folder.card.languages and folder.card.languages["is_forced"]:
        options["target_prefix"] = [[code]]  # of each hypothesis the first token
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    lines = usage.format(
        out=json.dumps(name), text="A sentence.", search=arguments, code=f'["{code}"] + ' if code else ""
    )
    note = f"\n`{code}` is one of the languages that the model knows; put another in its place.\n"
    return f"# A model of Heed's for CTranslate2\n\n```python\n{lines}```\n{note if code else ''}"


def _language_code(folder: ModelFolder) -> str:
    """One of the tokens before a source that name a language, such as >>fra<<; empty if there is none."""
    if folder.card.languages and isinstance(folder.tokenizer, SentencePieceTokenizer):
        return next(iter(tokens_of(Languages.model_validate(folder.card.languages))[1]))
    pieces = folder.tokenizer.src.pieces if isinstance(folder.tokenizer, SentencePieceTokenizer) else None
    return next((p for p in pieces or () if p and re.fullmatch(r">>[\w.@-]+<<", p)), "")
