"""Whether a module is the network of model/transformer.py, for whoever computes or describes it in a way of their own.

A backend's kernels and an exporter know the network by its class, its settings and its weights. One that was changed
otherwise (a subclass, a hook, a method set on a module) would be computed wrongly without a word.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import nn

from heed.model.architecture import EPSILON, Architecture
from heed.model.attention import Dropout
from heed.model.transformer import (
    ACTIVATIONS,
    AddNorm,
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Transformer,
)

CLASSES: tuple[type[nn.Module], ...] = (
    *(Transformer, EncoderLayer, DecoderLayer, SelfAttention, CrossAttention, FeedForward, AddNorm, Dropout),
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.Identity, nn.ModuleList),
)
FUNCTIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


def _own_functions(kind: type) -> list[tuple[type, str, Any]]:
    """The functions and properties of a class and of those that it is made of, nn.Module apart."""
    bases = [base for base in kind.__mro__ if base not in nn.Module.__mro__]
    return [
        (base, name, value)
        for base in bases
        for name, value in vars(base).items()
        if inspect.isfunction(value) or isinstance(value, property)
    ]


# As they are written, whoever replaces them later.
WRITTEN = list(dict.fromkeys(method for kind in CLASSES for method in _own_functions(kind)))
METHODS = {kind: {name for _, name, _ in _own_functions(kind)} for kind in CLASSES}


def find_change(model: nn.Module, arch: Architecture) -> str | None:
    """How these modules differ from model/transformer.py's, or None.

    It is asked for every search and every step of training, so it takes microseconds a layer.
    """
    # Changes that concern all modules.
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "a global hook"
    if type(model) is not Transformer:
        return f"a class of its own, {type(model).__name__}"
    for kind, name, method in WRITTEN:
        if kind.__dict__.get(name) is not method:
            return f"another {kind.__name__}.{name}"
    if ACTIVATIONS.get(arch.activation) is not FUNCTIONS.get(arch.activation):
        return f"another function for activation = {arch.activation}"
    # Each module: its class, hooks, methods, mode and sizes.
    waiting: list[nn.Module] = [model]
    while waiting:
        module = waiting.pop()
        kind, state = type(module), module.__dict__
        if kind in METHODS:
            if state["_forward_hooks"] or state["_forward_pre_hooks"]:
                return f"a hook at {_name_of(module, model)}"
            if state["_backward_hooks"] or state["_backward_pre_hooks"]:
                return f"a hook of the backward pass at {_name_of(module, model)}"
            if not METHODS[kind].isdisjoint(state):
                return f"a method of its own at {_name_of(module, model)}"
            if state["training"] is not model.training:
                return f"another mode at {_name_of(module, model)}"
            if kind in FITS and not FITS[kind](module, arch):
                return f"a {kind.__name__} unlike its settings at {_name_of(module, model)}"
            waiting += [child for child in state["_modules"].values() if child is not None]
        else:
            return f"a {kind.__name__} at {_name_of(module, model)}"
    # Layers may have been added or taken away.
    n_layers = len(model.encoder), len(model.decoder)
    if n_layers != (arch.encoder_layers, arch.decoder_layers):
        return f"{n_layers[0]} and {n_layers[1]} layers, unlike its settings"
    return None


def _name_of(module: nn.Module, model: nn.Module) -> str:
    return next((name for name, other in model.named_modules() if other is module), "") or type(model).__name__


def _self_attention_fits(module: SelfAttention, arch: Architecture) -> bool:
    keys, values = _widths(arch)
    same = module.n_heads == arch.n_heads and module.widths == [keys, keys, values]
    return same and _is(module.qkv, 2 * keys + values, arch.d_model) and _is(module.out, arch.d_model, values)


def _cross_attention_fits(module: CrossAttention, arch: Architecture) -> bool:
    keys, values = _widths(arch)
    same = module.n_heads == arch.n_heads and module.widths == [keys, values] and _is(module.q, keys, arch.d_model)
    return same and _is(module.kv, keys + values, arch.d_model) and _is(module.out, arch.d_model, values)


def _feed_forward_fits(module: FeedForward, arch: Architecture) -> bool:
    shapes_fit = _is(module.inner, arch.d_ff, arch.d_model) and _is(module.outer, arch.d_model, arch.d_ff)
    return module.activation == arch.activation and shapes_fit


def _add_norm_fits(module: AddNorm, arch: Architecture) -> bool:
    same = module.pre == (arch.norm == "pre") and module.dropout.rate == arch.dropout
    return same and _norm_fits(module, arch)


def _norm_fits(module: nn.LayerNorm, arch: Architecture) -> bool:
    has_weights = module.weight is not None and module.bias is not None
    return has_weights and module.eps == EPSILON and module.normalized_shape == (arch.d_model,)


def _embedding_fits(module: nn.Embedding, arch: Architecture) -> bool:
    return module.max_norm is None and module.embedding_dim == arch.d_model


def _transformer_fits(module: Transformer, arch: Architecture) -> bool:
    norms = [isinstance(norm, nn.LayerNorm) for norm in (module.encoder_norm, module.decoder_norm)]
    norms += [isinstance(norm, nn.LayerNorm) for norm in (module.src_embedding_norm, module.tgt_embedding_norm)]
    wanted = [arch.norm == "pre"] * 2 + [arch.embedding_norm] * 2
    return module.dropout.rate == arch.dropout and norms == wanted


def _widths(arch: Architecture) -> tuple[int, int]:
    """All heads' keys and values."""
    return arch.n_heads * arch.key_width, arch.n_heads * arch.value_width


def _is(product: nn.Module, d_out: int, d_in: int) -> bool:
    """Whether a product has this shape, if it is the network's own: who puts another in its place knows its shape."""
    return type(product) is not nn.Linear or (product.out_features, product.in_features) == (d_out, d_in)


# Whether a module's own settings and shapes are those that the network's settings give it.
FITS: dict[type[nn.Module], Callable[[Any, Architecture], bool]] = {
    SelfAttention: _self_attention_fits,
    CrossAttention: _cross_attention_fits,
    FeedForward: _feed_forward_fits,
    AddNorm: _add_norm_fits,
    nn.LayerNorm: _norm_fits,
    nn.Embedding: _embedding_fits,
    Transformer: _transformer_fits,
}
