"""A page of the paper's results: Markdown and its plots, printed or written into a folder."""

import base64
import html
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heed.apps.visualization.render import write_picture
from heed.errors import HeedError
from heed.runtime.files import whole_file
from heed.runtime.reading import read_bounded
from heed.text.printable import printable

MADE_BY = re.compile(rb"\nMade by `heed paper [^\n]*`\.\n\Z")  # how every page ends
DRAWN_BY = b"<dc:title>Matplotlib v"  # in every plot
MAX_PAGE_BYTES = 2**26


HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>heed paper: {title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ padding: .2em .6em; border-bottom: 1px solid #8884; text-align: left; }}
img {{ max-width: 100%; background: #fff; }}
</style>
{body}</html>
"""


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
        """Writes NAME.md and its plots; returns the former's path.

        HeedError if matplotlib is not installed, or if files of these names are there that Heed did not make.
        """
        path = folder / f"{self.name}.md"
        check_pages(folder, [self.name])
        for name in self.plots:
            if os.path.lexists(folder / name) and not (path.exists() and DRAWN_BY in _content(folder / name)):
                raise _foreign(folder / name)
        made_by = f"\nMade by `{self.command} --out {shlex.quote(printable(str(folder)))}`.\n"
        with whole_file(path) as temporary:  # before the plots: beside it they are known as Heed's
            temporary.write_text(self.text + made_by, encoding="utf-8")
        for name, draw in self.plots.items():
            write_picture(folder / name, draw)
        return path

    def write_html(self, path: Path) -> Path:
        """Writes one file with the page and its plots, which uses no network; returns its path."""
        from markdown_it import MarkdownIt

        made_by = f"\nMade by `{self.command} --out {shlex.quote(printable(str(path)))}`.\n"
        # What strangers wrote cannot be HTML: the renderer escapes it, and the policy lets no script run.
        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.text + made_by)
        with TemporaryDirectory() as folder:
            for name, draw in self.plots.items():
                plot = Path(folder) / name
                write_picture(plot, draw)
                data = base64.b64encode(plot.read_bytes()).decode("ascii")
                body = body.replace(f'src="{name}"', f'src="data:image/svg+xml;base64,{data}"')
        with whole_file(path) as temporary:
            temporary.write_text(HTML.format(title=html.escape(self.name), body=body), encoding="utf-8")
        return path


def check_pages(folder: Path, names: Iterable[str]) -> None:
    """HeedError if a file has the name of one of these pages or of its plots, but `heed paper` did not make it."""
    for name in names:
        path = folder / f"{name}.md"
        if os.path.lexists(path) and not MADE_BY.search(_content(path)):
            raise _foreign(path)
        for plot in folder.glob(f"{name}-*.svg"):
            if not (path.exists() and DRAWN_BY in _content(plot)):
                raise _foreign(plot)


def _content(path: Path) -> bytes:
    """Returns the bytes of a page or a plot; nothing if it cannot be one."""
    try:
        return read_bounded(path, MAX_PAGE_BYTES)
    except HeedError:
        return b""


def _foreign(path: Path) -> HeedError:
    return HeedError(f"{path}: not made by `heed paper`, which would replace it; choose another --out.")


def command(name: str, **options: Any) -> str:
    """`heed paper NAME` with these options; None, False and empty ones are left out."""
    words = ["heed", "paper", name]
    for option, value in options.items():
        if value is not None and value is not False and value != []:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{option}"] if each is True else [f"--{option}", str(each)]
    return shlex.join(map(printable, words))  # the name of a file need be no text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (header, *rows))
    return [first, "|" + "---|" * len(header), *others]


def plain(value: object) -> str:
    """Markdown that shows a name or a value, which a stranger may have written, and does nothing else."""
    return re.sub(r"[\\`*\[\]<>|]", r"\\\g<0>", printable(str(value)))


def code(value: object) -> str:
    """Returns Markdown that shows the value as code."""
    text = printable(str(value)).replace("`", "\\x60")
    return f"`{text}`"


def prose(text: str) -> str:
    """A paragraph, its lines filled."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)
