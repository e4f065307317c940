"""Prints the lowest versions that pyproject.toml allows, as pip's constraints: make lowest installs and tests these."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1]
EXTRAS = ("train", "tensorboard", "exchange", "plots")  # what a user may install; dev holds tools
INSTALLED_BEFORE = {"torch"}  # as the Makefile installs it for this machine


def pins() -> Iterator[str]:
    """name==version of every dependency and every package of the extras."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]:
        requirement = Requirement(line)
        [lowest] = [one.version for one in requirement.specifier if one.operator == ">="]
        if requirement.name not in INSTALLED_BEFORE:
            yield f"{requirement.name}=={lowest}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{pin}\n" for pin in dict.fromkeys(pins()))
