"""Parts of benchmarks/gpu.sh that no command of Heed's measures; each prints one JSON object.

python benchmarks/gpu_parts.py versions
python benchmarks/gpu_parts.py tests
python benchmarks/gpu_parts.py memory --presets base big --tokens 4096 12500 25000
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

PROJECT = Path(__file__).resolve().parents[1]


def versions() -> dict[str, Any]:
    """Of the machine, its driver and the packages."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True)
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "devices": [{"name": one.name, "bytes": one.total_memory, "sms": one.multi_processor_count} for one in devices],
        "packages": {package.name: package.version for package in distributions()},
    }


def tests() -> dict[str, Any]:
    """Counts of tests/gpu, on the real device where there is one besides the emulated one, and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", "-q", "tests/gpu", f"--junitxml={report}"]
        env = {name: value for name, value in os.environ.items() if name != "HEED_DEVICE"}  # the tests choose it
        done = subprocess.run([sys.executable, *words], cwd=PROJECT, env=env, stdout=sys.stderr)
        if not report.exists():
            raise SystemExit(f"pytest ended with {done.returncode}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    real = [case for case in cases if "[real" in str(case.get("name"))]
    return {"tests": len(cases), "on a real GPU": len(real), "failed": failed, "skipped": skipped}


def memory(presets: list[str], sizes: list[int], vocab_size: int | None) -> dict[str, Any]:
    """Peak bytes and speed of training steps of each size, each preset in a process of its own."""
    found = {}
    for preset in presets:
        for tokens in sizes:
            words = ["-m", "heed", "bench", "train", "--preset", preset, "--tokens", str(tokens), "--json"]
            words += [] if vocab_size is None else ["--vocab", str(vocab_size)]
            started = time.perf_counter()
            done = subprocess.run([sys.executable, *words], cwd=PROJECT, stdout=subprocess.PIPE, check=True)
            speed = json.loads(done.stdout)
            found[f"{preset}, {tokens:,} tokens"] = {
                name: speed[name] for name in ("peak_memory_bytes", "target_tokens_per_second", "step_seconds")
            } | {"took_seconds": time.perf_counter() - started}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["versions", "tests", "memory"])
    parser.add_argument("--presets", nargs="+", default=["base", "big"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[4096, 12_500, 25_000])
    parser.add_argument("--vocab", type=int)
    arguments = parser.parse_args()
    if arguments.part == "memory":
        result = memory(arguments.presets, arguments.tokens, arguments.vocab)
    else:
        result = versions() if arguments.part == "versions" else tests()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
