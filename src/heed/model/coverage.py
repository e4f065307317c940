"""Which networks a backend or another program implements, by their settings and, of a module, by what it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heed.model.architecture import Architecture

# Of a setting's value: whether it is covered, or what it is called in place of "name = value".
Answer = bool | str


@dataclass(frozen=True)
class Coverage:
    """The parts of the network that a backend or another program implements.

    settings: each of Architecture's, with the answer for each value (`...`: for all others), or True for any value.
    """

    settings: Mapping[str, Mapping[Any, Answer] | bool]

    def missing(self, model: Any) -> str | None:
        """None if all of this network is implemented; else the first thing that is not, to follow "has"."""
        from heed.model.changes import find_change  # PyTorch's modules

        arch = getattr(model, "arch", None)
        if type(arch) is not Architecture:
            return f"settings of another class, {type(arch).__name__}"
        return self.missing_setting(arch) or find_change(model, arch)

    def missing_setting(self, arch: Architecture) -> str | None:
        """What `missing` returns for the network that these settings describe."""
        for name in Architecture.model_fields:
            answers, value = self.settings.get(name, {}), getattr(arch, name)
            if isinstance(answers, bool):
                answer: Answer = answers
            else:
                answer = answers.get(value, answers.get(..., False))
            if answer is not True:
                return answer or f"{name} = {value}"
        return None
