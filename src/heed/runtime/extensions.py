"""Extensions by other installed packages, found by entry points.

A package's pyproject.toml names them, for example

    [project.entry-points."heed.networks"]
    GatedTransformer = "gated.network:GatedTransformer"

Only a name is ever taken from a file of settings or a model folder; the code comes from packages that are installed.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from heed.errors import HeedError

Group = Literal["heed.networks", "heed.schedules", "heed.formats"]


def installed(group: Group) -> dict[str, EntryPoint]:
    """The entry points of a group by name, not yet imported."""
    return {found.name: found for found in entry_points(group=group)}


def extension(group: Group, name: str) -> Any:
    """The object of an entry point. HeedError if there is none of this name, or if its package cannot be imported."""
    found = installed(group).get(name)
    if found is None:
        raise HeedError(f"{name}: no installed package offers it (entry points {group}).")
    try:
        return found.load()
    except Exception as error:  # whatever that package raises
        package = found.dist.name if found.dist else found.module
        message = " ".join(str(error).split())
        raise HeedError(
            f"{name}: the package {package} cannot be loaded ({type(error).__name__}: {message})."
        ) from None
