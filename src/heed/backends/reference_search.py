"""Searches by the plain network, on any device: what every other backend must agree with."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import (
    BeamAccount,
    Bools,
    Continuations,
    EndingRules,
    Floats,
    Ints,
    StepLimits,
    extend,
)
from heed.backends.forbidden import mask_forbidden
from heed.backends.live_prefixes import LivePrefixes, NextIds
from heed.backends.protocol import NO_BF16, NO_INT8, NotFiniteError, SearchState, position_bytes
from heed.data.batches.batch import Batch
from heed.data.batches.padded import PaddedBatch, padded, sent
from heed.errors import HeedError
from heed.model.attention_weights import mean_cross_attention
from heed.model.transformer import DecoderState, Transformer
from heed.runtime.device import DecodingPrecision, choose_machine

TOKENS_AT_A_TIME = 512  # whose logits exist together: those of a whole batch over a large vocabulary are gigabytes


class ReferenceSearchBackend:
    """Runs the model's own `forward`, padding included.

    without_kernels: on a CPU, why, for the user to read.
    """

    def __init__(self, without_kernels: str = "without Heed's kernels"):
        self._without_kernels = without_kernels

    def fastest_precision(self, device: str) -> tuple[DecodingPrecision, str]:
        if device == "cpu":
            return "fp32", self._without_kernels
        machine = choose_machine("auto", device=device)
        return machine.precision, machine.why

    def prepack(self, model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
        """The model ready to translate in this precision, without gradients; HeedError if that is impossible here.

        Without `copy` the model itself is changed, and memory never holds all weights twice.
        """
        if precision == "int8":
            raise HeedError(f"{NO_INT8.removesuffix('.')} ({self._without_kernels}).")
        if precision == "bf16" and model.device_name == "cpu":
            raise HeedError(f"{NO_BF16.removesuffix('.')} ({self._without_kernels}).")
        model = (deepcopy(model) if copy else model).eval().requires_grad_(False)
        return model.to(torch.float32 if precision == "fp32" else torch.bfloat16)

    def search_state(self, model: Transformer, *, n_sentences: int, beam_size: int) -> SearchState:
        return ReferenceSearchState(model, n_sentences=n_sentences)

    @torch.no_grad()
    def mean_logits(self, logits: Sequence[Tensor]) -> Tensor:
        parts = [torch.log_softmax(of_model.float(), dim=-1) for of_model in logits]
        return torch.logsumexp(torch.stack(parts), dim=0)  # the mean but for a constant

    @torch.no_grad()
    def best_continuations(
        self,
        logits: Float[Tensor, "row vocab"],
        active: Ints | None,
        log_probs: Floats,
        next_ids: NextIds,
        *,
        k: int,
    ) -> tuple[Floats, Ints]:
        n_sentences, beam_size = log_probs.shape
        device, vocab_size = logits.device, logits.shape[1]
        next_log_probs = torch.log_softmax(logits.float(), dim=-1)
        if active is not None:
            of_all = next_log_probs.new_full((n_sentences * beam_size, vocab_size), -torch.inf)
            next_log_probs = of_all.index_copy_(0, torch.from_numpy(active).to(device), next_log_probs)
        next_log_probs = mask_forbidden(next_log_probs, next_ids)
        totals = torch.from_numpy(log_probs).to(device).view(-1, 1) + next_log_probs
        values, indices = totals.view(n_sentences, -1).topk(k, dim=1)
        return values.cpu().numpy(), indices.cpu().numpy()

    @torch.no_grad()
    def punish(
        self,
        logits: Float[Tensor, "row vocab"],
        repeated: Sequence[Ints] | None,
        barred: Sequence[Ints] | None,
        *,
        penalty: float,
        of_logits: bool,
    ) -> tuple[Tensor, Floats]:
        logits = logits.float().clone()
        before = torch.logsumexp(logits, dim=1)
        for row, total in enumerate(before):
            if repeated is not None:
                ids = torch.from_numpy(repeated[row]).to(logits.device)
                own = logits[row, ids]
                punished = torch.where(own < 0, own * penalty, own / penalty)
                logits[row, ids] = punished if of_logits else total + penalty * (own - total)
            if barred is not None:
                logits[row, torch.from_numpy(barred[row]).to(logits.device)] = -torch.inf
        return logits, (torch.logsumexp(logits, dim=1) - before).double().cpu().numpy()

    @torch.no_grad()
    def log_probs_of(self, logits: Float[Tensor, "row vocab"], ids: Ints) -> Floats:
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        values = log_probs.gather(1, torch.from_numpy(ids.clip(0)).to(logits.device)).double().cpu().numpy()
        return np.where(ids < 0, -np.inf, values)

    @torch.no_grad()
    def draw(
        self,
        logits: Float[Tensor, "row vocab"],
        numbers: Floats,
        next_ids: NextIds,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float,
    ) -> tuple[Ints, Floats]:
        log_probs = mask_forbidden(torch.log_softmax(logits.detach().float(), dim=-1), next_ids)
        sharpened = torch.log_softmax(log_probs / temperature, dim=-1)
        probs, ids = sharpened.double().exp().sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(dim=-1) - probs
        left_out = before >= top_p
        if top_k is not None:
            left_out[:, top_k:] = True
        cumulated = probs.masked_fill(left_out, 0).cumsum(dim=-1)
        places = torch.from_numpy(numbers).to(logits.device)[:, None] * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, places, right=True)
        chosen = ids.gather(1, drawn.clamp(max=ids.shape[1] - 1))
        return chosen[:, 0].cpu().numpy(), log_probs.gather(1, chosen)[:, 0].double().cpu().numpy()

    @torch.inference_mode()
    def target_log_probs(self, model: Transformer, pairs: Batch) -> Floats:
        device = model.src_embedding.weight.device
        rows, targets = PaddedBatch.of(pairs, device), sent(pairs.tgt_out, device)
        state = model.start(model.encode(rows.src, rows.src_mask), rows.src_mask)
        features = model.decode_features(rows.tgt_in, state).flatten(0, 1).index_select(0, rows.tgt_places)
        some = zip(features.split(TOKENS_AT_A_TIME), targets.split(TOKENS_AT_A_TIME), strict=True)
        log_probs = np.concatenate([_log_probs(model.output(x), y) for x, y in some])
        if np.isnan(log_probs).any():
            raise NotFiniteError
        return log_probs

    @torch.inference_mode()
    def cross_attention(self, model: Transformer, pairs: Batch) -> NDArray[np.float32]:
        rows = PaddedBatch.of(pairs, model.src_embedding.weight.device)
        weights = mean_cross_attention(model, rows.src, rows.src_mask, rows.tgt_in)  # (batch, layer, tgt, src)
        of_tokens = weights.transpose(1, 2).flatten(0, 1).index_select(0, rows.tgt_places)
        return of_tokens.transpose(0, 1).float().cpu().numpy()

    def bytes_per_position(self, model: Transformer) -> int:
        return position_bytes(model.arch, model.src_embedding.weight.element_size())

    def search_threads(self, model: Transformer) -> int:
        return 1

    def use_threads(self, n: int) -> None:
        pass

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[Ints, Bools]:
        return extend(account, continuations, rules)


def _log_probs(logits: Float[Tensor, "token vocab"], ids: Int[Tensor, " token"]) -> Floats:
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0].double().cpu().numpy()


class ReferenceSearchState:
    """A search's state on `Transformer.decode`: a group of sentences is searched to its end before the next."""

    takes_active_rows = False

    def __init__(self, model: Transformer, *, n_sentences: int):
        self._model, self._n_sentences = model, n_sentences
        self._device = model.src_embedding.weight.device
        self._state: DecoderState | None = None

    @property
    def n_free(self) -> int:
        return self._n_sentences if self._state is None else 0

    @torch.no_grad()
    def admit(self, src: Ints, lengths: Ints) -> None:
        ids, src_mask = (sent(array, self._device) for array in padded(src, lengths))
        self._state = self._model.start(self._model.encode(ids, src_mask), src_mask)

    @torch.no_grad()
    def logits(self, tokens: Ints, active: Ints | None = None) -> Tensor:
        assert self._state is not None
        return self._model.decode(torch.from_numpy(tokens).to(self._device)[:, None], self._state)[:, 0]

    def take_steps(
        self, account: BeamAccount, rules: EndingRules, prefixes: LivePrefixes, step_limits: StepLimits
    ) -> None:
        return None

    def select(self, rows: Ints, sentences: Ints) -> None:
        assert self._state is not None
        if len(sentences) == 0:
            self._state = None
            return
        all_stay = len(sentences) == len(self._state.src_mask)
        kept = None if all_stay else torch.from_numpy(sentences).to(self._device)
        self._state.select(torch.from_numpy(rows).to(self._device), kept)
