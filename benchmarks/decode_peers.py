"""Decoding speed of Heed, CTranslate2 and Hugging Face on the same weights and sources, side by side.

    python benchmarks/decode_peers.py                                  # base, random weights, outputs of 25 tokens
    python benchmarks/decode_peers.py --model RUN/model --src F --ref F --tokenize none     # a trained model, BLEU

Every contestant is a process of its own. All are warmed up, then each translates all sources in turn, again and again.
Reported: the median of target tokens a second, the spread, and Heed's ratio to the best peer. NAME-1x2 is one worker of
two threads, NAME-2x1 two workers of one. CTranslate2 also runs with CT2_FORCE_CPU_ISA=AVX512 (-avx512): by itself it
takes AVX2 on some processors that have more. Needs ctranslate2 and transformers.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conversion import EOS, PAD, marian_of, token, write_ctranslate2

from heed.decoding.beam import search
from heed.decoding.settings import DecodingSettings
from heed.decoding.stream import Source
from heed.model.inference import prepack
from heed.model.transformer import Architecture, Transformer
from heed.model_folder import load_model
from heed.runtime.memory import keep_freed_memory
from heed.text.tokenizer import SpecialIds

SPECIAL = SpecialIds()
HEED = [f"heed-{precision}{two}" for precision in ("fp32", "bf16", "int8") for two in ("", "-2x")]
CTRANSLATE2 = [f"ct2-{how}-{workers}" for how in ("fp32", "int8") for workers in ("1x2", "2x1")]
PEERS = [*CTRANSLATE2, *(f"{name}-avx512" for name in CTRANSLATE2 if "int8" in name), "hf-fp32", "hf-bf16"]
# Each translates all sources: ids without eos → ids.
Engine = Callable[[list[list[int]]], list[list[int]]]


def random_model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(Architecture(), 37_000).eval()


def heed_engine(model: Transformer, job: dict[str, Any], precision: str, two: str = "") -> Engine:
    keep_freed_memory()
    ready = prepack(model, precision)  # type: ignore[arg-type]
    settings = DecodingSettings(**settings_of(job))

    def run(sources: list[list[int]]) -> list[list[int]]:
        numbered = sorted((Source(i, ids) for i, ids in enumerate(sources)), key=lambda source: len(source.ids))
        results = search([ready], numbered, SPECIAL, settings, n_sentences=job["batch"] * (2 if two else 1))
        found = dict(result for result in results if result is not None)
        return [list(found[i][0].ids) for i in range(len(sources))]

    return run


def settings_of(job: dict[str, Any]) -> dict[str, Any]:
    values = {"beam_size": job["beam"], "length_penalty": job["length_penalty"], "length_penalty_form": "average"}
    if job["forced"]:
        values |= {"max_tokens": job["forced"], "min_tokens": job["forced"], "max_extra_tokens": job["forced"]}
    return values


def ct2_engine(model: Transformer, job: dict[str, Any], precision: str, workers: str, *_: str) -> Engine:
    import ctranslate2

    n_workers, n_threads = map(int, workers.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        write_ctranslate2(model, Path(folder) / "model")
        translator = ctranslate2.Translator(
            str(Path(folder) / "model"),
            device="cpu",
            compute_type={"fp32": "float32", "int8": "int8"}[precision],
            inter_threads=n_workers,
            intra_threads=n_threads,
        )
    lengths = {"min_decoding_length": job["forced"], "max_decoding_length": job["forced"]} if job["forced"] else {}

    def run(sources: list[list[int]]) -> list[list[int]]:
        results = translator.translate_batch(
            [[token(i) for i in [*ids, EOS]] for ids in sources],
            beam_size=job["beam"],
            length_penalty=job["length_penalty"],
            max_batch_size=job["batch"],
            **lengths,
        )
        return [[int(name[1:]) for name in result.hypotheses[0] if name[0] == "t"] for result in results]

    return run


def hf_engine(model: Transformer, job: dict[str, Any], precision: str) -> Engine:
    marian = marian_of(model, max_positions=512).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    batch_size = job["batch"]

    def run(sources: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            longest = max(len(sources[i]) for i in places) + 1
            ids = torch.tensor([[*sources[i], EOS] + [PAD] * (longest - len(sources[i]) - 1) for i in places])
            most = job["forced"] or longest - 1 + 50
            with torch.inference_mode():
                out = marian.generate(
                    input_ids=ids,
                    attention_mask=(ids != PAD).long(),
                    num_beams=job["beam"],
                    length_penalty=job["length_penalty"],
                    do_sample=False,
                    early_stopping=False,
                    max_new_tokens=most,
                    min_new_tokens=job["forced"] or None,
                )
            for i, row in zip(places, out[:, 1:].tolist(), strict=True):
                found[i] = row[: row.index(EOS)] if EOS in row and not job["forced"] else [t for t in row if t != PAD]
        return found

    return run


ENGINES = {"heed": heed_engine, "ct2": ct2_engine, "hf": hf_engine}


def worker(name: str, job: dict[str, Any]) -> None:
    """Translates all sources once for every line of standard input; answers with the seconds and the targets."""
    torch.set_num_threads(2)
    model = load_model(Path(job["model"])).model.eval() if job["model"] else random_model()
    kind, *how = name.split("-")
    engine = ENGINES[kind](model, job, *how)
    for _ in sys.stdin:
        started = time.perf_counter()
        if job["one_by_one"]:
            found = [target for source in job["sources"] for target in engine([source])]
        else:
            found = engine(job["sources"])
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak, "targets": found}), flush=True)


def race(names: list[str], job: dict[str, Any], *, windows: int) -> dict[str, dict[str, Any]]:
    """Of each contestant the seconds of each window, the peak memory and the last targets."""
    processes: dict[str, subprocess.Popen[str]] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        for name in names:
            environment = os.environ | ({"CT2_FORCE_CPU_ISA": "AVX512"} if name.endswith("avx512") else {})
            processes[name] = subprocess.Popen(
                [sys.executable, __file__, "--worker", name, "--job", file.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        results: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in names}
        for window in range(windows + 1):  # the first one warms up
            for name, process in processes.items():
                assert process.stdin is not None and process.stdout is not None
                print("go", file=process.stdin, flush=True)
                answer = next((line for line in process.stdout if line.startswith('{"seconds"')), None)
                if answer is None:
                    raise SystemExit(f"{name} ended before it answered: run this file with --worker {name} to see why.")
                told = json.loads(answer)
                seconds = told.pop("seconds")
                if window:
                    results[name]["seconds"].append(seconds)
                    print(f"window {window}  {name:24s} {seconds:8.2f} s", file=sys.stderr)
                results[name].update(told)
    for process in processes.values():
        process.kill()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--one-by-one", action="store_true", help="each sentence by itself: latency")
    parser.add_argument("--sentences", type=int, default=128, help="random sources of 25 tokens")
    parser.add_argument("--model", type=Path, help="a trained model's folder, instead of random weights")
    parser.add_argument("--src", type=Path)
    parser.add_argument("--ref", type=Path)
    parser.add_argument("--tokenize", default="13a")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*HEED, *PEERS], default=[*HEED, *PEERS])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=[*HEED, *PEERS], help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, json.loads(arguments.job.read_text()))
        return
    job = {"beam": arguments.beam, "batch": arguments.batch, "length_penalty": 0.6, "model": None, "forced": 0}
    job["one_by_one"] = arguments.one_by_one
    references: list[str] = []
    if arguments.model:
        from heed.data.lines import read_pairs

        tokenizer = load_model(arguments.model).tokenizer
        sources, references = map(list, zip(*read_pairs((arguments.src, arguments.ref)), strict=True))
        job |= {"model": str(arguments.model), "sources": tokenizer.encode_lines(sources), "length_penalty": 1.0}
    else:
        draw = torch.Generator().manual_seed(1)
        sources = torch.randint(3, 37_000, (arguments.sentences, 24), generator=draw).tolist()
        job |= {"forced": 25, "sources": sources}
    results = race(arguments.only, job, windows=arguments.windows)
    rows: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        n_tokens = sum(len(ids) + (not job["forced"]) for ids in result["targets"])
        speeds = [n_tokens / seconds for seconds in result["seconds"]]
        row = {
            "target_tokens_per_second": statistics.median(speeds),
            "least": min(speeds),
            "most": max(speeds),
            "milliseconds_per_sentence": statistics.median(result["seconds"]) / len(job["sources"]) * 1e3,
            "peak_memory_bytes": result["peak_memory_bytes"],
        }
        if references:
            from heed.evaluation.bleu import bleu

            texts = [tokenizer.decode(ids) for ids in result["targets"]]
            row["bleu"] = bleu(texts, references, tokenize=arguments.tokenize).value
        rows[name] = row
    peers = [name for name in rows if name in PEERS]
    best = max((rows[name]["target_tokens_per_second"] for name in peers), default=float("nan"))
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'':22}{'tok/s':>10}{'least':>10}{'most':>10}{'× best peer':>12}{'ms/sentence':>12}{'MiB':>8}{'BLEU':>8}")
    for name, row in rows.items():
        speed, memory = row["target_tokens_per_second"], row["peak_memory_bytes"] / 2**20
        print(
            f"{name:22}{speed:>10,.0f}{row['least']:>10,.0f}{row['most']:>10,.0f}{speed / best:>12.2f}"
            f"{row['milliseconds_per_sentence']:>12.1f}"
            f"{memory:>8,.0f}{row.get('bleu', float('nan')):>8.2f}"
        )


if __name__ == "__main__":
    main()
