"""Models of the Hugging Face hub: the files of one commit, fetched by huggingface_hub, held to the hub's hashes."""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.runtime.json_files import json_object

# Owners whose models may be named without them, by how the names begin.
OWNERS = {
    "opus-mt": "Helsinki-NLP/opus-mt",
    "nllb-200-": "facebook/nllb-200-",
    "m2m100_": "facebook/m2m100_",
    "mbart-large-50": "facebook/mbart-large-50",
    "small-100": "alirezamsh/small100",
    "small100": "alirezamsh/small100",
}
NAME = re.compile(
    r"(?:(?P<owner>\w[\w.-]{0,95})/)?(?P<model>\w[\w.-]{0,95})(?:@(?P<revision>\w[\w./-]{0,199}))?", re.ASCII
)
# The first file of WEIGHTS that a model has, with its parts, and those of the others are all that an import reads.
INDEX = ".index.json"  # of weights in parts
WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
PART = re.compile("(?:model|pytorch_model)-[0-9]{5}-of-[0-9]{5}[.](?:safetensors|bin)")
MAX_INDEX_BYTES = 2**22
OTHERS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "README.md"),
    *("sentencepiece.bpe.model", "added_tokens.json", "tokenization_small100.py"),  # of the last its name says enough
)


@dataclass(frozen=True)
class HubModel:
    """A repository of the hub. revision: a branch, a tag or a commit."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}"


@dataclass(frozen=True)
class HubFile:
    """A file of a commit. hash: SHA-256 of its bytes where the hub keeps it as LFS, else git's hash of it."""

    name: str
    n_bytes: int
    hash: str

    def verify(self, path: Path) -> str:
        """The name and value of the file's hash. HeedError if it is not the expected one; the file is removed."""
        with path.open("rb") as file:
            if len(self.hash) == 64:
                kind, digest = "sha256", hashlib.file_digest(file, "sha256")
            else:
                kind, digest = "git's hash", hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
                digest.update(file.read())
        if digest.hexdigest() != self.hash:
            path.resolve().unlink()  # a link of the cache leads to it
            path.unlink(missing_ok=True)
            raise HeedError(
                f"{path}: {kind} is {digest.hexdigest()}, expected {self.hash}; it was removed; fetch it again."
            )
        return f"{kind} {self.hash}"


def hub_model(text: str) -> HubModel | None:
    """What `text` names on the hub: OWNER/MODEL or a MODEL of OWNERS, with @REVISION behind it. None if it is none."""
    match = NAME.fullmatch(text)
    if match is None or ".." in text:
        return None
    repository = f"{match['owner']}/{match['model']}"
    if not match["owner"]:
        begin = next((begin for begin in OWNERS if match["model"].startswith(begin)), None)
        if begin is None:
            return None
        repository = OWNERS[begin] + match["model"].removeprefix(begin)
    return HubModel(repository, match["revision"] or "main")


def fetch(model: HubModel, *, report: Callable[[str], None]) -> Path:
    """A folder of the hub's cache with the files of the model's commit, verified; missing ones are downloaded.

    Cache, login, endpoint and offline mode are those of Hugging Face's programs (HF_HOME, HF_TOKEN, …).
    HeedError if there is no such model, for files that no import reads, and for faults of the network and the disk.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    network_fault: Any = errors.HfHubHTTPError.__bases__[0]  # of httpx or requests
    hub, page = constants.ENDPOINT, f"{constants.ENDPOINT}/{model.repository}"
    try:
        return _from_cache(model, report) if constants.HF_HUB_OFFLINE else _from_hub(model, report)
    except HeedError:
        raise
    except errors.RevisionNotFoundError:
        raise HeedError(f"{model}: the model has no such branch, tag or commit.") from None
    except errors.GatedRepoError:
        raise HeedError(f"{model}: gated; accept its terms at {page} and set HF_TOKEN, or run hf auth login.") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        # The hub does not tell a private model from one that does not exist.
        raise HeedError(
            f"{model}: no such file or folder here, and no such model at {hub}; for a private one, set HF_TOKEN."
        ) from None
    except (network_fault, OSError, RuntimeError, ValueError) as error:  # RuntimeError is hf_xet's
        why = str(error).partition("\n")[0] or type(error).__name__
        raise HeedError(
            f"{model}: no such file or folder here, and {hub} cannot be reached or the cache "
            f"{constants.HF_HUB_CACHE} not be written ({why}); try again later: what has come is kept; set HF_ENDPOINT "
            "to a mirror, or download the model's files elsewhere into a folder and name that folder."
        ) from None


def _from_hub(model: HubModel, report: Callable[[str], None]) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache

    info = HfApi().model_info(model.repository, revision=model.revision, files_metadata=True)
    card, commit = info.card_data, str(info.sha)
    files = {
        entry.rfilename: HubFile(
            entry.rfilename,
            (entry.lfs.size if entry.lfs else entry.size) or 0,
            (entry.lfs.sha256 if entry.lfs else entry.blob_id) or "",
        )
        for entry in info.siblings or []
    }
    wanted = [files[name] for name in _wanted(files, model)]
    if without := [file.name for file in wanted if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", file.hash)]:
        raise HeedError(f"{model.repository}: the hub gives no hash of {without[0]}; nothing was fetched.")
    report(
        f"{model.repository} at commit {commit}: {len(wanted)} files, {sum(f.n_bytes for f in wanted) / 1e6:,.1f} MB; "
        f"licence, as its model card gives it: {(card and card.license) or 'none'}."
    )
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    is_there = {
        f.name: isinstance(try_to_load_from_cache(model.repository, f.name, revision=commit), str) for f in wanted
    }
    missing, free = sum(f.n_bytes for f in wanted if not is_there[f.name]), shutil.disk_usage(cache).free
    if missing > free:
        raise HeedError(f"{cache}: {missing:,} bytes are still to come, and the disk has {free:,} left; make room.")
    for file in wanted:
        # By the revision's name, which the cache then knows offline too.
        path = Path(hf_hub_download(model.repository, file.name, revision=model.revision))
        report(f"{file.name}: {file.n_bytes:,} bytes, {file.verify(path)}, verified.")
    return path.parent


def _from_cache(model: HubModel, report: Callable[[str], None]) -> Path:
    """The files as they were fetched. The weights came last, so that the others are complete."""
    from huggingface_hub import try_to_load_from_cache

    paths = {}
    names = [*OTHERS, *WEIGHTS]
    for name in names:
        if isinstance(path := try_to_load_from_cache(model.repository, name, revision=model.revision), str):
            paths[name] = Path(path)
            names += _parts(paths[name]) if name.endswith(INDEX) else []
    if "config.json" not in paths or not paths.keys() & set(WEIGHTS):
        raise HeedError(f"{model}: not fetched yet, and HF_HUB_OFFLINE is set; unset it once.")
    for name, path in paths.items():
        # The cache names a file by its hash and links to it, where the file system has links.
        blob = path.resolve()
        if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            report(f"{name}: {HubFile(name, blob.stat().st_size, blob.name).verify(path)}, verified.")
    return paths["config.json"].parent


def _wanted(files: dict[str, HubFile], model: HubModel) -> list[str]:
    """The files that an import reads, the weights last. HeedError if there are no weights."""
    weights = next((name for name in WEIGHTS if name in files), None)
    if weights is None or "config.json" not in files:
        raise HeedError(
            f"{model}: has no config.json with {WEIGHTS[0]} or {WEIGHTS[2]}, whole or in parts; Heed imports "
            "MarianMTModel, such as OPUS-MT's models, M2M100, NLLB and mBART-50."
        )
    stem = weights.removesuffix(INDEX).partition(".")[0]
    parts = [name for name in files if PART.fullmatch(name) and name.startswith(f"{stem}-")]
    return [*(name for name in OTHERS if name in files), *(sorted(parts) if weights.endswith(INDEX) else []), weights]


def _parts(index: Path) -> list[str]:
    """The files that an index lists."""
    listed = json_object(index, MAX_INDEX_BYTES).get("weight_map")
    names = set(listed.values()) if isinstance(listed, dict) else set()
    return sorted(name for name in names if isinstance(name, str) and PART.fullmatch(name))
