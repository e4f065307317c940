"""Operations by formula against those that torch counts."""

import pytest
import torch
from tests.conftest import OTHERS
from torch.utils.flop_counter import FlopCounterMode

from heed.model.architecture import Architecture
from heed.model.cost import ADAM_FLOPS, Workload, forward_flops, matrix_products, n_parameters, training_flops
from heed.model.transformer import Transformer

VOCAB = 300


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"d_k": 8},
        {"d_k": 32, "d_v": 8},
        {"n_layers": 1, "n_heads": 2},
        {"share": "none"},
        {"radius": 5},
        {"n_encoder_layers": 4, "n_decoder_layers": 1},
        OTHERS,
    ],
)
def test_forward_and_backward_are_what_torch_counts(changes):
    arch = Architecture(**({"n_layers": 2, "d_model": 64, "d_ff": 128, "n_heads": 4, "dropout": 0.0} | changes))
    model = Transformer(arch, VOCAB).double()  # in fp64 no kernel of Heed's takes part
    n, src_length, tgt_length = 3, 40, 30
    src, tgt = torch.randint(VOCAB, (n, src_length)), torch.randint(VOCAB, (n, tgt_length))
    counter = FlopCounterMode(display=False)
    with counter:
        logits = model(src, torch.ones_like(src, dtype=torch.bool), tgt)
    forward = counter.get_total_flops()
    work = Workload(n * src_length, n * tgt_length, n * src_length**2, n * tgt_length**2, n * src_length * tgt_length)
    assert forward_flops(arch, VOCAB, work) == pytest.approx(forward, rel=0.01)
    with counter:
        logits.sum().backward()
    adam = ADAM_FLOPS * n_parameters(arch, VOCAB) * 7
    assert training_flops(arch, VOCAB, work, n_steps=7) - adam == pytest.approx(
        forward + counter.get_total_flops(), rel=0.01
    )


@pytest.mark.parametrize("changes", [{"d_k": 16}, {"n_encoder_layers": 12, "n_decoder_layers": 1}])
def test_the_products_of_a_pass_are_the_weights_part_of_its_operations(changes):
    arch = Architecture(**changes)
    products = matrix_products(arch, VOCAB, n_src=700, n_tgt=500, chunk=100)
    total = sum(2 * rows * inner * outer * times for rows, inner, outer, times in products)
    assert total == pytest.approx(forward_flops(arch, VOCAB, Workload(700, 500)))
