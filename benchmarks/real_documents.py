"""Translates real files of every format, which package registries hold, by models of known behaviour.

    python -m benchmarks.real_documents FOLDER              # fetches and unpacks the packages into FOLDER first
    python -m benchmarks.real_documents FOLDER --files 50   # at most 50 files a format, drawn at random

Of each file: nothing fails but with one line; the model that changes nothing gives a file that it then leaves as it is,
and the same bytes in formats that hold nothing else to change; and what reads the file before reads the result, by
programs that are there: msgfmt -c, epubcheck, ffmpeg, LibreOffice. pip, npm and apt-get fetch the packages by name.
"""

import argparse
import io
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from heed.apps.documents.formats import SUFFIXES, Format
from heed.apps.documents.formats.jobs import document_job
from heed.apps.documents.text.translation import DocumentOptions, Translate, run_job
from heed.errors import HeedError
from heed.text.alignment import Translated

OPTIONS = DocumentOptions(language="en", target="de")
PYTHON = "django sphinx djangorestframework python-pptx odfpy ebooklib pysubs2 formulas pylightxl xlsx2csv"
NPM = """
@docusaurus/theme-translations i18n-iso-countries @n8n/i18n ngx-i18nsupport xliff-simple-merge pdfjs-dist@1.10.100
pptx-automizer xlsx-populate xlsx-template officegen subsrt ass-compiler ass-to-vtt epub2 foliate-js cordova-android
react-native-webview @nativescript/core react-native-image-crop-picker
"""
DEBIAN = """
debian-policy developers-reference developers-reference-de developers-reference-ja debian-history debmake-doc
redmine ruby-devise libreoffice-common gworkspace-common gnustep-gui-common gnumail.app subtitleeditor
"""
# Formats in which a translation may change more than words, such as the name of a language or the state of a text.
FILLED: tuple[Format, ...] = ("po", "xliff", "json", "yaml", "android", "html", "docx", "srt", "epub", "odf")
OFFICE = ["soffice", "--headless", "--convert-to", "pdf", "--outdir", "/tmp"]
READERS = {
    ".po": ["msgfmt", "-c", "-o", "/dev/null"],
    ".epub": ["sh", "-c", 'epubcheck -q "$0"'],
    ".ass": ["ffmpeg", "-v", "error", "-y", "-f", "null", "-", "-i"],
    **{suffix: OFFICE for suffix in (".odt", ".odp", ".ods", ".pptx", ".xlsx")},
}


def unchanged(texts: Sequence[str]) -> list[Translated]:
    return [Translated(text) for text in texts]


def capitals(texts: Sequence[str]) -> list[Translated]:
    return [Translated(text.upper()) for text in texts]


def reversed_words(texts: Sequence[str]) -> list[Translated]:
    return [Translated(" ".join(reversed(text.split(" ")))) for text in texts]


MODELS: dict[str, Translate] = {"same": unchanged, "capitals": capitals, "reversed": reversed_words}


def fetch(folder: Path) -> None:
    """Downloads the packages and unpacks them, each into a folder of its own."""
    packed = folder / "packed"
    packed.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", "."]
    commands = [[*pip, name] for name in PYTHON.split()]
    commands += [["npm", "pack", "--silent", name] for name in NPM.split()]
    commands += [["apt-get", "download", "-qq", name] for name in DEBIAN.split()]
    for command in commands:
        if shutil.which(command[0]) is None or subprocess.run(command, cwd=packed, check=False).returncode:
            print(f"not fetched: {command[-1]}")
    for path in packed.iterdir():
        target = folder / "files" / path.name
        if target.exists():
            continue
        if path.suffix == ".deb":
            subprocess.run(["dpkg", "-x", path, target], check=True)
        elif path.suffix == ".whl":
            zipfile.ZipFile(path).extractall(target)
        else:
            with tarfile.open(path) as package:
                package.extractall(target, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=25)
    arguments = parser.parse_args()
    if not (arguments.folder / "files").exists():
        fetch(arguments.folder)
    by_format: dict[Format, list[Path]] = defaultdict(list)
    for path in sorted((arguments.folder / "files").rglob("*")):
        format = SUFFIXES.get(path.suffix.lower())
        # Any XML and YAML has their suffixes.
        is_other = (format == "android" and not path.parent.name.startswith("values")) or (
            format == "yaml" and path.stem.rpartition(".")[2] != "en"
        )
        if format and not is_other and path.is_file() and not path.is_symlink():
            by_format[format].append(path)
    n_faults = 0
    for format, paths in by_format.items():
        chosen = random.Random(1).sample(paths, min(arguments.files, len(paths)))
        refused, faults = [], list[str]()
        for path in chosen:
            try:
                faults += faults_of(path, format)
            except HeedError as error:
                refused.append(str(error))
        n_faults += len(faults)
        print(f"{format}: {len(chosen)} files, {len(refused)} refused, {len(faults)} faults")
        print(*(f"  refused: {line}" for line in refused), *(f"  FAULT: {line}" for line in faults), sep="\n")
    sys.exit(n_faults > 0)


def faults_of(path: Path, format: Format) -> list[str]:
    """What is wrong with a file's translations. HeedError if the file is refused."""
    content = path.read_bytes()

    def translated(content: bytes, translate: Translate) -> bytes:
        return run_job(document_job(content, format, OPTIONS, name=path.name), translate)

    faults = []
    is_read = reads(path)
    for name, translate in MODELS.items():
        found = translated(content, translate)
        if name == "same" and translated(found, unchanged) != found:
            faults.append(f"{path}: changes again")
        if name == "same" and format not in FILLED and parts(found) != parts(content):
            faults.append(f"{path}: changes with the same words")
        result = Path("/tmp") / f"heed-real-document{path.suffix.lower()}"
        result.write_bytes(found)
        # LibreOffice takes seconds.
        if is_read and (name == "reversed" or READERS.get(result.suffix) is not OFFICE) and not reads(result):
            faults.append(f"{path}: {name}: {READERS[result.suffix][0]} does not read it")
    return faults


def parts(content: bytes) -> list[tuple[str, bytes]] | bytes:
    """The files of a package; else the content."""
    if not content.startswith(b"PK"):
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        return [(name, package.read(name)) for name in package.namelist()]


def reads(path: Path) -> bool:
    """Whether the format's own program reads a file; True without one."""
    command = READERS.get(path.suffix.lower())
    if command is None or shutil.which(command[0]) is None:
        return True
    return subprocess.run([*command, path], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
