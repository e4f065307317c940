"""A page of the paper's results: Markdown and its plots, printed or written into a folder."""

import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed.files import whole_file
from heed.visualization.render import save_figure


@dataclass(frozen=True)
class Page:
    """name: of its file, without .md. plots: by file name, what draws them on a matplotlib figure.

    command: the `heed paper` command that makes it, but for --out. missing: what is not measured yet, each with its
    command, for the index.
    """

    name: str
    text: str
    command: str
    plots: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)
    missing: Sequence[str] = ()

    def write(self, folder: Path) -> Path:
        """Writes NAME.md and its plots; returns the former's path. HeedError if matplotlib is not installed."""
        path = folder / f"{self.name}.md"
        for name, draw in self.plots.items():
            with whole_file(folder / name) as temporary:
                save_figure(draw, temporary, kind="svg")
        made_by = f"\nMade by `{self.command} --out {shlex.quote(str(folder))}`.\n"
        with whole_file(path) as temporary:
            temporary.write_text(self.text + made_by, encoding="utf-8")
        return path


def command(name: str, **options: Any) -> str:
    """`heed paper NAME` with these options; None, False and empty ones are left out."""
    words = ["heed", "paper", name]
    for option, value in options.items():
        if value is not None and value is not False and value != []:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{option}"] if each is True else [f"--{option}", str(each)]
    return shlex.join(words)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (header, *rows))
    return [first, "|" + "---|" * len(header), *others]


def prose(text: str) -> str:
    """A paragraph, its lines filled."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)
