"""The module of PyTorch's that a folder's weights make."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heed.model.cost import Take, weight_shapes
from heed.model.networks import network_of
from heed.model.transformer import Transformer
from heed.model_folder.card import ModelConfig


def first_names(model: Transformer) -> dict[str, str]:
    """For each name in the model's state the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights: on the meta device it would import 70 MB of PyTorch, for nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def model_of(config: ModelConfig, take: Take) -> Transformer:
    """The model of these weights, in evaluation mode; they are not copied."""
    names = weight_shapes(config.arch, config.vocab_size, config.src_vocab_size)
    weights = {name: torch.from_numpy(weight[:]) for name in names if (weight := take(name)) is not None}
    network = network_of(config.arch)
    if network is Transformer:
        with torch.device("meta"), _NothingDrawn():
            model = Transformer(config.arch, config.vocab_size, config.src_vocab_size)
    else:  # which may hold tensors of its own that are no weights
        model = network(config.arch, config.vocab_size, config.src_vocab_size)
    parameters = {name: nn.Parameter(tensor) for name, tensor in weights.items()}
    state = {name: parameters[first] for name, first in first_names(model).items()}
    model.load_state_dict(state, assign=True)
    return model.eval()
