"""Runs a target for some time, guided by coverage if atheris is installed: pip install 'heed-mt[fuzz]'.

Prints one line. Exits with status 1 if an input is a fault; the line names the file that holds it. Inputs that reached
new code are kept in build/fuzzing, where the next run takes them up.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzzing import TARGETS

FOLDER = Path(__file__).parents[2] / "build" / "fuzzing"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("HEED_FUZZ_SECONDS", "1200")))
    given = parser.parse_args()
    loop = "guided" if importlib.util.find_spec("atheris") else "unguided"
    folder = FOLDER / given.target
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("found/*"))
    words = [sys.executable, "-m", f"tests.fuzzing.{loop}", given.target, str(folder), str(given.seconds)]
    started = time.monotonic()
    # libFuzzer ends the process without a chance to remove its files.
    with (folder / "log").open("wb") as log, tempfile.TemporaryDirectory() as temporary:
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"TMPDIR": temporary}
        status = subprocess.run(words, stdout=log, stderr=log, env=environment).returncode
    seconds = time.monotonic() - started

    said = (folder / "log").read_text(encoding="utf-8", errors="replace")
    runs = re.findall(r"stat::number_of_executed_units: *([0-9]+)", said)
    line = f"{given.target}: {int(runs[-1]) if runs else 0:,} runs in {seconds:.0f} s, {loop}"
    if status == 0:
        print(line)
        return
    found = sorted(set(folder.glob("found/*")) - before)  # of an exception, the same input under two names
    print(f"{line}; a fault: {found[-1] if found else 'no input'}; its traceback: {folder / 'log'}")
    sys.exit(1)


if __name__ == "__main__":
    main()
