"""A page of the paper's results: Markdown and its plots, printed or written into a folder."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed.files import whole_file
from heed.visualization.render import save_figure


@dataclass(frozen=True)
class Page:
    """name: of its file, without .md. plots: by file name, what draws them on a matplotlib figure.

    missing: what is not measured yet, each with its command, for the index.
    """

    name: str
    text: str
    plots: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    missing: Sequence[str] = ()

    def write(self, folder: Path) -> Path:
        """Writes NAME.md and its plots; returns the former's path. HeedError if matplotlib is not installed."""
        path = folder / f"{self.name}.md"
        for name, draw in self.plots.items():
            with whole_file(folder / name) as temporary:
                save_figure(draw, temporary, kind="svg")
        with whole_file(path) as temporary:
            temporary.write_text(self.text, encoding="utf-8")
        return path


def prose(text: str) -> str:
    """A paragraph, its lines filled."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)
