"""Prints the files of a release with their hashes, and what has to be done before and after it is published.

    python -m release.checklist

Publishes nothing. Ends with exit status 1 if something that can be checked here is not as it must be. A release without
an address is possible.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from release.address import PROJECT, project_url
from release.packages import DIST, version

BY_HAND = (
    "make test and make soak have passed on this commit; the rows of docs/lab/soak.md are committed",
    "README.md, CHANGELOG.md and docs/reference/compatibility.md say what this version is",
    "git tag v{version}, signed; push the tag",
    "dist/* uploaded to PyPI by hand, from this folder, with the hashes above",
    "pip install heed-mt=={version} in a fresh environment elsewhere; heed doctor; heed demo",
    "a release at the project's address: the changelog's section, the files, their hashes",
    "CHANGELOG.md and pyproject.toml opened for the next version",
)


def checks() -> dict[str, bool]:
    """What can be checked here."""
    number, changelog, citation = version(), _text("CHANGELOG.md"), _text("CITATION.cff")
    names = [path.name for path in DIST.glob("*")]
    return {
        "everything is committed": not _git("status", "--porcelain"),
        f"the version {number} is not one in preparation": bool(re.fullmatch(r"\d+\.\d+\.\d+", number)),
        f"CHANGELOG.md has a section {number}": f"\n## {number}\n" in changelog,
        f"CITATION.cff has version {number}": f"\nversion: {number}\n" in citation,
        "no tag of this version exists yet": not _git("tag", "--list", f"v{number}"),
        "dist/ has the source, a wheel for any system, and one with kernels": all(
            any(name.endswith(end) for name in names) for end in (".tar.gz", "-any.whl", "_x86_64.whl")
        ),
        "all packages are of this version": all(name.startswith(f"heed_mt-{number}") for name in names),
    }


def main() -> None:
    print("\nFiles")
    for path in sorted(DIST.glob("*")):
        print(f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(PROJECT)}")
    found = checks()
    print(f"\nChecked here, on commit {_git('rev-parse', '--short', 'HEAD')}")
    for what, holds in found.items():
        print(f"  [{'x' if holds else ' '}] {what}")
    print(f"  the project's address: {project_url() or 'none (HEED_PROJECT_URL, or tool.heed in pyproject.toml)'}")
    print("\nBy hand")
    for what in BY_HAND:
        print(f"  [ ] {what.format(version=version())}")
    sys.exit(not all(found.values()))


def _text(name: str) -> str:
    path = Path(PROJECT, name)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
