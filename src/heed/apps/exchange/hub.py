"""Models of the Hugging Face hub: the files of one commit, fetched with the hashes that the hub gives for them."""

import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heed.config import shown
from heed.data.corpora.download import NETWORK_FAULTS, Remote, Store
from heed.errors import HeedError
from heed.runtime.device import cache_folder
from heed.runtime.files import whole_file
from heed.runtime.json_files import json_object, write_json

HUB = "https://huggingface.co"
OPUS_MT = "Helsinki-NLP"  # whose models may be named without it
NAME = re.compile(
    r"(?:(?P<owner>\w[\w.-]{0,95})/)?(?P<model>\w[\w.-]{0,95})(?:@(?P<revision>\w[\w./-]{0,199}))?", re.ASCII
)
# The first file of WEIGHTS that a model has, and those of the others that it has, are all that an import reads.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
OTHERS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "README.md"),
)
MAX_ANSWER_BYTES = 2**24
MAX_LARGE_BYTES = 2**40  # of a file of weights
MAX_SMALL_BYTES = 2**26  # of a file that git itself holds; the hub keeps larger ones as LFS
TRY_AGAIN = "try again later: what has come is kept"


@dataclass(frozen=True)
class HubModel:
    """A repository of the hub. revision: a branch, a tag or a commit."""

    repository: str
    revision: str


@dataclass(frozen=True)
class HubFile:
    """A file of a commit. sha256: of its bytes, where the hub keeps it as LFS; git_blob: git's hash, elsewhere."""

    name: str
    n_bytes: int
    sha256: str | None
    git_blob: str | None


def hub_model(text: str) -> HubModel | None:
    """What `text` names on the hub: OWNER/MODEL or opus-mt-…, with @REVISION behind it. None if it is no such name."""
    found = NAME.fullmatch(text)
    if found is None or ".." in text or not (found["owner"] or found["model"].startswith("opus-mt")):
        return None
    return HubModel(f"{found['owner'] or OPUS_MT}/{found['model']}", found["revision"] or "main")


def fetch(model: HubModel, *, report: Callable[[str], None]) -> Path:
    """A folder of Heed's cache with the files of the model's commit, verified; those that are missing are downloaded.

    HF_ENDPOINT names another hub, HF_TOKEN is sent to it, and with HF_HUB_OFFLINE only what was fetched is used.
    HeedError if there is no such model, for files that no import reads, and for faults of the network and the disk.
    """
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    try:
        folder = cache_folder() / "hub" / model.repository.replace("/", "--")
    except OSError as error:
        raise HeedError(f"no folder for downloads can be used ({error}); set XDG_CACHE_HOME.") from None
    listing_path = folder / f"{quote(model.revision, safe='')}.json"
    if not offline:
        listing = _ask(model)
    elif listing_path.is_file():
        listing = json_object(listing_path, MAX_ANSWER_BYTES)
    else:
        raise HeedError(
            f"{model.repository}@{model.revision}: not fetched yet, and HF_HUB_OFFLINE is set; unset it once."
        )
    commit, licence, files = _commit(listing, model), _licence(listing), _files(listing, model)
    target = folder / commit
    total = sum(file.n_bytes for file in files)
    report(
        f"{model.repository} at commit {commit}: {len(files)} files, {total / 1e6:,.1f} MB; licence, as its model card "
        f"gives it: {licence}."
    )
    try:
        target.mkdir(parents=True, exist_ok=True)
        missing = sum(file.n_bytes - _n_bytes_there(target / file.name) for file in files)
        free = shutil.disk_usage(target).free
        if missing > free:
            raise HeedError(
                f"{target}: {missing:,} bytes are still to come, and the disk has {free:,} left; make room."
            )
        if not offline:
            with whole_file(listing_path) as temporary:
                write_json(temporary, listing)
    except OSError as error:
        raise HeedError(f"{target}: cannot be written ({error.strerror or error}).") from None
    advice = TRY_AGAIN
    if listing.get("gated"):
        advice = f"accept its terms at {_endpoint()}/{model.repository} and set HF_TOKEN"
    for file in files:
        store = Store(
            target,
            corpus=model.repository,
            report=report,
            fetching=not offline,
            max_bytes=file.n_bytes,
            token=_token(),
            advice=advice,
        )
        address = f"{_endpoint()}/{model.repository}/resolve/{commit}/{file.name}"
        store.file(Remote(name=file.name, address=address, sha256=file.sha256, is_archive=True, git_blob=file.git_blob))
        hashed = f"sha256 {file.sha256}" if file.sha256 else f"git's hash {file.git_blob}"
        report(f"{file.name}: {file.n_bytes:,} bytes, {hashed}, verified.")
    return target


def _n_bytes_there(path: Path) -> int:
    """Bytes of a file that need no more room: of the whole file, or of what has come of it."""
    return next((p.stat().st_size for p in (path, path.with_name(path.name + ".part")) if p.is_file()), 0)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def _token() -> str | None:
    return os.environ.get("HF_TOKEN", "").strip() or None


def _ask(model: HubModel) -> dict[str, Any]:
    """What the hub says of a revision. HeedError says what is wrong with the name, the rights or the network."""
    name = f"{model.repository}@{model.revision}"
    address = f"{_endpoint()}/api/models/{model.repository}/revision/{quote(model.revision, safe='')}?blobs=true"
    try:
        request = urllib.request.Request(address)
        if (token := _token()) is not None:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=60) as response:
            content = response.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        code = error.headers.get("X-Error-Code", "")
        error.close()
        if code == "RevisionNotFound":
            raise HeedError(f"{name}: the model has no such branch, tag or commit.") from None
        if code == "GatedRepo" or error.code == 403:
            page = f"{_endpoint()}/{model.repository}"
            raise HeedError(f"{name}: gated; accept its terms at {page} and set HF_TOKEN.") from None
        if error.code in (401, 404):  # the hub does not tell a private model from one that does not exist
            raise HeedError(
                f"{name}: no such file or folder here, and no such model at {_endpoint()}; for a private one, set "
                "HF_TOKEN."
            ) from None
        raise HeedError(f"{address}: cannot be fetched ({error.reason}); {TRY_AGAIN}.") from None
    except (*NETWORK_FAULTS, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise HeedError(
            f"{name}: no such file or folder here, and {_endpoint()} cannot be reached ({why}); try again later, set "
            "HF_ENDPOINT to a mirror, or download the model's files elsewhere into a folder and name that folder."
        ) from None
    try:
        found = json.loads(content) if len(content) <= MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HeedError(f"{address}: the answer is not the hub's JSON; check HF_ENDPOINT.")
    return {key: found.get(key) for key in ("sha", "gated", "cardData", "siblings")}


def _commit(listing: dict[str, Any], model: HubModel) -> str:
    commit = listing.get("sha")
    if not (isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit)):
        raise HeedError(f"{model.repository}: the hub gives {shown(commit)} as its commit, expected 40 hex digits.")
    return commit


def _licence(listing: dict[str, Any]) -> str:
    card = listing.get("cardData")
    found = card.get("license") if isinstance(card, dict) else None
    return found if isinstance(found, str) else "none"


def _files(listing: dict[str, Any], model: HubModel) -> list[HubFile]:
    """The files that an import reads, in a fixed order. HeedError if one has no hash, or there are no weights."""
    found: dict[str, HubFile] = {}
    siblings = listing.get("siblings")
    for entry in siblings if isinstance(siblings, list) else []:
        name = entry.get("rfilename") if isinstance(entry, dict) else None
        if name in (*WEIGHTS, *OTHERS):
            found[name] = _file(entry, name, model)
    weights = next((name for name in WEIGHTS if name in found), None)
    if weights is None or "config.json" not in found:
        raise HeedError(
            f"{model.repository}@{model.revision}: has no config.json with {' or '.join(WEIGHTS)}; Heed imports "
            "MarianMTModel, such as OPUS-MT's models."
        )
    return [found[name] for name in (*OTHERS, weights) if name in found]


def _file(entry: dict[str, Any], name: str, model: HubModel) -> HubFile:
    lfs = entry.get("lfs")
    large = lfs if isinstance(lfs, dict) else {}
    n_bytes, sha256, git_blob = large.get("size", entry.get("size")), large.get("sha256"), entry.get("blobId")
    bound = MAX_LARGE_BYTES if large else MAX_SMALL_BYTES
    hash_fits = _is_hex(sha256, 64) if large else _is_hex(git_blob, 40)
    if not (isinstance(n_bytes, int) and 0 <= n_bytes <= bound and hash_fits):
        raise HeedError(f"{model.repository}: the hub gives no size and hash of {name}; nothing was fetched.")
    return HubFile(name, n_bytes, sha256, None if large else git_blob)


def _is_hex(value: object, n_digits: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{n_digits}}}", value) is not None
