"""Builds the packages of a release in dist/, from a copy of the files that git knows.

    python -m release.packages

There are three: the source, a wheel for any system, which compiles its kernels when they are first used, and a wheel
for Linux on x86-64 with compiled kernels, where this is such a system with g++.
"""

import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from heed.runtime.instruction_sets import architecture
from heed.runtime.process_tuning import torch_folder
from release.address import PROJECT, fill_in, project_url, with_absolute_links
from release.kernels import COMPILER, OLDEST_LIBC, compile_all, needed_libc

DIST = PROJECT / "dist"
KERNELS = PROJECT / "build" / "kernels"  # kept from one build to the next
FILES = ("src", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md")
BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def build_all(dist: Path = DIST) -> list[Path]:
    """The packages, in a folder that holds nothing else afterwards."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        copy_source(source, project_url())
        sdist, wheel = (build(kind, source, dist) for kind in ("build_sdist", "build_wheel"))
        fix_times(sdist)
        packages = [sdist, wheel]
        if platform.system() == "Linux" and architecture() == "x86_64" and shutil.which(COMPILER):
            packages.append(with_kernels(wheel, compile_all(KERNELS), Path(name)))
    return packages


def copy_source(target: Path, url: str) -> None:
    """The files that packages are built from, with the project's address."""
    listed = subprocess.run(["git", "ls-files", "-z", *FILES], cwd=PROJECT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, target / name)
    fill_in(target, url)
    readme = target / "README.md"
    readme.write_text(with_absolute_links(readme.read_text(encoding="utf-8"), url, version()), encoding="utf-8")


def version() -> str:
    with (PROJECT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def build(kind: str, source: Path, dist: Path) -> Path:
    """A package, by the build backend: build_sdist or build_wheel."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": committed_at()}
    command = [sys.executable, "-c", BUILD, kind, str(dist)]
    done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{kind} failed:\n{done.stdout[-2000:]}")
    return dist / done.stdout.split()[-1]


def fix_times(sdist: Path) -> None:
    """Packs the source again without the times and the user of this build, which setuptools keeps."""
    when = int(committed_at())
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in old:
            content = old.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = when, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, content)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=when))


def committed_at() -> str:
    """When the commit was made that is built, so that the same commit gives the same files."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()


def with_kernels(wheel: Path, libraries: Sequence[Path], scratch: Path) -> Path:
    """A wheel for Linux on x86-64 beside one for any system."""
    run_wheel("unpack", "--dest", scratch / "unpacked", wheel)
    (unpacked,) = (scratch / "unpacked").iterdir()
    folder = unpacked / "heed" / "backends" / "cpu" / "prebuilt"
    folder.mkdir()
    for library in [*libraries, openmp_library()]:
        shutil.copy(library, folder)
        os.utime(folder / library.name, (int(committed_at()),) * 2)
    (about,) = unpacked.glob("*.dist-info/WHEEL")
    text = about.read_text(encoding="utf-8").replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    tag = f"py3-none-manylinux_{OLDEST_LIBC[0]}_{OLDEST_LIBC[1]}_x86_64"
    about.write_text(re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", text), encoding="utf-8")
    run_wheel("pack", "--dest-dir", wheel.parent, unpacked)
    (packed,) = wheel.parent.glob(f"*-{tag}.whl")
    return packed


def openmp_library() -> Path:
    """GCC's OpenMP library, for systems without it and without PyTorch: PyTorch's, whose wheels run on as old ones."""
    torch = torch_folder()
    assert torch is not None, "as in every environment that builds packages"
    (found,) = (torch / "lib").glob("libgomp*.so*")
    if needed_libc(found) > OLDEST_LIBC:
        raise ValueError(f"{found} needs a newer C library than the wheel's tag says.")
    return found


def run_wheel(*words: object) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": committed_at()}
    command = [sys.executable, "-m", "wheel", *map(str, words)]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    for package in build_all():
        print(f"{package.relative_to(PROJECT)}: {package.stat().st_size / 2**20:.1f} MiB")
