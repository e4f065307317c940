"""Parameters and floating-point operations by formula: the last column of Table 3, the FLOPs of Table 2."""

from collections.abc import Iterator

from heed.model.transformer import Architecture


def parameters_by_part(arch: Architecture, vocab_size: int) -> dict[str, int]:
    """Trained numbers, by part of the network; shared matrices are counted once, in the embeddings."""
    d, h = arch.d_model, arch.n_heads
    attention = h * (2 * d * arch.key_width + 2 * d * arch.value_width)  # W_Q, W_K; W_V, W_O
    feed_forward = 2 * d * arch.d_ff + arch.d_ff + d
    norm = 2 * d
    n_matrices = {"all": 1, "tgt": 2, "none": 3}[arch.share]
    return {
        "embeddings and softmax": n_matrices * vocab_size * d,
        "positions": 2 * arch.max_positions * d if arch.positions == "learned" else 0,
        "encoder": arch.n_layers * (attention + feed_forward + 2 * norm),
        "decoder": arch.n_layers * (2 * attention + feed_forward + 3 * norm),
    }


def n_parameters(arch: Architecture, vocab_size: int) -> int:
    """All trained numbers."""
    return sum(parameters_by_part(arch, vocab_size).values())


def training_flops(arch: Architecture, vocab_size: int, *, n_src_tokens: int, n_tgt_tokens: int) -> float:
    """Operations of training on so many tokens: 6 a weight and token that it meets (2 forward, 4 backward).

    Counts the matrix products with weights; the products of queries with keys and of weights with values, which grow
    with the length, are left out: below 3 % of base at 25 tokens. The decoder's keys and values of the
    memory are counted at the source's tokens.
    """
    d, h = arch.d_model, arch.n_heads
    key_value = h * d * (arch.key_width + arch.value_width)
    feed_forward = 2 * d * arch.d_ff
    per_src = arch.n_layers * (2 * key_value + feed_forward + key_value)
    per_tgt = arch.n_layers * (3 * key_value + feed_forward) + vocab_size * d
    return 6.0 * (per_src * n_src_tokens + per_tgt * n_tgt_tokens)


def matrix_products(
    arch: Architecture, vocab_size: int, *, n_src: int, n_tgt: int, chunk: int
) -> Iterator[tuple[int, int, int, float]]:
    """(rows, width in, width out, how many) of the forward products of weights in one pass, as the model runs them.

    The map to logits comes `chunk` rows at a time. All together are `training_flops` of the same tokens, over 3.
    """
    d, h, layers = arch.d_model, arch.n_heads, arch.n_layers
    keys, values = h * arch.key_width, h * arch.value_width
    for n_rows in (n_src, n_tgt):
        yield n_rows, d, 2 * keys + values, layers
        yield n_rows, values, d, layers
        yield n_rows, d, arch.d_ff, layers
        yield n_rows, arch.d_ff, d, layers
    yield n_tgt, d, keys, layers
    yield n_src, d, keys + values, layers
    yield n_tgt, values, d, layers
    yield chunk, d, vocab_size, n_tgt / chunk
