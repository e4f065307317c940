"""The protocol of backends in a search: states, and what chooses continuations. Arrays are numpy's; no PyTorch.

Logits never leave the backend that made them: what is chosen by them comes back. tests/backends/test_equivalence.py
holds every backend to the plain network.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import (
    BeamAccount,
    Bools,
    Continuations,
    EndingRules,
    Floats,
    Ints,
    StepLimits,
)
from heed.backends.live_prefixes import LivePrefixes, NextIds
from heed.data.batches.batch import Batch
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.runtime.device import DecodingPrecision

log = logging.getLogger(__name__)
# Positions for which a search has room at first.
FIRST_CAPACITY = 64


NO_INT8 = "int8 needs Heed's kernels: a C++ compiler, and a CPU with AVX2, AVX-512 or NEON; take fp32."
NO_BF16 = "a search in bf16 needs a GPU, or AMX and Heed's kernels; take int8 or fp32, which are faster here."
# (row, vocab), as the backend holds them: an array of numpy's or a tensor on any device.
Logits: TypeAlias = Any


@runtime_checkable
class SearchModel(Protocol):
    """What a search asks of a model, a PackedModel or a Transformer; the rest is its backend's."""

    @property
    def arch(self) -> Architecture: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def src_vocab_size(self) -> int: ...
    @property
    def training(self) -> bool: ...
    @property
    def device_name(self) -> str:
        """Where it computes: cpu, cuda:0 …"""


@runtime_checkable
class SearchState(Protocol):
    """A model's state between the steps of a search. Sentences are in the order of their admission, `beam_size` rows
    each."""

    # Whether `logits` can leave out rows.
    takes_active_rows: bool

    @property
    def n_free(self) -> int:
        """Sentences that can be admitted now."""

    def admit(self, src: Ints, lengths: Ints) -> None:
        """Adds sources after those that are being searched: their ids (token), eos included, end to end; and how many
        each has (sentence)."""

    def logits(self, tokens: Ints, active: Ints | None = None) -> Logits:
        """Logits (active, vocab) after `tokens` (row), which become part of every row.

        active: the rows that matter; None: all of them.
        """

    def take_steps(
        self, account: BeamAccount, rules: EndingRules, prefixes: LivePrefixes, step_limits: StepLimits
    ) -> Bools | None:
        """Extends all hypotheses by the continuations of `rules.fused`, within these limits, without `logits` and
        `select`.

        Returns which searches are over, or None, without having done anything, if this state only takes single steps.
        HeedError if the logits are not finite.
        """

    def select(self, rows: Ints, sentences: Ints) -> None:
        """Keeps `sentences` (kept), in order, and reorders their rows to `rows` (new row), of the same sentences."""


@runtime_checkable
class SearchOps(Protocol):
    """The operations of a search's step besides the network. Axes: active, row, sentence, beam, vocab."""

    def mean_logits(self, logits: Sequence[Logits]) -> Logits:
        """What is equal to logits of the mean of several models' probabilities."""

    def best_continuations(
        self, logits: Logits, active: Ints | None, log_probs: Floats, next_ids: NextIds, *, k: int
    ) -> tuple[Floats, Ints]:
        """The k largest sums of a row's log-probability and its next id's: values and row in the beam · vocab + id,
        both (sentence, k).

        active: the rows that have logits, None for all; other rows have no continuation. log_probs (sentence, beam). Of
        equals the first is taken; where fewer than k exist, the values are -∞.
        """

    def punish(
        self,
        logits: Logits,
        repeated: Sequence[Ints] | None,
        barred: Sequence[Ints] | None,
        *,
        penalty: float,
        of_logits: bool,
    ) -> tuple[Logits, Floats]:
        """The logits, which may be the same object, with some ids of each row punished; and by how much the logarithm
        of the sum of a row's probabilities has changed by that.

        repeated: ids whose log-probability is multiplied by `penalty`; with of_logits the logit, divided if it is above
        0. barred: ids that may not follow.
        """

    def log_probs_of(self, logits: Logits, ids: Ints) -> Floats:
        """(row, id): the log-probabilities of these ids (row, id); -∞ for an id below 0."""

    def draw(
        self, logits: Logits, numbers: Floats, next_ids: NextIds, *, temperature: float, top_k: int | None, top_p: float
    ) -> tuple[Ints, Floats]:
        """An id for each row, and its log-probability: the distribution of the ids that it may take, most probable
        first, is inverted at the row's number in [0, 1). temperature, top_k, top_p: as in `SamplingSettings`."""

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[Ints, Bools]:
        """Does what `beam_account.extend` does, with the same results bit for bit."""


@runtime_checkable
class SearchBackend(SearchOps, Protocol):
    """How the network is run in a search. `choice.search_backend` chooses one."""

    def fastest_precision(self, device: str) -> tuple[DecodingPrecision, str]:
        """The precision in which a search is fastest on this device, and why; it costs no BLEU (docs/results.md)."""

    def search_state(self, model: Any, *, n_sentences: int, beam_size: int) -> SearchState:
        """The state of a search over at most `n_sentences` sentences at a time."""

    def target_log_probs(self, model: Any, pairs: Batch) -> Floats:
        """(tgt_token): the log-probability of every id that the decoder is to write."""

    def cross_attention(self, model: Any, pairs: Batch) -> NDArray[np.float32]:
        """(decoder layer, tgt_token, longest source): the mean of the heads' weights over the source."""

    def bytes_per_position(self, model: Any) -> int:
        """The memory that a row of a search takes for each of its positions, at most."""

    def search_threads(self, model: Any) -> int:
        """The number of threads that searches on a thread each may use at a time; 1 where one search is as fast."""

    def use_threads(self, n: int) -> None:
        """Lets the calling thread compute by n threads from now on."""


@functools.cache
def say_once(line: str) -> None:
    """Warns of what a backend does not cover, in each process once."""
    log.warning("%s", line)


def position_bytes(arch: Architecture, number_bytes: int) -> int:
    """`SearchBackend.bytes_per_position` of a network whose keys and values take `number_bytes` bytes a number."""
    # Keys and values of all layers, those of one layer twice while its cache grows; ids and ancestors.
    width = arch.n_heads * (arch.key_width + arch.value_width)
    return (arch.decoder_layers + 1) * width * number_bytes + 32


class NotFiniteError(HeedError):
    """A search or a score met NaN or ∞."""

    def __init__(self) -> None:
        super().__init__(
            "the model's numbers are not finite: its weights are damaged, or too large for the precision; take an "
            "earlier checkpoint, or --precision fp32 instead of bf16 or int8."
        )
