"""Installs the packages in dist/ in fresh environments and uses them there, away from this checkout.

    python -m release.trial [--python 3.13] [--torch torch==2.13.0]

Each package is tried on every Python at hand that pyproject.toml names, found on PATH or where pyenv keeps them: two
text files are trained on for a few steps, a line is translated, and an extra is added as the message about it says.
The wheel with kernels is tried where no compiler can be found; the others, where one can, compile theirs. The cache is
empty each time.

PyTorch is the build for CPUs unless --torch names one. For a Python for which no such build is at hand, Heed is
installed without PyTorch and used for what needs none, and its line says so.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.text.numbers import english, german, number_splits
from release.address import PROJECT
from release.packages import DIST

TORCH = "torch==2.13.0+cpu"
MODEL = PROJECT / "tests" / "golden" / "models" / "byte-pairs"
SMALL = ("tokenizer.vocab_size=600", "model.n_layers=1", "model.d_model=64", "model.d_ff=64", "training.max_steps=6")
NAMES = ("PATH", "PYTHONPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")  # variables that could lead back here


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment and the variables of a process in it."""

    folder: Path
    place: Path  # where commands run: outside the checkout, with text to train on
    has_compiler: bool

    def run(self, *words: object, stdin: str = "") -> str:
        """What a program of the environment prints. RuntimeError with its messages if it fails."""
        programs = self.folder / "bin"
        variables = {name: value for name, value in os.environ.items() if name not in NAMES}
        variables["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}" if self.has_compiler else str(programs)
        variables["XDG_CACHE_HOME"] = variables["XDG_CONFIG_HOME"] = str(self.folder / "cache")
        command = [str(programs / str(words[0])), *map(str, words[1:])]
        done = subprocess.run(command, cwd=self.place, env=variables, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        return done.stdout

    def pip(self, *words: object) -> None:
        """Installs with pip, whose variables and settings are the user's own."""
        command: list[object] = [
            self.folder / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            *words,
        ]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip install {' '.join(map(str, words))}\n{done.stderr[-3000:]}")


def pythons(wanted: Sequence[str]) -> dict[str, Path]:
    """The Pythons at hand, of the versions that pyproject.toml names."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (\d+\.\d+)", "\n".join(project["classifiers"]))
    found = {}
    for version in named:
        for program in _candidates(version):
            asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([program, "-c", asked], capture_output=True, text=True)
            if done.stdout.strip() == version and (not wanted or version in wanted):
                found[version] = program
                break
    return found


def _candidates(version: str) -> Iterator[Path]:
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    yield from kept
    if program := shutil.which(f"python{version}"):
        yield Path(program)


def torch_installer(program: Path) -> list[str] | None:
    """The command that installs PyTorch's build for CPUs for this Python, but for the name of an environment.

    pip's where it has the build, as from a folder of wheels; else uv's, which knows where PyTorch keeps it. None if
    neither has it.
    """
    with tempfile.TemporaryDirectory() as folder:
        download = [
            str(program),
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            folder,
            TORCH,
        ]
        if subprocess.run(download, capture_output=True).returncode == 0:
            return ["pip", TORCH]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    install = [uv or "", "pip", "install", "--quiet", "--torch-backend=cpu", TORCH.removesuffix("+cpu")]
    if uv and subprocess.run([*install, "--dry-run", "--python", str(program)], capture_output=True).returncode == 0:
        return install
    return None


def try_package(package: Path, program: Path, torch: list[str] | None, scratch: Path) -> str:
    """Installs and uses a package; returns what was seen."""
    folder = scratch / "environment"
    scratch.mkdir()
    subprocess.run([program, "-m", "venv", folder], check=True)
    environment = Environment(folder, scratch / "place", has_compiler="manylinux" not in package.name)
    environment.place.mkdir()
    try:
        seen = _use(environment, package)
        return seen if torch is None else f"{seen}; {_use_with_torch(environment, package, torch)}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _use(environment: Environment, package: Path) -> str:
    """Without PyTorch: translates where there are kernels."""
    environment.pip(package)
    if "manylinux" in package.name or environment.has_compiler:
        translated = environment.run("heed", "translate", MODEL, stdin="seven\n\nnine\n")
        if translated.count("\n") != 3:
            raise RuntimeError(f"three lines became {translated!r}")
    said = environment.run("heed", "--version").strip()
    n_recipes = len(json.loads(environment.run("heed", "recipe", "list", "--json")))
    environment.run("python", "-m", "compileall", "-q", next(environment.folder.glob("lib/python*/site-packages/heed")))
    return f"{said}, {n_recipes} recipes, translated without PyTorch"


def _use_with_torch(environment: Environment, package: Path, torch: Sequence[str]) -> str:
    if torch[0] == "pip":
        environment.pip(*torch[1:])
    else:
        subprocess.run([*torch, "--python", environment.folder / "bin" / "python"], check=True)
    environment.pip(f"{package}[train]")
    kernels = json.loads(environment.run("heed", "doctor", "--json"))["kernels"]
    if not environment.has_compiler and kernels["origin"] != "came with Heed":
        raise RuntimeError(f"the kernels did not come with Heed: {kernels}")
    numbers = number_splits(n_train=300, n_dev=10, n_test=3).train
    for suffix, words in (("en", english), ("de", german)):
        text = "".join(f"{words(number)}\n" for number in numbers)
        (environment.place / f"numbers.{suffix}").write_text(text, encoding="utf-8")
    settings = [part for setting in SMALL for part in ("--set", setting)]
    environment.run("heed", "train", "--src", "numbers.en", "--tgt", "numbers.de", "--run", "runs/first", *settings)
    translated = environment.run("heed", "translate", "runs/first/model", stdin="forty-two\n\nseven\n")
    if translated.count("\n") != 3:
        raise RuntimeError(f"three lines became {translated!r}")
    _add_what_is_missing(environment, "heed", "attention", "runs/first/model", "seven", "--out", "heads.svg")
    return f"with it trained, translated and drawn; {kernels['state']}, {kernels['origin']}"


def _add_what_is_missing(environment: Environment, *words: str) -> None:
    """Runs a command that needs an extra, does what its message says, and runs it again."""
    try:
        environment.run(*words)
    except RuntimeError as error:
        advice = re.search(r"pip install '(heed-mt\[\w+\])'", str(error))
        if advice is None:
            raise
        environment.pip(advice[1])
        environment.run(*words)
    else:
        raise RuntimeError(f"{' '.join(words)} needed no extra; a command that needs one belongs here")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION", help="default: all at hand")
    parser.add_argument("--torch", default=None, metavar="REQUIREMENT", help=f"default: {TORCH}, where there is one")
    arguments = parser.parse_args()
    packages = sorted(DIST.glob("heed_mt-*"))
    if not packages:
        sys.exit("dist/ holds no packages: make package builds and tries them.")
    found = pythons(arguments.python)
    print(f"Pythons at hand: {', '.join(found) or 'none'}", flush=True)
    failed = not found
    for version, program in found.items():
        torch = ["pip", arguments.torch] if arguments.torch else torch_installer(program)
        for package in packages:
            started = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="heed-trial-") as scratch:
                try:
                    seen = try_package(package, program, torch, Path(scratch) / version)
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    seen, failed = f"FAILED: {error}", True
            print(f"Python {version}, {package.name}: {seen} ({time.monotonic() - started:.0f} s)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
