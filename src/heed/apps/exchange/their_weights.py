"""The weights in a folder of Hugging Face's: safetensors or pickles, whole or in shards."""

import re
from collections.abc import Callable
from pathlib import Path

from heed.config import shown
from heed.errors import HeedError
from heed.model.cost import Rows
from heed.model_folder.weights import StoredWeights
from heed.runtime.json_files import json_object

MAX_INDEX_BYTES = 2**22
SHARD = re.compile(r"[\w-][\w.-]*\.(?:safetensors|bin)")


def weights_of(path: Path) -> dict[str, Rows]:
    """The weights in a folder of Hugging Face's, in fp32, by their names; those of safetensors are read when needed.

    HeedError for a file that is missing, damaged, or holds more than tensors, or one without numbers: its other
    dimensions may be of any size.
    """
    for name, read in (("model.safetensors", _stored), ("pytorch_model.bin", _unpickled)):
        index = path / f"{name}.index.json"
        if (path / name).is_file() or index.is_file():
            weights = read(path / name) if (path / name).is_file() else _shards(index, read)
            if empty := [one for one, weight in weights.items() if 0 in weight.shape]:
                raise HeedError(f"{path}: {shown(empty[0])} holds no numbers.")
            return weights
    raise HeedError(f"{path}: holds neither model.safetensors nor pytorch_model.bin, whole or in shards.")


def _stored(path: Path) -> dict[str, Rows]:
    weights = StoredWeights(path)
    return {name: weights.rows(name) for name in weights.shapes}


def _unpickled(path: Path) -> dict[str, Rows]:
    try:
        from heed.apps.exchange.guarded_weights import unpickled
    except ModuleNotFoundError:
        raise HeedError(
            f"{path}: a pickle, which only PyTorch reads, and it is not installed: pip install 'heed-mt[train]', or "
            "take the model as model.safetensors."
        ) from None
    return unpickled(path)


def _shards(index: Path, read: Callable[[Path], dict[str, Rows]]) -> dict[str, Rows]:
    """The weights of all files that an index names. HeedError if they are not those that it lists."""
    listed = json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise HeedError(f"{index}: has no weight_map, which says the file of each weight.")
    for name, file in listed.items():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise HeedError(f"{index}: {shown(name)} is in {shown(file)}; expected a file in the same folder.")
    weights: dict[str, Rows] = {}
    for file in sorted(set(listed.values())):
        if not (index.parent / file).is_file():
            raise HeedError(f"{index.parent / file}: missing; {index.name} lists it. Download the whole folder.")
        shard = read(index.parent / file)
        expected = {name for name, of_file in listed.items() if of_file == file}
        for name in sorted(shard.keys() ^ expected):
            fault = "lacks" if name in expected else "also holds"
            raise HeedError(f"{index.parent / file}: {fault} {shown(name)}, unlike {index.name}.")
        weights |= shard
    return weights
