"""A page of the paper's results: Markdown and its plots, printed or written into a folder."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed.config import HeedError
from heed.files import whole_file


@dataclass(frozen=True)
class Page:
    """name: of its file, without .md. plots: by file name, what draws them on a matplotlib figure."""

    name: str
    text: str
    plots: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Writes NAME.md and its plots; returns the former's path. HeedError if matplotlib is not installed."""
        path = folder / f"{self.name}.md"
        for name, draw in self.plots.items():
            with whole_file(folder / name) as temporary:
                draw_plot(draw, temporary)
        with whole_file(path) as temporary:
            temporary.write_text(self.text, encoding="utf-8")
        return path


def prose(text: str) -> str:
    """A paragraph, its lines filled."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def draw_plot(draw: Callable[[Any], None], path: Path) -> None:
    """Saves what `draw` puts on a figure, as SVG, the same bytes each time."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise HeedError('plots need matplotlib: pip install "heed[plots]".') from None
    with matplotlib.rc_context(
        {"svg.hashsalt": "heed", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        draw(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
