"""A corpus of id pairs on disk, memory-mapped: memory does not grow with it."""

import hashlib
import json
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heed.config import HeedError, whole_folder

SIDES = ("src", "tgt")


class ParallelCorpus:
    """corpus[i] -> (src_ids, tgt_ids), without special symbols; `lengths` of each side; a `fingerprint` of it all."""

    def __init__(self, folder: Path):
        try:
            facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
            self.fingerprint: str = facts["fingerprint"]
            self._ids, self._offsets = {}, {}
            for side in SIDES:
                n_ids = facts[f"n_{side}_tokens"]
                path = folder / f"{side}.bin"
                if path.stat().st_size != n_ids * np.dtype(facts["dtype"]).itemsize:
                    raise HeedError(f"{path}: {path.stat().st_size} bytes do not fit corpus.json; delete {folder}.")
                # An empty file cannot be mapped.
                self._ids[side] = np.memmap(path, dtype=facts["dtype"], mode="r") if n_ids else np.zeros(0, np.uint16)
                self._offsets[side] = np.load(folder / f"{side}.offsets.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, KeyError) as error:
            raise HeedError(f"{folder}: not a prepared corpus ({error}); delete it to prepare it again.") from None

    def __len__(self) -> int:
        return len(self._offsets["src"]) - 1

    def __getitem__(self, row: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
        src, tgt = (self._ids[s][self._offsets[s][row] : self._offsets[s][row + 1]] for s in SIDES)
        return src, tgt

    @property
    def lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Number of ids of each source and of each target."""
        src, tgt = (np.diff(self._offsets[side]).astype(np.int32) for side in SIDES)
        return src, tgt


def write_corpus(folder: Path, pairs: Iterable[tuple[list[int], list[int]]], *, vocab_size: int) -> ParallelCorpus:
    """Writes pairs of ids as they come; the folder appears whole or not at all."""
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    digest = hashlib.sha256()
    with whole_folder(folder) as temporary:
        lengths = {side: array("i") for side in SIDES}  # 4 bytes a sentence: all that grows with the corpus
        with (temporary / "src.bin").open("wb") as src_file, (temporary / "tgt.bin").open("wb") as tgt_file:
            for pair in pairs:
                for side, file, ids in zip(SIDES, (src_file, tgt_file), pair, strict=True):
                    data = np.asarray(ids, dtype=dtype).tobytes()
                    file.write(data)
                    digest.update(len(ids).to_bytes(4, "little") + data)
                    lengths[side].append(len(ids))
        facts = {"dtype": dtype.name, "n_pairs": len(lengths["src"]), "vocab_size": vocab_size}
        for side in SIDES:
            offsets = np.concatenate([[0], np.cumsum(lengths[side], dtype=np.int64)]).astype(np.int64)
            np.save(temporary / f"{side}.offsets.npy", offsets, allow_pickle=False)
            facts[f"n_{side}_tokens"] = int(offsets[-1])
        facts["fingerprint"] = digest.hexdigest()
        (temporary / "corpus.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return ParallelCorpus(folder)
