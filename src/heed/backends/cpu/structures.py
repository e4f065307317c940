"""The kernels' structures of C++ as Python fills them. `library` compares their sizes when it loads the kernels."""

import ctypes
from collections.abc import Sequence

P, N, F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def _structure(name: str, fields: Sequence[tuple[str, type]]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


Shape = _structure(
    "Shape",
    (
        *((name, P) for name in ("q_offsets", "k_offsets")),
        *((name, N) for name in ("n_sentences", "n_heads", "d_k", "d_v", "q_stride", "k_stride", "v_stride")),
        ("seed", ctypes.c_uint64),
        ("rate", F32),
        ("causal", ctypes.c_int32),
    ),
)
Weight = _structure(
    "Weight",
    (
        *((name, P) for name in ("panels", "offsets", "steps", "bias")),
        *((name, N) for name in ("d_in", "d_out", "number_bytes")),
    ),
)
Beams = _structure(
    "Beams",
    (
        *((name, P) for name in ("ancestors", "rows", "slots", "lengths", "src_lengths")),
        *((name, N) for name in ("n_rows", "beam", "capacity", "n_heads", "d_k", "d_v")),
    ),
)
DecoderLayer = _structure(
    "DecoderLayer",
    (
        *((name, Weight) for name in ("qkv", "self_out", "query", "cross_out", "inner", "outer")),
        *((f"{norm}_{part}", P) for norm in ("self", "cross", "feed_forward") for part in ("gain", "bias")),
        ("cache", P),
        ("memories", P),
    ),
)
Step = _structure(
    "Step",
    (
        ("layers", P),
        *((name, N) for name in ("n_layers", "d_model", "d_ff", "activation", "first_word")),
        *((name, P) for name in ("first_gain", "first_bias")),
        ("beams", Beams),
        *((name, P) for name in ("tokens", "embedding", "positions")),
        *((name, F32) for name in ("scale", "epsilon")),
    ),
)
Sources = _structure(
    "Sources",
    (
        *((name, P) for name in ("offsets", "sentences")),
        *((name, N) for name in ("n_sentences", "n_memories")),
        *((name, P) for name in ("kv", "memories")),
    ),
)
BeamAccount = _structure(
    "BeamAccount",
    (
        *((name, P) for name in ("lengths", "limits", "n_ended", "log_probs", "last", "history")),
        *((f"best_{name}", P) for name in ("scores", "log_probs", "lengths", "ids")),
        *((name, N) for name in ("n_sentences", "beam", "n_best", "width")),
    ),
)
EndingRules = _structure("EndingRules", (("penalties", P), ("eos", N), ("early_stopping", ctypes.c_int32)))
Search = _structure(
    "Search",
    (
        *(("account", BeamAccount), ("rules", EndingRules), ("output", Weight)),
        *((name, P) for name in ("prefixes", "never")),
        *((name, N) for name in ("prefix_width", "min_tokens", "k", "most_steps", "least_steps", "most_done")),
        ("n_waiting", P),
    ),
)
