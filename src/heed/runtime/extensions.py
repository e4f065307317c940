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
    return {entry_point.name: entry_point for entry_point in entry_points(group=group)}


def provider(group: Group, name: str) -> str:
    """The package that offers an entry point, with its version. HeedError if none does, or more than one."""
    offered = entry_points(group=group, name=name)
    packages = [
        f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else entry_point.module
        for entry_point in offered
    ]
    if not packages:
        raise HeedError(f"{name}: no installed package offers it (entry points {group}).")
    if len(packages) > 1:
        raise HeedError(
            f"{name}: the packages {' and '.join(sorted(packages))} both offer it (entry points {group}); uninstall "
            "all but one."
        )
    return packages[0]


def extension(group: Group, name: str) -> Any:
    """The object of an entry point. HeedError as `provider` raises it, or if its package cannot be imported."""
    package = provider(group, name)
    try:
        return installed(group)[name].load()
    except Exception as error:  # whatever that package raises
        message = " ".join(str(error).split())
        raise HeedError(
            f"{name}: the package {package} cannot be loaded ({type(error).__name__}: {message})."
        ) from None
