"""CTranslate2's folders: model.bin, its vocabularies, and the tokenizer that a program needs beside them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from heed.apps.exchange.many_languages import tokens_of
from heed.apps.exchange.tokenizers import piece_names, tokenizer_json
from heed.apps.exchange.unmerged_weights import IN_ALL_FORMATS, check_covered, missing_part, with_symbols_barred
from heed.apps.exchange.verify import ranking_note, sample_ids
from heed.config import validated
from heed.decoding.pairs import pair_log_probs
from heed.decoding.settings import DecodingSettings
from heed.decoding.stream import Source, longest_source, maximum_length
from heed.errors import HeedError
from heed.model.coverage import Coverage
from heed.model.transformer import DecoderLayer, Transformer
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


def covers(model: Transformer) -> str | None:
    """The part of this network that CTranslate2 lacks; None if it has all."""
    return missing_part(model, COVERAGE)


def write_model(folder: ModelFolder, out: Path, *, int8: bool) -> None:
    """Writes what `ctranslate2.Translator` loads; errors as for `export`."""
    check_covered(covers(folder.model), program="CTranslate2")
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
    model, arch = folder.model, folder.model.arch
    activations = {"relu": Activation.RELU, "gelu": Activation.GELU, "swish": Activation.SWISH}
    specification = transformer_spec.TransformerSpec.from_config(
        (arch.encoder_layers, arch.decoder_layers),
        arch.n_heads,
        pre_norm=arch.norm == "pre",
        activation=activations[arch.activation],
        layernorm_embedding=arch.embedding_norm,
    )

    # Both stacks: tables, layers, and the last norm where norms come first.
    n_positions = arch.max_positions if arch.positions == "learned" else N_POSITIONS
    sides = (
        (specification.encoder, model.encoder, model.src_embedding, "src"),
        (specification.decoder, model.decoder, model.tgt_embedding, "tgt"),
    )
    for stack, layers, embedding, side in sides:
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = _array(embedding.weight)
        stack.scale_embeddings = True
        positions = model.position_table("src" if side == "src" else "tgt", n_positions)[:n_positions]
        stack.position_encodings.encodings = _array(positions)
        if arch.embedding_norm:
            norm = model.src_embedding_norm if side == "src" else model.tgt_embedding_norm
            _fill_norm(stack.layernorm_embedding, norm)
        pairs: list[tuple[Any, Any]] = list(zip(stack.layer, layers, strict=True))
        for target, layer in pairs:
            _fill_layer(target, layer)
        if arch.norm == "pre":
            _fill_norm(stack.layer_norm, model.encoder_norm if side == "src" else model.decoder_norm)

    # The projection to the vocabulary, and the first input of the decoder: zeros, or an embedded token.
    _fill_linear(specification.decoder.projection, model.output)
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


def _array(x: Tensor) -> np.ndarray:
    return x.detach().float().contiguous().numpy()


def _fill_layer(target: Any, layer: Any) -> None:
    own = layer.self_attention
    _fill_attention(target.self_attention, [own.qkv, own.out], layer.self_attention_norm)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        _fill_attention(target.attention, [cross.q, cross.kv, cross.out], layer.cross_attention_norm)
    _fill_linear(target.ffn.linear_0, layer.feed_forward.inner)
    _fill_linear(target.ffn.linear_1, layer.feed_forward.outer)
    _fill_norm(target.ffn.layer_norm, layer.feed_forward_norm)


def _fill_attention(target: Any, linears: list[Any], norm: Any) -> None:
    for linear, ours in zip(target.linear, linears, strict=True):
        _fill_linear(linear, ours)
    _fill_norm(target.layer_norm, norm)


def _fill_linear(target: Any, ours: Any) -> None:
    target.weight = _array(ours.weight)
    if ours.bias is not None:
        target.bias = _array(ours.bias)


def _fill_norm(target: Any, ours: Any) -> None:
    target.gamma, target.beta = _array(ours.weight), _array(ours.bias)


def _compare_scores(folder: ModelFolder, theirs: Any) -> float:
    """The largest difference of a token's log-probability. HeedError if it is more than a rounding error."""
    src_names, tgt_names = _names(folder)
    special, worst = folder.tokenizer.special, 0.0
    adds_eos = isinstance(folder.tokenizer, SentencePieceTokenizer)
    for src, tgt in zip(*sample_ids(folder), strict=True):
        (ours,) = pair_log_probs([folder.model], [(src, tgt)], special)
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
    n_src = longest_source(folder.model.arch, search)
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
