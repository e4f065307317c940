"""Networks of one's own: subclasses of `Transformer`, by the name that a recipe and a model folder record.

A name leads to a class that the program has given (`heed.train(…, network=…)`, `heed.load(…, network=…)`) or that an
installed package offers (entry points `heed.networks`). No code ever comes from a folder.
"""

from typing import Any

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.extensions import extension, installed, provider

_given: dict[str, type[Transformer]] = {}  # by name, for the whole process: whoever loads a folder may need it


def give(network: Any) -> str:
    """Makes a class known in this process under its name, which is returned. HeedError if it is no `Transformer`."""
    if not (isinstance(network, type) and issubclass(network, Transformer)):
        raise HeedError(f"network={network!r}: expected a subclass of heed.Transformer.")
    if network is Transformer:
        raise HeedError("network=Transformer is what Heed takes anyway; leave it out.")
    _given[network.__qualname__] = network
    return network.__qualname__


def network_of(arch: Architecture, *, where: str = "") -> type[Transformer]:
    """The class of a network with these settings. HeedError, beginning with `where`, if it is missing."""
    name = arch.network
    if name is None:
        return Transformer
    if name in _given:
        return _given[name]
    prefix = f"{where}: " if where else ""
    if name not in installed("heed.networks"):
        raise HeedError(
            f"{prefix}its network is of the class {name}, which is not Heed's: install the package that offers it, or "
            f"in Python give the class: heed.load(…, network={name})."
        )
    network = extension("heed.networks", name)
    if not (isinstance(network, type) and issubclass(network, Transformer)):
        raise HeedError(f"{prefix}the network {name} of an installed package is not a subclass of heed.Transformer.")
    return network


def is_installed(arch: Architecture) -> bool:
    """Whether every process of this machine can have the network of these settings."""
    return arch.network is None or arch.network in installed("heed.networks")


def package_of(arch: Architecture) -> str | None:
    """The installed package, with its version, that offers this network; None if Heed or the program itself does."""
    return None if arch.network is None or arch.network in _given else provider("heed.networks", arch.network)


def own_weight_shapes(arch: Architecture, vocab_size: int, src_vocab_size: int | None) -> dict[str, tuple[int, ...]]:
    """Returns `cost.weight_shapes` of a network that no formula describes: it is made."""
    model = network_of(arch)(arch, vocab_size, src_vocab_size)
    shapes: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            shapes[name] = tuple(tensor.shape)
            seen.add(id(tensor))
    return shapes
