"""Recipes, documents and programs of other languages that tests read, one a file."""

from pathlib import Path

FOLDER = Path(__file__).parent


def sample(name: str) -> str:
    """The text of a file of this folder, with the line ends that it has."""
    return (FOLDER / name).read_bytes().decode()
