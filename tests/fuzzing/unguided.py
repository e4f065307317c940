"""A loop of random mutations of the seeds, where atheris is not installed.

    python -m tests.fuzzing.unguided TARGET FOLDER SECONDS

The input that is tried lies in FOLDER/found, and stays there if it is a fault or ends the process.
"""

import faulthandler
import importlib
import random
import sys
import time
from pathlib import Path

from tests.fuzzing.inputs import mutated

MOST_SECONDS = 20  # of an input
MUTATIONS = (1, 1, 2, 4)  # one after the other


def main() -> None:
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    module = importlib.import_module(f"tests.fuzzing.{name}")
    (folder / "found").mkdir(parents=True, exist_ok=True)
    draw = random.Random()
    path = folder / "found" / f"input-{draw.getrandbits(48):012x}"
    inputs = list(module.seeds())
    deadline, n_runs = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < deadline:
            data = inputs[n_runs] if n_runs < len(inputs) else draw.choice(inputs)
            for _ in range(draw.choice(MUTATIONS) if n_runs >= len(inputs) else 0):
                data = mutated(data, draw)
            path.write_bytes(data)
            faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
            n_runs += 1
            module.target(data)
        path.unlink()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stderr.write(f"stat::number_of_executed_units: {n_runs}\n")  # as libFuzzer says it


if __name__ == "__main__":
    main()
