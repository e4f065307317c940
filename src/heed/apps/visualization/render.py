"""Attention drawn as the paper does: two columns of words, a line for each weight, a colour for each head."""

import base64
import json
import re
import warnings
from collections.abc import Callable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from heed.apps.visualization.trace import VIEWS, Attention, AttentionTrace
from heed.config import cut
from heed.errors import HeedError
from heed.runtime.files import whole_file
from heed.text.printable import JOINERS, printable

# Eight that stay apart for most eyes (Okabe and Ito 2008), then lighter ones.
PAGES = resources.files("heed") / "apps" / "visualization"
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#000000",
    "#7fb8d8", "#eaae7f", "#7fceb9", "#e5bcd3", "#f2cf7f", "#aad9f4", "#c5aaa5", "#7f7f7f",
)  # fmt: skip
FAINTEST = 0.01  # a weight below is not drawn
ROW, BETWEEN, LETTER = 0.22, 1.5, 0.085  # inches between words, between the columns, of a letter
LONGEST = 100  # letters of a word in a picture, whose width follows the longest


def draw(figure: Any, attention: Attention, *, layer: int, heads: Sequence[int], word: int | None = None) -> None:
    """On a matplotlib figure: the lines of these heads (counted from 0) of one layer, from one word or from all."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    queries, keys = ([_drawable(word) for word in words] for words in (attention.queries, attention.keys))
    n_rows = max(len(queries), len(keys))
    longest = max(map(len, (*queries, *keys)))
    margin = max(1.2, LETTER * longest / BETWEEN)  # in widths of the middle
    figure.set_layout_engine("none")
    figure.set_size_inches(BETWEEN * (1 + 2 * margin), ROW * (n_rows + 2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-margin, 1 + margin), ylim=(n_rows - 0.3, -1.9))
    axes.axis("off")
    style: Any = {"va": "center", "fontsize": 9, "parse_math": False}  # a word may hold $
    for i, text in enumerate(queries):
        axes.text(-0.03, i, text, ha="right", weight="bold" if i == word else None, **style)
    for j, text in enumerate(keys):
        axes.text(1.03, j, text, ha="left", **style)
    for place, head in enumerate(heads):  # which colour is which head
        x = 0.5 + (place - (len(heads) - 1) / 2) * LETTER * 2.5 / BETWEEN
        axes.text(x, -1.3, str(head + 1), ha="center", weight="bold", color=COLOURS[head % len(COLOURS)], **style)
    lines, colours = [], []
    for head in heads:
        weights = attention.weights[layer, head]
        for i, j in zip(*np.nonzero(weights >= FAINTEST), strict=True):
            if word is None or i == word:
                lines.append([(0, i), (1, j)])
                # A little stronger than the weight: one of a tenth is still seen.
                colours.append(to_rgba(COLOURS[head % len(COLOURS)], min(1.0, float(weights[i, j])) ** 0.7))
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=1.5))


def _drawable(word: str) -> str:
    """The word, cut if it is long, with escapes for what cannot be drawn, such as control characters."""
    return printable(cut(word, LONGEST), kept=JOINERS)


def write_picture(path: Path, drawing: Callable[[Any], None]) -> None:
    """Writes what `drawing` puts on a matplotlib figure as .svg or .png, the same bytes each time.

    HeedError if matplotlib is missing.
    """
    require_matplotlib()
    kind = path.suffix[1:]
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": "heed",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with whole_file(path) as temporary, matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        drawing(figure)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        # An .svg names its letters; whoever shows it has the fonts.
        if kind != "svg" and any("missing from" in str(warning.message) for warning in caught):
            raise HeedError("no font here has all characters of this text: write an .svg or .html file instead.")


def require_matplotlib() -> None:
    """HeedError if it is not installed: to be known before long work."""
    if find_spec("matplotlib") is None:
        raise HeedError("pictures need matplotlib: pip install 'heed-mt[plots]'.")


def write_page(path: Path, trace: AttentionTrace) -> None:
    """One HTML file in which a reader picks view, layer, heads and word; it needs no network."""
    views = {}
    for name in VIEWS:
        attention = trace.view(name)
        eighths = np.round(attention.weights * 255).astype(np.uint8)
        views[name] = {
            "queries": attention.queries,
            "keys": attention.keys,
            "layers": eighths.shape[0],
            "heads": eighths.shape[1],
            "weights": base64.b64encode(eighths.tobytes()).decode(),
        }
    data = {"source": trace.source, "target": trace.target, "colours": COLOURS, "views": views}
    # In HTML "</script" would end the data, and "<!-- <script" would make the rest of the page a part of it.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    with whole_file(path) as temporary:
        temporary.write_text(page_of(PAGES).replace("{{ data }}", text), encoding="utf-8")


def page_of(folder: Traversable) -> str:
    """A folder's page.html, with each style and script that it names: the folder's own, or one of the drawing."""

    def part(match: re.Match[str]) -> str:
        file = folder / match[1]
        return (file if file.is_file() else PAGES / match[1]).read_text(encoding="utf-8")

    return re.sub(r"\{\{ (\w+\.(?:css|js)) \}\}\n?", part, (folder / "page.html").read_text(encoding="utf-8"))
