"""How Heed starts Python: a new process imports modules from where this one does, never from the current folder."""

import os
import sys
from contextlib import suppress
from pathlib import Path

HOME = str(Path(__file__).parents[2])  # the folder that holds Heed


def python_command(*arguments: str) -> list[str]:
    """The command that runs this Python; -P, so that a json.py of the folder that it starts in is only a file."""
    return [sys.executable, "-P", *arguments]


def python_environment(**variables: str) -> dict[str, str]:
    """This process's environment, with `variables` and this process's folders of modules.

    The current folder is one of them only if PYTHONPATH names it, or if Heed lies there.
    """
    chosen = {HOME, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    here = ""
    with suppress(OSError):  # it was deleted
        here = os.getcwd()
    folders = [folder for folder in sys.path if os.path.isabs(folder) and (folder != here or folder in chosen)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | variables
