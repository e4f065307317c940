"""What a step of a search launches and moves on a GPU, counted on the meta device, whose tensors take its branches.

`python -m tests.gpu.test_search_cost base 512 4 48` prints it: a preset, sentences, beam, positions.
"""

import sys
from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heed.backends.beam_account import ContinuationRules, EndingRules
from heed.backends.gpu.beams import DeviceAccount
from heed.backends.gpu.search import GpuSearchState
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runs.recipe import read_preset

VOCAB_SIZE = 37_000
LOOK_UPS = {"gather", "index_select", "index", "embedding"}  # read as much of their first tensor as they write
WRITES = {"index_put_", "scatter_", "index_fill_"}  # write as much into their first tensor as they are given
FREE = {"empty", "new_empty", "detach", "_unsafe_view"}


class StepCost(TorchDispatchMode):
    """Launches by name, and the bytes that they read and write; an axis that is repeated is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        self.launches[name] += 1
        new = [x for x in outputs if all(x is not one for one in inputs)]
        if name in LOOK_UPS:
            self.bytes[name] += 2 * sum(map(_size, new)) + sum(map(_size, inputs[1:]))
        elif name in WRITES:
            self.bytes[name] += 2 * sum(map(_size, inputs[1:]))
        else:  # what is changed in its place is read and written
            self.bytes[name] += sum(map(_size, inputs)) + sum(map(_size, outputs))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        result, name = func(*args, **kwargs), func.overloadpacket.__name__
        if not func.is_view and name not in FREE:
            self.add(name, _tensors([*args, *kwargs.values()]), _tensors(result))
        return result

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: object
    ) -> Tensor:
        out = query.new_empty(*query.shape[:3], value.shape[3])
        self.add("attention", [query, key, value, *([] if attn_mask is None else [attn_mask])], [out])
        return out


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []


def _size(x: Tensor) -> int:
    numbers = 1
    for n, stride in zip(x.shape, x.stride(), strict=True):
        numbers *= n if stride else 1
    return numbers * x.element_size()


def model_of(preset: str) -> Transformer:
    with torch.device("meta"):
        arch = Architecture.model_validate(read_preset(preset, where="test")["model"])
        model = Transformer(arch, VOCAB_SIZE).eval().to(torch.bfloat16)
    model.position_table("tgt", 256)
    return model


def step_cost(preset: str, n_sentences: int, beam: int, n_positions: int) -> StepCost:
    """Of a step that computes so many positions of so many sentences, in bf16."""
    state, device = GpuSearchState(model_of(preset), n_sentences=n_sentences, beam_size=beam), torch.device("meta")
    with torch.inference_mode(), patch.object(F, "scaled_dot_product_attention") as attention, StepCost() as cost:
        attention.side_effect = cost.attention
        state._slots.resize(n_sentences, n_positions)
        state._account = DeviceAccount.empty(n_sentences, n_positions, beam=beam, n_best=1, device=device)
        state._never = torch.zeros(3, dtype=torch.int64, device=device)
        state._penalties = torch.ones(n_positions + 1, dtype=torch.float64, device=device)
        fused = ContinuationRules(torch.zeros(VOCAB_SIZE, dtype=torch.bool), 0, 2 * beam)
        rules = EndingRules(2, early_stopping=False, rows_compete=True, penalties=np.ones(9), fused=fused)
        cost.launches.clear()
        cost.bytes.clear()
        state._step(n_sentences, n_positions, rules)
    return cost


@pytest.mark.parametrize(
    ("preset", "n_launches", "n_bytes"), [("base", 280, 4.2e9), ("big", 280, 6.6e9), ("tiny", 240, 2.2e9)]
)
def test_a_step_of_512_sentences_launches_and_moves_little(preset, n_launches, n_bytes):
    cost = step_cost(preset, 512, 4, 48)
    assert 100 < cost.launches.total() <= n_launches
    assert n_bytes / 2 < sum(cost.bytes.values()) <= n_bytes


if __name__ == "__main__":
    found = step_cost(sys.argv[1], *map(int, sys.argv[2:]))
    lines = [f"{found.launches.total()} launches, {sum(found.bytes.values()) / 1e9:.2f} GB"]
    for operation, moved in found.bytes.most_common():
        lines.append(f"{operation:24}{found.launches[operation]:6}{moved / 1e6:10.1f} MB")
    sys.stdout.write("\n".join([*lines, ""]))
