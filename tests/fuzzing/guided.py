"""libFuzzer's loop, by atheris: inputs that reach new branches are kept and mutated further.

    python -m tests.fuzzing.guided TARGET FOLDER SECONDS

What libFuzzer keeps goes to FOLDER/corpus, an input that is a fault to FOLDER/found; atheris prints its traceback.
"""

import importlib
import random
import sys
from hashlib import sha256
from pathlib import Path

import atheris

from tests.fuzzing import FINDS, TARGETS

MOST_SECONDS, MOST_MEBIBYTES = 20, 4096  # of an input


def main() -> None:
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with atheris.instrument_imports(include=list(TARGETS[name])):
        module = importlib.import_module(f"tests.fuzzing.{name}")
    from tests.fuzzing.inputs import mutated

    for place in ("corpus", "found", "seeds"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(module.seeds()):
        (folder / "seeds" / str(number)).write_bytes(seed)
    with (folder / "words").open("w") as file:
        for word in module.WORDS:
            file.write('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n')

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.3 and len(found := mutated(bytes(data), draw)) <= max_size:
            return found
        return bytes(atheris.Mutate(data, max_size))

    n_runs = 0

    def target(data: bytes) -> None:
        nonlocal n_runs
        n_runs += 1
        try:
            module.target(data)
        except BaseException:  # whose input atheris does not always keep, as libFuzzer does after a signal
            (folder / "found" / f"exception-{sha256(data).hexdigest()[:12]}").write_bytes(data)
            sys.stderr.write(f"stat::number_of_executed_units: {n_runs}\n")
            raise

    options = {
        "max_total_time": seconds,
        "timeout": MOST_SECONDS,
        "rss_limit_mb": MOST_MEBIBYTES,
        "dict": folder / "words",
        "artifact_prefix": f"{folder / 'found'}/",
        "keep_seed": 1,  # those of one kind reach the same code as those of another
        "print_final_stats": 1,
    }
    corpora = [folder / "corpus", folder / "seeds", *[FINDS / name] * (FINDS / name).is_dir()]
    words = [sys.argv[0], *(f"-{option}={value}" for option, value in options.items()), *map(str, corpora)]
    atheris.Setup(words, target, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
