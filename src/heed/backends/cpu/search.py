"""Search on a CPU by the kernels, with packed weights and numpy's arrays."""

import sys

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import BeamAccount, Bools, Continuations, EndingRules, Floats, Ints, extend
from heed.backends.cpu import account_ops
from heed.backends.cpu.build import has_int8, kernel, library, state
from heed.backends.cpu.decoding_ops import ACTIVATIONS, DecoderLayers, EncoderLayers, PackedSentences
from heed.backends.cpu.packed_model import PackedModel
from heed.backends.cpu.packed_weights import Floats32, product
from heed.backends.cpu.preference import wins
from heed.backends.cpu.search_state import CpuSearchState
from heed.backends.protocol import NotFiniteError, position_bytes
from heed.data.batches.batch import Batch
from heed.model.architecture import Architecture
from heed.model.coverage import Answer, Coverage
from heed.runtime.device import DecodingPrecision, n_threads
from heed.runtime.instruction_sets import chosen_set

SETTINGS: dict[str, dict[object, Answer] | bool] = {
    **dict.fromkeys(("n_layers", "n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "n_heads"), True),
    **dict.fromkeys(("d_k", "d_v", "dropout", "attention_dropout", "word_dropout", "max_positions"), True),
    "activation": dict.fromkeys(ACTIVATIONS, True),
    "norm": {"post": True, "pre": True},
    "attention_bias": {False: True, True: True},
    "output_bias": {False: True, True: True},
    "network": {None: True},
    "radius": {None: True},
    "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": True, "learned": True},
    "first_position": True,
    "embedding_norm": {False: True, True: True},
    "decoder_start": {"bos": True, "zero": True},
    "share": {"all": True, "tgt": True, "none": True},
}
COVERAGE = Coverage(SETTINGS)
UNCOVERED = "which Heed's kernels do not cover"
TOKENS_AT_A_TIME = 512  # whose logits exist together: those of a whole batch over a large vocabulary are gigabytes


def usable() -> bool:
    """Whether the kernels can be used on this machine."""
    return library() is not None


def why_not(arch: Architecture) -> str | None:
    """None if searches for a network with these settings run by the kernels; else why not, for the user to read."""
    if not usable():
        return state()
    if not wins(arch, training=False):
        return f"PyTorch's operations are faster with {chosen_set().title}"
    if (missing := COVERAGE.missing_setting(arch)) is not None:
        return f"the network has {missing}, {UNCOVERED}"
    return None


class CpuSearchBackend:
    """Searches by the kernels."""

    def fastest_precision(self, device: str) -> tuple[DecodingPrecision, str]:
        if has_int8():
            return "int8", chosen_set().title
        return "fp32", f"{chosen_set().title} without products of 8-bit integers"

    def search_state(self, model: PackedModel, *, n_sentences: int, beam_size: int) -> CpuSearchState:
        return CpuSearchState(model, n_sentences=n_sentences, beam_size=beam_size)

    mean_logits = staticmethod(account_ops.mean_logits)
    best_continuations = staticmethod(account_ops.best_continuations)
    punish = staticmethod(account_ops.punish)
    log_probs_of = staticmethod(account_ops.log_probs_of)
    draw = staticmethod(account_ops.draw)

    def target_log_probs(self, model: PackedModel, pairs: Batch) -> Floats:
        x, _ = _features(model, pairs)
        log_probs = np.empty(len(pairs.tgt_out))
        for first in range(0, len(x), TOKENS_AT_A_TIME):
            some = slice(first, first + TOKENS_AT_A_TIME)
            ids = np.ascontiguousarray(pairs.tgt_out[some, None])
            log_probs[some] = account_ops.log_probs_of(product(x[some], model.output), ids)[:, 0]
        if np.isnan(log_probs).any():
            raise NotFiniteError
        return log_probs

    def cross_attention(self, model: PackedModel, pairs: Batch) -> NDArray[np.float32]:
        _, weights = _features(model, pairs, weights=True)
        assert weights is not None
        return weights

    def bytes_per_position(self, model: PackedModel) -> int:
        return position_bytes(model.arch, model.dtype.itemsize)

    def search_threads(self, model: PackedModel) -> int:
        return n_threads()

    def use_threads(self, n: int) -> None:
        if (torch := sys.modules.get("torch")) is not None:
            torch.get_num_threads()  # the first call in a thread sets what the next one changes
        kernel("use_threads")(n=n)

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[Ints, Bools]:
        if not rules.rows_compete:
            return extend(account, continuations, rules)
        return account_ops.extend_beams(account, continuations, rules)


def _features(
    model: PackedModel, pairs: Batch, *, weights: bool = False
) -> tuple[Floats32, NDArray[np.float32] | None]:
    """Runs `DecoderLayers.targets` on pairs."""
    sources, targets = PackedSentences(pairs.src, pairs.src_lengths), PackedSentences(pairs.tgt_in, pairs.tgt_lengths)
    memories = EncoderLayers(model).encode(sources)
    return DecoderLayers(model).targets(targets, memories, sources, weights=weights)
