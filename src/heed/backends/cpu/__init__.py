"""The network on a CPU by fused C++ kernels: packed sequences in training, one call per step in a search.

With AMX the large matrix products of training are the kernels' as well.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import BeamAccount, Continuations, EndingRules, extend
from heed.backends.cpu import decoding_ops, forward, training_ops, weights
from heed.backends.cpu.build import has_int8, kernel, library
from heed.backends.cpu.search_state import CpuSearchState
from heed.backends.live_prefixes import AllowedIds
from heed.backends.protocol import PassSettings, SearchState
from heed.backends.reference import ReferenceSearchState
from heed.data.batches.batch import Batch
from heed.model.coverage import Coverage
from heed.model.transformer import Transformer
from heed.runtime.device import DecodingPrecision, n_threads
from heed.runtime.instruction_sets import chosen_set

COVERAGE = Coverage(
    {
        **dict.fromkeys(("n_layers", "n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "n_heads"), True),
        **dict.fromkeys(("d_k", "d_v", "dropout", "attention_dropout", "word_dropout", "max_positions"), True),
        "activation": dict.fromkeys(decoding_ops.ACTIVATIONS, True),
        "norm": {"post": True, "pre": True},
        "attention_bias": {False: True, True: True},
        "output_bias": {False: True, True: True},
        "network": {None: True, ...: False},
        "radius": True,  # by the plain network's attention
        "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": True, "learned": True},
        "decoder_start": {"bos": True, "zero": True},
        "share": {"all": True, "tgt": True, "none": True},
    },
    frozenset(weights.PACKED),
)


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels take tensors of this device and type, and can be used on this machine."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16) and library() is not None


class CpuBackend:
    """Runs the network by the kernels. A search with a radius takes the plain network, with prepacked weights."""

    computes_padding = False

    def covers(self, model: Transformer) -> str | None:
        return COVERAGE.missing(model)

    def target_features(self, model: Transformer, batch: Batch) -> Tensor:
        return forward.target_features(model, batch)

    def product(self, a: Tensor, b: Tensor, *, out: Tensor, add: bool = False, bias: Tensor | None = None) -> Tensor:
        return training_ops.product(a, b, out=out, add=add, bias=bias)

    def smoothed_loss_(self, logits: Tensor, targets: Tensor, *, label_smoothing: float) -> tuple[Tensor, Tensor]:
        return training_ops.smoothed_loss_(logits, targets, label_smoothing=label_smoothing)

    def consistent_loss_(
        self, logits: Tensor, targets: Tensor, *, label_smoothing: float, consistency: float
    ) -> tuple[Tensor, Tensor]:
        return training_ops.consistent_loss_(logits, targets, label_smoothing=label_smoothing, consistency=consistency)

    def add_gradient(self, gradient: Tensor, total: Tensor) -> None:
        if gradient.dtype == torch.bfloat16:
            training_ops.add_gradient(gradient.contiguous(), total)
        else:
            total.add_(gradient)

    @torch.no_grad()
    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Tensor,
        finite: Tensor,
    ) -> bool:
        if not finite:
            gradients.zero_()
            return True
        (group,) = optimizer.param_groups
        for master, copy in weights:
            state = optimizer.state[master]
            if not state:
                state.update(
                    step=torch.tensor(0.0), exp_avg=torch.zeros_like(master), exp_avg_sq=torch.zeros_like(master)
                )
            state["step"] += 1
            training_ops.adam_step(
                *(master, state["exp_avg"], state["exp_avg_sq"], cast(Tensor, master.grad)),
                None if copy is master else copy,
                step=int(state["step"]),
                rate=group["lr"],
                betas=group["betas"],
                epsilon=group["eps"],
            )
        return True

    def training_passes(self, model: Transformer, totals: Tensor, settings: PassSettings) -> None:
        return None

    def fastest_precision(self, device: torch.device) -> tuple[DecodingPrecision, str]:
        if has_int8():
            return "int8", chosen_set().title
        return "fp32", f"{chosen_set().title} without products of 8-bit integers"

    def prepack(self, model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
        return weights.prepack(model, precision, copy=copy)

    def search_state(self, model: Transformer, *, n_sentences: int, beam_size: int) -> SearchState:
        if model.arch.radius is not None:
            return ReferenceSearchState(model, n_sentences=n_sentences)
        return CpuSearchState(model, n_sentences=n_sentences, beam_size=beam_size)

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
        if active is None:
            active = torch.arange(log_probs.numel())
        return decoding_ops.best_continuations(logits, active, log_probs, allowed, never, may_end, eos=eos, k=k)

    def search_threads(self, model: Transformer) -> int:
        return n_threads() if model.arch.radius is None else 1

    def use_threads(self, n: int) -> None:
        torch.get_num_threads()  # the first call in a thread sets what the next one changes
        kernel("use_threads")(n=n)

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not rules.rows_compete:
            return extend(account, continuations, rules)
        return decoding_ops.extend_beams(account, continuations, rules)
