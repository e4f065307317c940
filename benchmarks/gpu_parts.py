"""Parts of benchmarks/gpu.sh that no command of Heed's measures; each prints one JSON object.

python benchmarks/gpu_parts.py versions
python benchmarks/gpu_parts.py tests
python benchmarks/gpu_parts.py losses
python benchmarks/gpu_parts.py torch --presets base
python benchmarks/gpu_parts.py memory --presets base big --tokens 4096 12500 25000
python benchmarks/gpu_parts.py summary gpu-results       # results.json and results.md, of all that is there
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    import torch

PROJECT = Path(__file__).resolve().parents[1]
LEFT_TO_OTHERS = ("PyTorch's operations", "the plain network", "without CUDA graphs")
N_WINDOWS, WINDOW_SECONDS = 5, 3.0  # as heed bench train's
LOSSES_RECIPE = """
preset = "tiny"
[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = ["dev.en", "dev.de"]
[tokenizer]
vocab_size = 1000
[model]
dropout = 0.0
[training]
batch_src_tokens = 2000
batch_tgt_tokens = 2000
micro_batch_tokens = 1000
warmup_steps = 10
max_steps = 20
report_every = 1
checkpoint_every = "1000 steps"
"""
# By name: what a training is given. The first is compared with the others; bf16 on the plain road with the GPU's own.
LOSS_RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu, fp32": ("fp32", {"HEED_DEVICE": "cpu", "HEED_KERNELS": "0"}),
    "device, fp32": ("fp32", {}),
    "device, bf16": ("bf16", {}),
    "device, bf16, HEED_KERNELS=0": ("bf16", {"HEED_KERNELS": "0"}),
}


def versions() -> dict[str, Any]:
    """Of the machine, its driver and the packages."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True)
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
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


def losses() -> dict[str, Any]:
    """Losses of the same 20 steps of a small model without dropout, and the largest relative difference between runs.

    On Heed's own command line, so that every road is the one that a user's training takes.
    """
    from heed.text.numbers import english, german, number_splits

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        splits = number_splits(n_train=3000, n_dev=20, n_test=1)
        for part, numbers in (("train", splits.train), ("dev", splits.dev)):
            for side, words in (("en", english), ("de", german)):
                (folder / f"{part}.{side}").write_text("".join(f"{words(number)}\n" for number in numbers))
        (folder / "losses.toml").write_text(LOSSES_RECIPE)
        for number, (title, (precision, changes)) in enumerate(LOSS_RUNS.items()):
            run = folder / str(number)
            words_of_it = ["-m", "heed", "train", str(folder / "losses.toml"), "--run", str(run)]
            words_of_it += ["--set", f"training.precision={precision}"]
            env = os.environ | {"WORLD_SIZE": "1"} | changes
            subprocess.run([sys.executable, *words_of_it], cwd=PROJECT, env=env, stdout=sys.stderr, check=True)
            entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            found[title] = [entry["loss"] for entry in entries if entry["kind"] == "train"]

    def difference(one: str, other: str) -> float:
        return max(abs(a - b) / b for a, b in zip(found[one], found[other], strict=True))

    first, fp32, bf16, plain = found
    return {
        "losses": found,
        "fp32 on the device against the CPU (bound: 1e-5)": difference(fp32, first),
        "bf16 against fp32, both on the device": difference(bf16, fp32),
        "bf16 against bf16 with HEED_KERNELS=0": difference(bf16, plain),
    }


def torch_loop(presets: list[str], sizes: list[int] | None, vocab_size: int | None) -> dict[str, Any]:
    """Training speed of torch.nn.Transformer in a plain loop under bf16 autocast, on heed bench train's sentences.

    A batch is one pass, of the preset's size; padding is computed, but not counted.
    """
    from heed.runtime.process_tuning import tune_process

    tune_process()  # before PyTorch is loaded: how threads wait
    import torch
    import torch.nn.functional as F
    from train_peers import BOS, TorchModel, plain_loop

    from heed.apps.bench.inputs import random_corpus
    from heed.apps.bench.training_speed import preset_shape
    from heed.data.batches.padded import padded, sent
    from heed.data.batches.token_batches import BatchLimits, TokenBatches
    from heed.runtime.device import choose_machine
    from heed.text.tokenizer import SpecialIds

    device, found = choose_machine().device, {}
    for preset in presets:
        arch, settings, n_ids = preset_shape(
            preset, vocab_size=vocab_size, batch_tokens=sizes[0] if sizes else None, precision="auto"
        )
        shape = {name: getattr(arch, name) for name in ("n_layers", "d_model", "n_heads", "d_ff", "dropout")}
        tokens = settings.batch_tgt_tokens
        with tempfile.TemporaryDirectory() as folder:
            corpus = random_corpus(Path(folder) / "corpus", n_ids, n_tokens=20 * tokens)
            batches = TokenBatches(corpus, SpecialIds(), BatchLimits(tokens, tokens, tokens, seed=1))
            collated = [batches.collate(rows) for (rows,) in batches.plan(0)]
        # As the loop takes them: bos and all ids in one, and 0 behind the end.
        pairs, n_tokens = [], []
        for batch in collated:
            src, tgt = (
                padded(ids, n)[0] for ids, n in ((batch.src, batch.src_lengths), (batch.tgt_out, batch.tgt_lengths))
            )
            pairs.append((sent(src, device), F.pad(sent(tgt, device), (1, 0), value=BOS)))
            n_tokens.append(batch.n_tgt_tokens)
        model = TorchModel(shape, n_ids).to(device)
        steps = zip(itertools.cycle(n_tokens), plain_loop(model, model, pairs, "bf16"), strict=False)
        windows = [_speed(steps, device) for _ in range(N_WINDOWS + 1)][1:]  # the first one warms up
        found[preset] = {
            "target_tokens_per_second": statistics.median(windows),
            "windows": windows,
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        }
    return found


def _speed(steps: Iterator[tuple[int, None]], device: "torch.device") -> float:
    """Target tokens a second of steps, each with its tokens, for WINDOW_SECONDS."""
    import torch

    started, n_tokens = time.perf_counter(), 0
    while time.perf_counter() - started < WINDOW_SECONDS:
        n_tokens += next(steps)[0]
    if device.type == "cuda":
        torch.cuda.synchronize()
    return n_tokens / (time.perf_counter() - started)


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


def summary(folder: Path) -> None:
    """Writes results.json, all parts by name, and results.md, the same as a table."""
    parts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    parts.pop("results", None)
    (folder / "results.json").write_text(json.dumps(parts, indent=1) + "\n")
    about = parts.get("versions", {})
    devices = ", ".join(device["name"] for device in about.get("devices", [])) or "no GPU"
    lines = [
        f"{devices}, PyTorch {about.get('torch')} (CUDA {about.get('cuda')}), commit {about.get('commit')}",
        "",
        "| part | target tokens/s | share of the products' ceiling | memory |",
        "|---|---|---|---|",
    ]
    for name, part in parts.items():
        if name.startswith(("train-", "uncompiled-", "r-drop-", "decode-", "plain-")):
            lines.append(_row(name, part))
        elif name.startswith(("torch-", "ctranslate2-")):
            lines += [_row(f"{name}, {program}", row) for program, row in part.items()]
    for name in ("tests", "losses"):
        facts = {key: value for key, value in parts.get(name, {}).items() if key not in ("losses", "skipped")}
        lines += ["", *(f"- {name}, {key}: {value}" for key, value in facts.items())]
    for name, part in parts.items():
        if name.startswith("check-"):
            lines += [f"- {name}: {json.dumps(facts)}" for facts in part["checks"]]
            for facts in part["wrong"]:
                print(f"{name}, wrong: {json.dumps(facts)}", file=sys.stderr)
        elif name.startswith("profile-"):
            longest = ", ".join(f"{one['name'][:40]} {one['ms_per_step']:.2f} ms" for one in part["operations"][:6])
            lines.append(f"- {name}, {part['launches_per_step']:.0f} launches a step: {longest}")
    # What left a part to the plain road, or to steps without graphs: its figure means that.
    for log in sorted(folder.glob("*.log")):
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines += [f"- {log.stem} said: {line}" for line in said if any(words in line for words in LEFT_TO_OTHERS)]
    (folder / "results.md").write_text("\n".join(lines) + "\n")


def _row(name: str, part: dict[str, Any]) -> str:
    windows = part.get("windows") or [part["least"], part["most"]]
    share, peak = part.get("utilization"), part.get("peak_memory_bytes")
    cells = [
        name,
        f"{part['target_tokens_per_second']:,.0f} ({min(windows):,.0f} to {max(windows):,.0f})",
        "" if share is None else f"{share:.0%}",
        "" if peak is None else f"{peak / 2**20:,.0f} MiB",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["versions", "tests", "losses", "torch", "memory", "summary"])
    parser.add_argument("folder", type=Path, nargs="?", help="of a summary")
    parser.add_argument("--presets", nargs="+", default=["base", "big"])
    parser.add_argument("--tokens", nargs="+", type=int, help="default of memory: 4096 12500 25000, else the preset's")
    parser.add_argument("--vocab", type=int)
    arguments = parser.parse_args()
    match arguments.part:
        case "versions":
            result = versions()
        case "tests":
            result = tests()
        case "losses":
            result = losses()
        case "torch":
            result = torch_loop(arguments.presets, arguments.tokens, arguments.vocab)
        case "memory":
            result = memory(arguments.presets, arguments.tokens or [4096, 12_500, 25_000], arguments.vocab)
        case _:
            summary(arguments.folder)
            return
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
