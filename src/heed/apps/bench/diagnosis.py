"""The diagnosis of `heed doctor`: what this machine offers, what Heed uses, and how to make it faster."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from heed.backends import kernels
from heed.backends.choice import fastest_precision, packed_files, packs
from heed.runs.recipe import read_recipe
from heed.runtime.cores import fast_cores, n_cores
from heed.runtime.device import cache_folder, choose_machine, n_threads, native_kernels, processor, search_device
from heed.runtime.instruction_sets import chosen_set, forced, processor_features, sets_of
from heed.runtime.process_tuning import torch_folder
from heed.runtime.python_process import python_command, python_environment

SHAPES = ("multi30k-en-de", "wmt14-en-de-base", "wmt14-en-de-big")  # recipes whose models differ in width
WORKERS_OF = "multi30k-en-de"
NO_TORCH = "not installed; training needs it: pip install 'heed-mt[train]'"
EXTRAS = ("train", "serve", "exchange", "plots", "tensorboard", "track", "cluster")

# Makes both libraries say in their own words which code they chose: they do when they first multiply.
_LIBRARIES_CHOICE = """
import torch
x = torch.ones(64, 64)
torch.mm(x, x)
torch.mm(x.bfloat16(), x.bfloat16())
torch.conv1d(x[None], x[:, :, None])  # by oneDNN even where it does not take bf16
"""


def diagnosis(version: str) -> dict[str, Any]:
    """Facts in titled groups, as `heed doctor` prints them. The kernels are compiled if they are not yet."""
    has_torch = torch_folder() is not None
    return {
        "heed": {"version": version, "folder": str(Path(__file__).parents[2])},
        "python": {"version": platform.python_version(), "program": sys.executable, "system": platform.platform()},
        "torch": _torch() if has_torch else {"version": NO_TORCH},
        "processor": _processor(),
        "kernels": _kernels(),
        "precision": _precision(has_torch),
        "threads": _threads(has_torch),
        "libraries": _libraries() if has_torch else {},
        "gpu": _gpus() if has_torch else [],
        "extras": {name: _extra(name) for name in EXTRAS},
        "cache": _cache(),
        "faster": _faster(),
    }


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> dict[str, Any]:
    fast = fast_cores()
    return {
        "name": processor(),
        "CPUs": os.cpu_count(),
        "fast cores": "all alike" if fast is None else fast.n,
        "instruction sets": [each.name for each in sets_of(processor_features())],
        "taken": f"{chosen_set().name}{' (HEED_ISA)' if forced() else ''}",
    }


def _kernels() -> dict[str, Any]:
    origin = "came with Heed" if kernels.is_prebuilt() else "compiled here"
    return {
        "state": ": ".join(filter(None, [kernels.state(), kernels.why_unusable()])),
        "origin": origin if kernels.are_usable() else "none",
        "compiler": kernels.compiler() or "none found (c++, g++, clang++, or what CXX names)",
        "products": kernels.products(),
        "taken": kernels.preference(),
    }


def _precision(has_torch: bool) -> dict[str, str]:
    """The precision that training and translation use by default, and why."""
    device_name = search_device()
    precisions = {"train": str(choose_machine())} if has_torch else {}
    for name in SHAPES:
        arch = read_recipe(name).model.model_copy(update={"n_layers": 1})
        if packs(arch, device_name):
            precision, why = fastest_precision(arch, device_name)
        elif has_torch:
            from heed.model.transformer import Transformer

            precision, why = fastest_precision(Transformer(arch, 8).eval().to(device_name), device_name)
        else:
            precisions[f"translate, {name}"] = f"not here: without Heed's kernels a search needs PyTorch; {NO_TORCH}"
            continue
        precisions[f"translate, {name}"] = f"{precision} ({why})"
    return precisions


def _threads(has_torch: bool) -> dict[str, Any]:
    threads = {"threads": n_threads(), "for one sentence": kernels.one_sentence_threads()}
    if has_torch:
        from heed.runs.train import n_workers

        threads[f"workers that train {WORKERS_OF}"] = n_workers(read_recipe(WORKERS_OF), choose_machine())
    return threads


def _libraries() -> dict[str, str]:
    """The instruction sets that MKL and oneDNN report."""
    environment = python_environment(MKL_VERBOSE="1", ONEDNN_VERBOSE="1")
    command = python_command("-c", _LIBRARIES_CHOICE)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        return {"MKL and oneDNN": f"cannot be asked ({type(error).__name__})"}
    return choices_in(done.stdout.decode("utf-8", "replace"))


def choices_in(messages: str) -> dict[str, str]:
    """What MKL and oneDNN chose, of the lines that they print when they are asked to be verbose."""
    mkl = re.search(r"(?m)^MKL_VERBOSE (?:Intel\(R\) )?(oneMKL .*?), \w+ [\d.]+GHz", messages)
    isa = re.search(r"(?m)^onednn_verbose,[^:\n]*,cpu,isa:(.*)", messages)
    code = re.search(r"(?m)^onednn_verbose,.*?exec,cpu,matmul,([^,]*)", messages)
    return {
        "MKL (fp32)": mkl[1] if mkl else "does not multiply here",
        "oneDNN": isa[1] if isa else "does not compute here",
        "oneDNN (bf16)": code[1] if code else "does not multiply here",
    }


def _gpus() -> list[str]:
    import torch

    return [
        f"{torch.cuda.get_device_name(number)}, {torch.cuda.get_device_properties(number).total_memory / 2**30:.0f} GiB"
        for number in range(torch.cuda.device_count())
    ]


def _extra(name: str) -> str:
    """Whether the packages of one of Heed's extras are installed, or which are not."""
    try:
        required = importlib.metadata.requires("heed-mt") or []
    except importlib.metadata.PackageNotFoundError:
        return "unknown: Heed runs without being installed"
    packages = [re.match(r"[\w.-]+", line) for line in required if re.search(rf"extra == ['\"]{name}['\"]", line)]
    missing = [package[0] for package in packages if package and not _is_installed(package[0])]
    return f"missing: {', '.join(missing)}" if missing else "installed"


def _is_installed(package: str) -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version(package)
        return True
    return False


def _cache() -> dict[str, Any]:
    try:
        folder, models = cache_folder(), packed_files()
    except OSError as error:
        return {"folder": f"none: {error}"}
    libraries = list(folder.glob("kernels-*.so"))
    size = sum(path.stat().st_size for path in (*libraries, *models))
    counts = {"libraries": len(libraries), "packed models": len(models)}
    return {"folder": str(folder), **counts, "MiB": round(size / 2**20, 1)}


def _faster() -> list[str]:
    """Changes that would make Heed faster here."""
    changes = []
    if native_kernels() == "none":
        changes.append("unset HEED_KERNELS: it turns Heed's kernels off")
    elif kernels.compiler() is None and not kernels.are_usable():
        changes.append("install a C++ compiler, such as g++: Heed's kernels need one")
    elif why := kernels.why_unusable():
        changes.append(f"let Heed's kernels be used: {why}")
    if unknown := kernels.unknown_instructions():
        changes.append(f"take a newer C++ compiler: this one does not know {' '.join(unknown)}")
    most = sets_of(processor_features())[-1]
    if forced() and most != chosen_set():
        changes.append(f"unset HEED_ISA: this processor has {most.name}")
    if os.environ.get("OMP_NUM_THREADS") and n_threads() < n_cores():
        changes.append(f"unset OMP_NUM_THREADS: {n_threads()} of {n_cores()} CPUs compute")
    has_gpu = shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()
    if has_gpu and torch_folder() is not None and _torch()["build"] == "CPU":
        changes.append("install PyTorch's CUDA build: this one does not use the GPU here")
    return changes
