"""The packages of the extra `cluster`, each imported where it is used first."""

import importlib
from typing import Any

from heed.errors import HeedError


def needed(name: str, purpose: str) -> Any:
    """The module. HeedError that says what it is for and how to install it; purpose: such as "Parquet is read with"."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise HeedError(f"{purpose} {package}, which is not installed: pip install 'heed-mt[cluster]'.") from None
