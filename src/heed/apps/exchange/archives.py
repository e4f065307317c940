"""Zip archives of weights, whose writers nobody knows."""

import zipfile
from pathlib import Path

from heed.config import reason
from heed.errors import HeedError
from heed.runtime.reading import regular_file

MAX_EXPANSION = 20  # times the size of a compressed archive: more is an attack


def check_expansion(path: Path) -> None:
    """HeedError if the archive is damaged, or would fill the memory: no more is read than its directory says.

    Whoever reads a member must ask for as many bytes as `file_size` says; only a member that is stored or deflated then
    gives no more.
    """
    try:
        with regular_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises half a dozen kinds for a damaged file
        raise HeedError(f"{path}: damaged or no archive ({reason(error)}).") from None
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members):
        raise HeedError(f"{path}: compressed in another way than archives of weights are.")
    if len({info.filename.lower() for info in members}) < len(members):  # some readers do not tell a from A
        raise HeedError(f"{path}: damaged: two members have the same name.")
    expanded = sum(info.file_size for info in members)
    if expanded > MAX_EXPANSION * path.stat().st_size:
        raise HeedError(f"{path}: would expand to {expanded:,} bytes.")
