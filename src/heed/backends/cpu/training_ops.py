"""The kernels of csrc/training.cpp and csrc/tiles.cpp as differentiable functions of tensors.

Axes: token = real positions of packed sequences, d = width. Tensors are fp32 or bf16 on a CPU; sums are fp32.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from heed.backends.cpu.build import has_tiles
from heed.backends.cpu.declarations import structure
from heed.backends.cpu.packed import PackedSequences
from heed.backends.cpu.preference import takes_products
from heed.backends.cpu.tensors import IN_FP32, Wanted, addresses, check_range, kernel, raw_addresses
from heed.runtime.memory import free_memory


def _seed() -> int:
    """A number of the dropout that follows, from torch's generator."""
    return int(torch.randint(2**63 - 1, ()))


LONGEST_SUM = 2048  # longer ones are added up in parts, in fp32, whose operands stay in the cache


def product(
    a: Float[Tensor, "m depth"],
    b: Float[Tensor, "depth n"],
    *,
    out: Float[Tensor, "m n"],
    add: bool = False,
    bias: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "m n"]:
    """out = a · b + bias; or with `add` out += a · b, in fp32. a and b may be transposed views.

    With AMX tiles.cpp multiplies, unless the sums are short: those PyTorch takes as fast. Else PyTorch.
    """
    crosswise = a.stride(1) != 1
    if not (_takes_tiles(a) and (crosswise or takes_products(a.shape[1]))):
        if add:
            return out.add_(torch.mm(a, b))
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
    if not add and bias is None and a.shape[1] > LONGEST_SUM:
        return out.copy_(product(a, b, out=torch.zeros(out.shape, **IN_FP32), add=True))
    (m, depth), n, bf16 = a.shape, b.shape[1], torch.bfloat16
    arguments: dict[str, Wanted] = {
        "a": (a.T if crosswise else a, (depth, m) if crosswise else (m, depth), bf16),
        "b": (b if b.stride(1) == 1 else b.T, (depth, n) if b.stride(1) == 1 else (n, depth), bf16),
        "c": (out, (m, n), torch.float32 if add else bf16),
    }
    if bias is not None:
        arguments["bias"] = (bias, (n,), bf16)
    kernel("tile_product")(
        **{"bias": None} | addresses("tile_product", **arguments),
        **{"a_ld": max(a.stride()), "b_ld": max(b.stride()), "c_ld": out.stride(0)},
        **{"a_transposed": crosswise, "b_transposed": b.stride(1) == 1},
        **{"m": m, "n": n, "depth": depth, "add": add},
    )
    return out


def add_gradient(gradient: Float[Tensor, "*shape"], total: Float[Tensor, "*shape"]) -> None:
    """total += gradient, one in bf16 and the other in fp32: PyTorch takes ten times as long."""
    shape = tuple(total.shape)
    at = addresses("add_gradient", x=(gradient, shape, torch.bfloat16), sum=(total, shape, torch.float32))
    kernel("add_gradient")(**at, n=total.numel())


def adam_step(
    weight: Float[Tensor, "*shape"],
    mean: Float[Tensor, "*shape"],
    square: Float[Tensor, "*shape"],
    gradient: Float[Tensor, "*shape"],
    *,
    copy: Float[Tensor, "*shape"] | None,
    step: int,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Adam's step (Kingma & Ba, algorithm 1) in place, in one pass over memory.

    Afterwards the gradient is zero, and the copy in bf16 is the weight's. step: which one this is, from 1 on.
    """
    shape = tuple(weight.shape)
    tensors = {"weights": weight, "means": mean, "squares": square, "gradients": gradient}
    wanted: dict[str, Wanted] = {name: (x, shape, torch.float32) for name, x in tensors.items()}
    if copy is not None:
        wanted["copy"] = (copy, shape, torch.bfloat16)
    kernel("adam_step")(
        **{"copy": None} | addresses("adam_step", **wanted),
        n=weight.numel(),
        rate=rate / (1 - betas[0] ** step),
        root=math.sqrt(1 - betas[1] ** step),
        beta1=betas[0],
        beta2=betas[1],
        epsilon=epsilon,
    )


def _takes_tiles(x: Float[Tensor, "..."]) -> bool:
    return x.is_cpu and x.dtype == torch.bfloat16 and has_tiles()


def linear(
    x: Float[Tensor, "*token d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None
) -> Float[Tensor, "*token d_out"]:
    """x · weightᵀ + bias. With AMX the weight's gradient is added to its fp32 tensor `main_grad`, if it has one."""
    if x.dim() != 2 or not _takes_tiles(x):
        return F.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "token d_in"],
        weight: Float[Tensor, "d_out d_in"],
        bias: Float[Tensor, " d_out"] | None,
    ) -> Float[Tensor, "token d_out"]:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.main_grad = getattr(weight, "main_grad", None)
        return product(x, weight.T, out=x.new_empty(len(x), len(weight)), bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Float[Tensor, "token d_out"]) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        dx = product(dy, weight, out=torch.empty_like(x))
        dweight = torch.zeros(weight.shape, **IN_FP32) if ctx.main_grad is None else ctx.main_grad
        product(dy.T, x, out=dweight, add=True)
        dbias = dy.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dweight.to(weight.dtype) if ctx.main_grad is None else None, dbias


def sum_and_norm(
    x: Float[Tensor, "*token d"],
    branch: Float[Tensor, "*token d"],
    gain: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    *,
    dropout: float,
    epsilon: float,
) -> tuple[Float[Tensor, "*token d"], Float[Tensor, "*token d"]]:
    """x + dropout(branch), and LayerNorm of it (section 5.4)."""
    x, branch = x.contiguous(), branch.contiguous()
    # A search has thousands of these a second, and autograd's account of one costs more.
    if not torch.is_grad_enabled():
        seed = _seed() if dropout else 0
        return _add_norm(x, branch, (gain, bias), dropout=dropout, seed=seed, epsilon=epsilon)[:2]
    total, y = _AddNorm.apply(x, branch, gain, bias, dropout, epsilon)
    return total, y


def _add_norm(
    x: Float[Tensor, "*token d"],
    branch: Float[Tensor, "*token d"],
    norm: tuple[Float[Tensor, " d"], Float[Tensor, " d"]],
    *,
    dropout: float,
    seed: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, its norm, and of each row its mean and 1 / deviation. norm: gain and bias."""
    d, (gain, bias) = x.shape[-1], norm
    n = x.numel() // d
    y, total = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = torch.empty(n, **IN_FP32), torch.empty(n, **IN_FP32)
    rows, columns = (x.shape, x.dtype), ((d,), x.dtype)
    at = addresses("add_norm", x=(x, *rows), branch=(branch, *rows), gain=(gain, *columns), bias=(bias, *columns))
    outputs = raw_addresses(sum=total, y=y, mean=mean, rstd=rstd)
    kernel("add_norm", x)(**at, **outputs, n=n, d=d, rate=dropout, seed=seed, epsilon=epsilon)
    return total, y, mean, rstd


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*token d"],
        branch: Float[Tensor, "*token d"],
        gain: Float[Tensor, " d"],
        bias: Float[Tensor, " d"],
        dropout: float,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.seed, ctx.dropout = _seed() if dropout else 0, dropout
        options = {"dropout": dropout, "seed": ctx.seed, "epsilon": epsilon}
        total, y, mean, rstd = _add_norm(x, branch, (gain, bias), **options)
        ctx.shape = (len(mean), x.shape[-1])
        ctx.save_for_backward(total, gain, mean, rstd)
        ctx.set_materialize_grads(False)  # with post-norm nothing else uses the sum, which then has no gradient
        return total, y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dtotal: Float[Tensor, "*token d"] | None, dy: Float[Tensor, "*token d"] | None
    ) -> tuple[Tensor | None, ...]:
        total, gain, mean, rstd = ctx.saved_tensors
        n, d = ctx.shape
        dy = torch.zeros_like(total) if dy is None else dy.contiguous()
        dtotal = None if dtotal is None else dtotal.contiguous()
        dx, dbranch = torch.empty_like(total), torch.empty_like(total)
        dgain, dbias = torch.zeros(d, **IN_FP32), torch.zeros(d, **IN_FP32)
        wanted: dict[str, Wanted] = {"dy": (dy, total.shape, total.dtype)}
        if dtotal is not None:
            wanted["dsum"] = (dtotal, total.shape, total.dtype)
        kernel("add_norm_backward", total)(
            **{"dsum": None} | addresses("add_norm_backward", **wanted),
            **raw_addresses(
                sum=total, gain=gain, mean=mean, rstd=rstd, dx=dx, dbranch=dbranch, dgain=dgain, dbias=dbias
            ),
            **{"n": n, "d": d, "rate": ctx.dropout, "seed": ctx.seed},
        )
        return dx, dbranch, dgain.to(gain.dtype), dbias.to(gain.dtype), None, None


def bias_relu(h: Float[Tensor, "*token d"], bias: Float[Tensor, " d"]) -> Float[Tensor, "*token d"]:
    """max(0, h + bias), in the memory of h."""
    result: Tensor = _BiasReLU.apply(h, bias)
    return result


class _BiasReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Float[Tensor, "*token d"], bias: Float[Tensor, " d"]) -> Float[Tensor, "*token d"]:
        d = h.shape[-1]
        at = addresses("bias_relu", h=(h, h.shape, h.dtype), bias=(bias, (d,), h.dtype))
        ctx.mark_dirty(h)
        kernel("bias_relu", h)(**at, n=h.numel() // d, d=d)
        ctx.save_for_backward(h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Float[Tensor, "*token d"]) -> tuple[Float[Tensor, "*token d"], Float[Tensor, " d"]]:
        (y,) = ctx.saved_tensors
        d = y.shape[-1]
        dy = dy.contiguous()
        dh, dbias = torch.empty_like(y), torch.zeros(d, **IN_FP32)
        at = addresses("bias_relu_backward", dy=(dy, y.shape, y.dtype), y=(y, y.shape, y.dtype))
        kernel("bias_relu_backward", y)(**at, **raw_addresses(dh=dh, dbias=dbias), n=y.numel() // d, d=d)
        return dh, dbias.to(y.dtype)


def embed(
    ids: Int[Tensor, " token"],
    positions: Int[Tensor, " token"],
    table: Float[Tensor, "vocab d"],
    position_table: Float[Tensor, "position d"],
    *,
    scale: float,
    dropout: float,
    may_lack: bool = False,
) -> Float[Tensor, "token d"]:
    """dropout(table[ids] · scale + position_table[positions]); with `may_lack` an id of -1 has no embedding.

    IndexError for an id or a position beyond its table. If a table has an fp32 tensor `main_grad`, its gradient is
    added to the rows there, and none is returned: a vocabulary's worth of zeros is neither made nor added.
    """
    check_range("embed", "ids", ids, least=-1 if may_lack else 0, end=len(table))
    check_range("embed", "positions", positions, end=len(position_table))
    result: Tensor = _Embed.apply(ids, positions, table, position_table, scale, dropout)
    return result


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids: Int[Tensor, " token"],
        positions: Int[Tensor, " token"],
        table: Float[Tensor, "vocab d"],
        position_table: Float[Tensor, "position d"],
        scale: float,
        dropout: float,
    ) -> Float[Tensor, "token d"]:
        n, d = len(ids), table.shape[1]
        y = table.new_empty(n, d)
        ctx.seed, ctx.dropout, ctx.scale = _seed() if dropout else 0, dropout, scale
        ctx.sizes = len(table), len(position_table)
        ctx.main_grads = tuple(getattr(x, "main_grad", None) for x in (table, position_table))
        at = addresses(
            "embed",
            ids=(ids, (n,), torch.int64),
            places=(positions, (n,), torch.int64),
            table=(table, (len(table), d), table.dtype),
            positions=(position_table, (len(position_table), d), table.dtype),
        )
        kernel("embed", table)(**at, **raw_addresses(y=y), n=n, d=d, scale=scale, rate=dropout, seed=ctx.seed)
        ctx.save_for_backward(ids, positions)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Float[Tensor, "token d"]) -> tuple[Tensor | None, ...]:
        dy = dy.contiguous()
        # The forward pass checked the indices. Sinusoids get no gradient; learned positions are looked up unscaled.
        scales = (ctx.scale, 1.0)
        gradients = [
            _embed_backward(ctx, dy, indices, size=size, scale=scale, main_grad=main_grad) if wanted else None
            for indices, size, scale, main_grad, wanted in zip(
                ctx.saved_tensors, ctx.sizes, scales, ctx.main_grads, ctx.needs_input_grad[2:4], strict=True
            )
        ]
        return None, None, *gradients, None, None


def _embed_backward(
    ctx: Any,
    dy: Float[Tensor, "token d"],
    indices: Int[Tensor, " token"],
    *,
    size: int,
    scale: float,
    main_grad: Float[Tensor, "row d"] | None,
) -> Float[Tensor, "row d"] | None:
    """The gradient of one table, or None if it was added to `main_grad`."""
    n, d = dy.shape
    gradient = torch.zeros(size, d, **IN_FP32) if main_grad is None else main_grad
    at = addresses(
        "embed_backward",
        dy=(dy, (len(indices), d), dy.dtype),
        ids=(indices, (n,), torch.int64),
        dtable=(gradient, (size, d), torch.float32),
    )
    kernel("embed_backward", dy)(**at, n=n, d=d, scale=scale, rate=ctx.dropout, seed=ctx.seed)
    return gradient.to(dy.dtype) if main_grad is None else None


def loss_(
    logits: Float[Tensor, "row vocab"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
    consistency: float = 0.0,
) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]]:
    """Implements `TrainingOps.loss_`: each thread keeps the probabilities of one token, in both passes, only."""
    name, alpha = ("consistent_loss", {"alpha": consistency}) if consistency else ("smoothed_loss", {})
    n, vocab_size = len(targets), logits.shape[1]
    n_rows = 2 * n if consistency else n
    loss, nll = torch.empty(n, **IN_FP32), torch.empty(n, **IN_FP32)
    at = addresses(name, logits=(logits, (n_rows, vocab_size), logits.dtype), targets=(targets, (n,), torch.int64))
    check_range(name, "targets", targets, end=vocab_size)
    kernel(name, logits)(
        **at, **raw_addresses(loss=loss, nll=nll), n=n, vocab=vocab_size, epsilon=label_smoothing, **alpha
    )
    return loss, nll


def self_attention(
    qkv: Float[Tensor, "token qkv"],
    sequences: PackedSequences,
    *,
    n_heads: int,
    widths: list[int],
    causal: bool,
    dropout: float,
) -> Float[Tensor, "token value"]:
    """Equation 1 in every head of every sequence, with dropout on the weights.

    The columns of qkv are all heads' Q, K and V, of these widths.
    """
    result: Tensor = _Attend.apply(qkv, None, sequences, sequences, n_heads, widths, causal, dropout)
    return result


def cross_attention(
    q: Float[Tensor, "token query"],
    kv: Float[Tensor, "src_token kv"],
    tgt: PackedSequences,
    src: PackedSequences,
    *,
    n_heads: int,
    widths: list[int],
    dropout: float,
) -> Float[Tensor, "token value"]:
    """Attention with queries from one side's sequences, keys and values from the other's; see `self_attention`."""
    result: Tensor = _Attend.apply(q, kv, tgt, src, n_heads, [q.shape[1], *widths], False, dropout)
    return result


def _parts(
    q: Float[Tensor, "token query"], kv: Float[Tensor, "src_token kv"] | None, widths: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Views of Q, K and V in one merged tensor, or in one and another."""
    if kv is None:
        first, second, third = q.split(widths, dim=1)
        return first, second, third
    return q, kv[:, : widths[1]], kv[:, widths[1] :]


LARGE_SCRATCH = 2**28  # bytes; whether less is free need not be asked


def _check_scratch(tgt: PackedSequences, src: PackedSequences, n_heads: int) -> None:
    """MemoryError if the weights of a sentence's head cannot be held: the system would end the process."""
    n_queries, n_keys = tgt.longest, src.longest
    n_threads = min(torch.get_num_threads(), n_heads * (len(tgt.offsets) - 1))
    n_bytes = 8 * n_threads * n_queries * n_keys  # two fp32 matrices a thread in the backward pass
    if n_bytes > LARGE_SCRATCH and n_bytes > free_memory():
        raise MemoryError(f"attention of {n_queries:,} tokens to {n_keys:,} takes {n_bytes:,} bytes")


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "token query"],
        kv: Float[Tensor, "src_token kv"] | None,
        tgt: PackedSequences,
        src: PackedSequences,
        n_heads: int,
        widths: list[int],
        causal: bool,
        dropout: float,
    ) -> Float[Tensor, "token value"]:
        # The kernel takes packed sequences: rows without padding, and the offsets at which sentences begin.
        _check_scratch(tgt, src, n_heads)
        q, kv = q.contiguous(), None if kv is None else kv.contiguous()
        n_offsets, n_keys = len(tgt.offsets), len(src.positions)
        at = addresses(
            "attend",
            q_offsets=(tgt.offsets, (n_offsets,), torch.int64),
            k_offsets=(src.offsets, (n_offsets,), torch.int64),
            q=(q, (len(tgt.positions), sum(widths) if kv is None else widths[0]), q.dtype),
            **({} if kv is None else {"kv": (kv, (n_keys, sum(widths[1:])), q.dtype)}),
        )
        check_range("attend", "q_offsets", tgt.offsets, end=len(q) + 1)
        check_range("attend", "k_offsets", src.offsets, end=n_keys + 1)
        # Heads lie side by side in a row, so the kernel finds them by strides.
        queries, keys, values = _parts(q, kv, widths)
        shape = structure(
            "Shape",
            q_offsets=at["q_offsets"],
            k_offsets=at["k_offsets"],
            n_sentences=n_offsets - 1,
            n_heads=n_heads,
            d_k=widths[1] // n_heads,
            d_v=widths[2] // n_heads,
            q_stride=queries.stride(0),
            k_stride=keys.stride(0),
            v_stride=values.stride(0),
            seed=_seed() if dropout else 0,
            rate=dropout,
            causal=causal,
        )
        # The masks of dropout are drawn again from the seed in the backward pass, not kept.
        out = q.new_empty(len(q), widths[2])
        kernel("attend", q)(**raw_addresses(q=queries, k=keys, v=values, out=out), shape=shape)
        ctx.save_for_backward(q, kv)
        ctx.shape, ctx.widths, ctx.tgt = shape, widths, (tgt, src)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Float[Tensor, "token value"]) -> tuple[Tensor | None, ...]:
        q, kv = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dkv = torch.empty_like(q), None if kv is None else torch.empty_like(kv)
        names = (("q", "k", "v"), ("dq", "dk", "dv"))
        parts = (_parts(q, kv, ctx.widths), _parts(dq, dkv, ctx.widths))
        tensors = {name: part for of in zip(names, parts, strict=True) for name, part in zip(*of, strict=True)}
        at = addresses("attend_backward", dout=(dout, (len(q), ctx.widths[2]), q.dtype))
        kernel("attend_backward", q)(**at, **raw_addresses(**tensors), shape=ctx.shape)
        return dq, dkv, None, None, None, None, None, None
