"""Training on an NVIDIA GPU: packed tokens, compiled layers, and passes recorded as CUDA graphs.

Counted and run on emulated devices, never on a GPU: HEED_KERNELS=0 takes the plain network instead. What passes need of
PyTorch is imported when they are made, so that a machine without a GPU need not load it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heed.backends.reference import ReferenceBackend
from heed.backends.training_protocol import PassSettings, TrainingPasses
from heed.model.coverage import Coverage
from heed.model.transformer import Transformer
from heed.runtime.device import compiles_layers, native_kernels

# Of flash attention on a GPU.
HEAD_MULTIPLE, MAX_HEAD_WIDTH = 8, 256

COVERAGE = Coverage(
    {
        **dict.fromkeys(("n_layers", "n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "n_heads"), True),
        **dict.fromkeys(("d_k", "d_v", "dropout", "word_dropout", "max_positions"), True),
        "attention_dropout": {0.0: True, ...: "attention dropout"},
        "activation": {"relu": True, "gelu": True, "swish": True},
        "norm": {"post": True, "pre": True},
        "attention_bias": {False: True, True: True},
        "output_bias": {False: True, True: True},
        "network": {None: True, ...: False},
        "radius": {None: True, ...: "a window of attention (radius)"},
        "positions": {"sinusoid": True, "sinusoid-halves": True, "sinusoid-t2t": True, "learned": True},
        "first_position": True,
        "embedding_norm": {False: True, True: "a norm of embeddings"},
        "decoder_start": {"bos": True, "zero": True},
        "share": {"all": True, "tgt": True, "none": True},
    }
)


def supports(device: torch.device) -> bool:
    """Whether this backend may train on the device: an NVIDIA GPU, or the meta device, which stands for one."""
    return device.type in ("cuda", "meta") and native_kernels() != "none"


class GpuTrainingBackend(ReferenceBackend):
    """Trains by recorded passes over packed tokens; all else is the plain network's."""

    computes_padding = False

    def covers(self, model: Transformer) -> str | None:  # type: ignore[override]
        weight, arch = model.src_embedding.weight, model.arch
        if weight.dtype != torch.bfloat16:
            return f"weights in {'fp32' if weight.dtype == torch.float32 else weight.dtype}"
        if arch.key_width != arch.value_width or arch.key_width % HEAD_MULTIPLE or arch.key_width > MAX_HEAD_WIDTH:
            return f"heads of widths {arch.key_width} and {arch.value_width}"
        if weight.device.type == "cuda" and torch.cuda.get_device_capability(weight.device)[0] < 8:
            return "a GPU older than compute capability 8"
        return COVERAGE.missing(model)

    def training_passes(  # type: ignore[override]
        self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings
    ) -> TrainingPasses:
        from heed.backends.gpu.network import Regions
        from heed.backends.gpu.passes import GpuPasses

        compiler = "inductor" if compiles_layers() and totals.device.type == "cuda" else None
        return GpuPasses(model, totals, settings, Regions(lambda name: compiler))

    @torch.no_grad()
    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Float[Tensor, " weight"],
        finite: Bool[Tensor, ""],
    ) -> bool:
        from heed.backends.gpu.adam import RecordedAdam

        recorded = getattr(optimizer, "recorded", None)  # an optimizer takes any attribute
        if recorded is None or not recorded.is_of(weights, gradients):
            recorded = RecordedAdam(optimizer, weights, gradients)
            optimizer.recorded = recorded  # type: ignore[attr-defined]
        recorded.step(finite)
        return True
