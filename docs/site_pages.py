"""Hooks of the site (mkdocs.yml): pages of the repository's root become pages of the site, links follow them.

The pages in docs/ link to each other and to the root as GitHub shows them. A link to a file that the site does not have
becomes plain text.
"""

import re
from os.path import dirname, normpath, relpath
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
WIDE_PAGES = ("results.md",)  # their tables take the space of the lists beside the text


def on_files(files: Files, config: Any) -> Files:
    for name in ROOT_PAGES:
        files.append(File.generated(config, f"project/{name}", content=(PROJECT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    if uri in WIDE_PAGES:
        page.meta["hide"] = ["navigation", "toc"]
    here = uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}"

    def moved(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, mark, heading = target.partition("#")
        inside = normpath(f"{dirname(here)}/{path}").lstrip("/")
        if inside in ROOT_PAGES:
            site = f"project/{inside}"
        elif inside == "README.md":
            site = "index.md"
        elif inside.startswith("docs/") and files.get_file_from_path(inside.removeprefix("docs/")):
            site = inside.removeprefix("docs/")
        else:
            return str(text)
        return f"[{text}]({relpath(site, dirname(uri) or '.')}{mark}{heading})"

    # Images keep their form: only their "[…](…)" is matched, the "!" before it stays.
    return re.sub(r"\[([^\[\]]*)\]\(([^()\s]+)\)", moved, markdown)
