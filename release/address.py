"""The project's address, written wherever it belongs: pyproject.toml's links, CITATION.cff, the lines that clone.

    python -m release.address

It is the setting `url` of [tool.heed] in pyproject.toml, or HEED_PROJECT_URL. Without one, nothing of it is left.
"""

import os
import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/get-started.md")
CLONE = re.compile(r"<!-- clone -->.*?<!-- /clone -->", re.DOTALL)


def project_url(root: Path = PROJECT) -> str:
    """The address, without a slash at its end, or nothing. ValueError if it is not one of the web."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["heed"]
    url = str(os.environ.get("HEED_PROJECT_URL") or settings["url"]).rstrip("/")
    if url and not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise ValueError(f"{url}: expected an address such as https://example.org/heed/heed.")
    return url


def fill_in(root: Path, url: str) -> None:
    """Writes the address into the files of a checkout or of a copy; an empty one is taken out."""
    changes = {"pyproject.toml": in_pyproject, "CITATION.cff": in_citation, **dict.fromkeys(PAGES, in_page)}
    for name, change in changes.items():
        path = root / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if (after := change(before, url)) != before:  # an unchanged pyproject.toml keeps its time, which make goes by
            path.write_text(after, encoding="utf-8")


def in_pyproject(text: str, url: str) -> str:
    text = re.sub(r"(?m)^\[project\.urls\]\n(?:.+\n)*\n?", "", text)
    if not url:
        return text
    links = {"Homepage": "", "Repository": "", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    table = "".join(f'{name} = "{url}{path}"\n' for name, path in links.items())
    return text.replace("[project.scripts]\n", f"[project.urls]\n{table}\n[project.scripts]\n", 1)


def in_citation(text: str, url: str) -> str:
    text = re.sub(r"(?m)^repository-code: .*\n", "", text)
    return re.sub(r"(?m)^(license: .*\n)", rf'\g<1>repository-code: "{url}"\n', text, count=1) if url else text


def in_page(text: str, url: str) -> str:
    name = url.rpartition("/")[2].removesuffix(".git")
    lines = f"\n```sh\ngit clone {url}\ncd {name}\n```\n" if url else ""
    return CLONE.sub(lambda _: f"<!-- clone -->{lines}<!-- /clone -->", text)


def with_absolute_links(page: str, url: str, version: str) -> str:
    """A page whose relative links and pictures lead to the repository, for where the page is shown without it."""
    if not url:
        return page
    page = re.sub(r"\]\((?![a-z]+:|#)([^()\s]+)\)", rf"]({url}/blob/v{version}/\g<1>)", page)
    return re.sub(r'(<img [^>]*src=")(?![a-z]+:)', rf"\g<1>{url}/raw/v{version}/", page)


if __name__ == "__main__":
    fill_in(PROJECT, project_url())
