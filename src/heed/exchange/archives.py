"""Zip archives of weights, whose writers nobody knows."""

import zipfile
from pathlib import Path

from heed.config import SHOWN, cut
from heed.errors import HeedError
from heed.runtime.files import regular_file

MAX_EXPANSION = 20  # times the size of a compressed archive: more is an attack


def check_expansion(path: Path) -> None:
    """HeedError if the archive is damaged, or would fill the memory: no more is read than its directory says."""
    try:
        with regular_file(path) as file, zipfile.ZipFile(file) as archive:
            expanded = sum(info.file_size for info in archive.infolist())
    except Exception as error:  # zipfile raises half a dozen kinds for a damaged file
        raise HeedError(f"{path}: damaged or no archive ({cut(' '.join(str(error).split()), 4 * SHOWN)}).") from None
    if expanded > MAX_EXPANSION * path.stat().st_size:
        raise HeedError(f"{path}: would expand to {expanded:,} bytes.")
