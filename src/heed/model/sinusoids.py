"""The encodings of positions as arrays; no PyTorch."""

import numpy as np
from numpy.typing import NDArray

from heed.model.architecture import SinusoidForm


def sinusoid(n_positions: int, d_model: int, form: SinusoidForm = "sinusoid") -> NDArray[np.float32]:
    """(position, d_model): as `model.transformer.sinusoid`, whose numbers they are."""
    pos = np.arange(n_positions, dtype=np.float64)[:, None]
    steps = max(1, d_model - 2) if form == "sinusoid-t2t" else d_model
    rate = 10000.0 ** (-np.arange(0, d_model, 2, dtype=np.float64) / steps)
    table = np.empty((n_positions, d_model))
    in_turn = form == "sinusoid"
    table[:, slice(0, None, 2) if in_turn else slice(0, d_model // 2)] = np.sin(pos * rate)
    table[:, slice(1, None, 2) if in_turn else slice(d_model // 2, None)] = np.cos(pos * rate)
    return table.astype(np.float32)
