"""The plain network, on any device: what every other backend must agree with."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import BeamAccount, ContinuationRules, Continuations, EndingRules, StepLimits, extend
from heed.backends.forbidden import mask_forbidden
from heed.backends.live_prefixes import AllowedIds, LivePrefixes
from heed.backends.protocol import NO_BF16, NO_INT8, PassSettings
from heed.data.batches.batch import Batch
from heed.errors import HeedError
from heed.model.transformer import DecoderState, Transformer
from heed.runtime.device import DecodingPrecision, choose_machine


class ReferenceBackend:
    """Runs the model's own `forward`, padding included.

    without_kernels: on a CPU, why, for the user to read.
    """

    computes_padding = True

    def __init__(self, without_kernels: str = "without Heed's kernels"):
        self._without_kernels = without_kernels

    def covers(self, model: Transformer) -> None:
        return None

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        state = model.start(model.encode(batch.src, batch.src_mask, keep_mask=batch.src_keep_mask), batch.src_mask)
        features = model.decode_features(batch.tgt_in, state, keep_mask=batch.tgt_keep_mask)
        return features.flatten(0, 1).index_select(0, batch.tgt_places)

    def product(self, a: Tensor, b: Tensor, *, out: Tensor, add: bool = False, bias: Tensor | None = None) -> Tensor:
        if add:
            return out.add_(torch.mm(a, b))
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)

    def smoothed_loss_(self, logits: Tensor, targets: Tensor, *, label_smoothing: float) -> None:
        return None

    def consistent_loss_(self, logits: Tensor, targets: Tensor, *, label_smoothing: float, consistency: float) -> None:
        return None

    def add_gradient(self, gradient: Tensor, total: Tensor) -> None:
        total.add_(gradient)

    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Tensor,
        finite: Tensor,
    ) -> bool:
        return False

    def training_passes(self, model: Transformer, totals: Tensor, settings: PassSettings) -> None:
        return None

    def fastest_precision(self, device: torch.device) -> tuple[DecodingPrecision, str]:
        if device.type == "cpu":
            return "fp32", self._without_kernels
        machine = choose_machine("auto", device=str(device))
        return machine.precision, machine.why

    def prepack(self, model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
        if precision == "int8":
            raise HeedError(f"{NO_INT8.removesuffix('.')} ({self._without_kernels}).")
        if precision == "bf16" and model.src_embedding.weight.device.type == "cpu":
            raise HeedError(f"{NO_BF16.removesuffix('.')} ({self._without_kernels}).")
        model = (deepcopy(model) if copy else model).eval().requires_grad_(False)
        return model.to(torch.float32 if precision == "fp32" else torch.bfloat16)

    def search_state(self, model: Transformer, *, n_sentences: int, beam_size: int) -> "ReferenceSearchState":
        return ReferenceSearchState(model, n_sentences=n_sentences)

    def best_continuations(
        self,
        logits: Tensor,
        active: Tensor | None,
        log_probs: Tensor,
        allowed: AllowedIds | None,
        never: Tensor,
        may_end: Tensor,
        *,
        eos: int,
        k: int,
    ) -> tuple[Tensor, Tensor]:
        n_sentences, beam_size = log_probs.shape
        device, vocab_size = logits.device, logits.shape[1]
        next_log_probs = torch.log_softmax(logits.float(), dim=-1)
        if active is not None:
            of_all = next_log_probs.new_full((n_sentences * beam_size, vocab_size), -torch.inf)
            next_log_probs = of_all.index_copy_(0, active.to(device), next_log_probs)
        next_log_probs = mask_forbidden(next_log_probs, allowed, never, may_end, eos=eos)
        totals = log_probs.to(device).view(-1, 1) + next_log_probs
        values, indices = totals.view(n_sentences, -1).topk(k, dim=1)
        return values.cpu(), indices.cpu()

    def search_threads(self, model: Transformer) -> int:
        return 1

    def use_threads(self, n: int) -> None:
        pass

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return extend(account, continuations, rules)


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
    def admit(self, src: Tensor, src_mask: Tensor) -> None:
        src, src_mask = src.to(self._device), src_mask.to(self._device)
        self._state = self._model.start(self._model.encode(src, src_mask), src_mask)

    @torch.no_grad()
    def logits(self, tokens: Int[Tensor, " row"], active: Tensor | None = None) -> Float[Tensor, "row vocab"]:
        assert self._state is not None
        return self._model.decode(tokens.to(self._device)[:, None], self._state)[:, 0]

    def take_steps(
        self,
        account: BeamAccount,
        rules: EndingRules,
        fused_rules: ContinuationRules,
        prefixes: LivePrefixes,
        step_limits: StepLimits,
    ) -> None:
        return None

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        assert self._state is not None
        if len(sentences) == 0:
            self._state = None
            return
        all_stay = len(sentences) == len(self._state.src_mask)
        self._state.select(rows.to(self._device), None if all_stay else sentences.to(self._device))
