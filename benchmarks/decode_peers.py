"""Decoding speed of Heed, CTranslate2 and Hugging Face on the same weights and sources, side by side.

    python benchmarks/decode_peers.py                                  # base, random weights, outputs of 25 tokens
    python benchmarks/decode_peers.py --preset opus-mt --vocab 58101   # OPUS-MT's shape
    python benchmarks/decode_peers.py --model RUN/model --src F --ref F --tokenize none     # a trained model, BLEU
    python benchmarks/decode_peers.py --device cuda --batch 512 --sentences 2048            # on a GPU

Each program runs in its own process. After a warm-up, they take turns at translating all sources. Reported are the
median speed in target tokens per second, its range, and its ratio to that of the fastest other program. With random
weights, every output has --forced tokens whatever they are; a program whose outputs have another length is not timed
but ends the race. NAME-1x2 is one worker with two threads, NAME-2x1 two workers with one. CTranslate2 also runs with
CT2_FORCE_CPU_ISA=AVX512 (-avx512), since it picks AVX2 on some processors that have more, and with MKL's products
(-mkl). --isa avx2 keeps all of them to these instructions. Needs ctranslate2 and transformers.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import instructions
import torch

from heed.apps.exchange import ctranslate2 as ctranslate2_format
from heed.apps.exchange import huggingface
from heed.apps.exchange.tokenizers import piece_names
from heed.backends.choice import prepack
from heed.decoding.beam import SearchPlan, search
from heed.decoding.parallel import parallel_search
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, ModelConfig, ModelFolder, folder_of, load_model, shared_weights
from heed.runs.recipe import read_preset
from heed.runtime.device import DecodingPrecision
from heed.runtime.process_tuning import keep_freed_memory, tune_process
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.tokenizer import SpecialIds

# Table 3's base with what OPUS-MT's models have besides.
OPUS_MT = {"activation": "swish", "attention_bias": True, "output_bias": True, "positions": "sinusoid-halves"}
HEED = [f"heed-{precision}-{workers}" for precision in ("fp32", "bf16", "int8") for workers in ("1x2", "2x1")]
CTRANSLATE2 = [f"ct2-{how}-{workers}" for how in ("fp32", "int8") for workers in ("1x2", "2x1")]
CHANGED = {"avx512": ("CT2_FORCE_CPU_ISA", "AVX512"), "mkl": ("CT2_USE_MKL", "1")}  # by the end of a setting's name
OTHERS = [*CTRANSLATE2, *(f"{name}-{how}" for how in CHANGED for name in CTRANSLATE2), "hf-fp32", "hf-bf16"]
ON_GPU = ["heed-bf16-1x2", "heed-fp32-1x2", "ct2-fp16-1x2", "ct2-bf16-1x2", "ct2-fp32-1x2"]
PROGRAMS = list(dict.fromkeys([*HEED, *OTHERS, *ON_GPU]))
COMPUTE_TYPES = {"fp32": "float32", "int8": "int8", "fp16": "float16", "bf16": "bfloat16"}  # CTranslate2's names
# From the ids of each source, without eos, to the ids of its translation.
Engine = Callable[[list[list[int]]], list[list[int]]]


@dataclass(frozen=True)
class Job:
    """What every program does."""

    sources: list[list[int]]
    beam: int
    batch: int
    length_penalty: float
    one_by_one: bool
    early_stopping: bool  # of Heed; the others always do
    forced: int | None  # tokens of every output; None: each ends where its eos is
    model: str | None  # folder of a trained model; None: random weights
    preset: str  # of the random weights, with the vocabulary
    vocab_size: int
    device: str = "cpu"

    def load(self) -> ModelFolder:
        """The trained model, or one of random weights, biases included."""
        if self.model:
            return load_model(Path(self.model))
        torch.manual_seed(1)
        shape = OPUS_MT if self.preset == "opus-mt" else read_preset(self.preset, where="--preset")["model"]
        model = Transformer(Architecture(**shape), self.vocab_size).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.02)
        return with_vocabulary(model)

    def check(self, name: str, targets: Sequence[Sequence[int]]) -> None:
        """Exits unless there is a target for each source, of the forced length."""
        if len(targets) != len(self.sources):
            raise SystemExit(f"{name}: expected {len(self.sources)} translations, found {len(targets)}.")
        for i, target in enumerate(targets, start=1):
            if self.forced and len(target) != self.forced:
                raise SystemExit(f"{name}: expected {self.forced} tokens in every output, found {len(target)} in {i}.")

    def n_tokens(self, targets: Sequence[Sequence[int]]) -> int:
        """Tokens that were searched for: all ids, and the eos of outputs that are not forced."""
        return sum(len(ids) + (not self.forced) for ids in targets)


def with_vocabulary(model: Transformer) -> ModelFolder:
    """The model with a vocabulary whose words are the numbers of their ids."""
    words = Vocabulary(pieces=["<pad>", "<s>", "</s>", "<unk>", *map(str, range(4, model.vocab_size))])
    tokenizer = SentencePieceTokenizer(words, words, SpecialIds(0, 1, 2, 3))
    config = ModelConfig.of(model.arch, tokenizer, ModelCard("src", "tgt"))
    weights = {name: weight.numpy() for name, weight in shared_weights(model).items()}
    return folder_of(config, weights, tokenizer, where=Path("random"))


def heed_engine(folder: ModelFolder, job: Job, precision: str, workers: str) -> Engine:
    keep_freed_memory()
    special = folder.tokenizer.special
    model = folder.model.to(job.device)
    ready = prepack(model, cast(DecodingPrecision, precision))
    forced = {name: job.forced for name in ("max_tokens", "min_tokens", "max_extra_tokens")} if job.forced else {}
    settings = DecodingSettings.model_validate(
        {
            "beam_size": job.beam,
            "length_penalty": job.length_penalty,
            "length_penalty_form": "average",
            "early_stopping": job.early_stopping,
            **forced,
        }
    )

    def run(sources: list[list[int]]) -> list[list[int]]:
        numbered = sorted((Source(i, ids) for i, ids in enumerate(sources)), key=lambda source: len(source.ids))
        plan = SearchPlan([ready], special, settings, n_sentences=job.batch)
        results = search(plan, numbered) if workers == "1x2" else parallel_search(plan, numbered, text_of=None)
        found = dict(result for result in results if result is not None)
        return [list(found[i][0].ids) for i in range(len(sources))]

    return run


def ct2_engine(model: ModelFolder, job: Job, precision: str, workers: str, *_: str) -> Engine:
    import ctranslate2

    n_workers, n_threads = map(int, workers.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2_format.write_model(model, Path(folder), int8=False)
        translator = ctranslate2.Translator(
            folder,
            device=job.device,
            compute_type=COMPUTE_TYPES[precision],
            inter_threads=n_workers,
            intra_threads=n_threads,
        )
    lengths = {"min_decoding_length": job.forced, "max_decoding_length": job.forced} if job.forced else {}
    src_names, tgt_names = (piece_names(model.tokenizer, src=src) for src in (True, False))
    id_of = {name: i for i, name in enumerate(tgt_names)}
    eos = [] if isinstance(model.tokenizer, SentencePieceTokenizer) else [model.tokenizer.special.eos]

    def run(sources: list[list[int]]) -> list[list[int]]:
        results = translator.translate_batch(
            [[src_names[i] for i in [*ids, *eos]] for ids in sources],
            beam_size=job.beam,
            length_penalty=job.length_penalty,
            max_batch_size=job.batch,
            **lengths,
        )
        return [[id_of[name] for name in result.hypotheses[0]] for result in results]

    return run


def hf_engine(model: ModelFolder, job: Job, precision: str) -> Engine:
    from transformers import AutoModelForSeq2SeqLM

    with tempfile.TemporaryDirectory() as folder:
        huggingface.write_model(model, Path(folder))
        marian: Any = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    marian = marian.to(job.device, torch.bfloat16 if precision == "bf16" else torch.float32)
    pad, eos = model.tokenizer.special.pad, model.tokenizer.special.eos

    def run(sources: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), job.batch):
            places = order[start : start + job.batch]
            longest = max(len(sources[i]) for i in places) + 1
            ids = torch.tensor([[*sources[i], eos] + [pad] * (longest - len(sources[i]) - 1) for i in places])
            mask = torch.arange(longest) <= torch.tensor([[len(sources[i])] for i in places])
            with torch.inference_mode():
                out = marian.generate(
                    input_ids=ids.to(job.device),
                    attention_mask=mask.long().to(job.device),
                    num_beams=job.beam,
                    length_penalty=job.length_penalty,
                    do_sample=False,
                    early_stopping=False,
                    max_new_tokens=job.forced or longest - 1 + 50,
                    min_new_tokens=job.forced,
                    bad_words_ids=None,
                )
            for i, row in zip(places, out[:, 1:].tolist(), strict=True):
                found[i] = row[: row.index(eos)] if eos in row else row  # behind eos is padding
        return found

    return run


ENGINES: dict[str, Callable[..., Engine]] = {"heed": heed_engine, "ct2": ct2_engine, "hf": hf_engine}


def worker(name: str, job: Job) -> None:
    """Translates all sources for each line of standard input; answers with the seconds and the targets."""
    torch.set_num_threads(2)
    kind, *how = name.split("-")
    engine = ENGINES[kind](job.load(), job, *how)
    for _ in sys.stdin:
        started = time.perf_counter()
        if job.one_by_one:
            targets = [target for source in job.sources for target in engine([source])]
        else:
            targets = engine(job.sources)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak, "targets": targets}), flush=True)


@dataclass
class Result:
    """What a program did: the seconds of each window; of the last one the targets."""

    seconds: list[float] = field(default_factory=list)
    peak_memory_bytes: int = 0
    targets: list[list[int]] = field(default_factory=list)


def race(names: list[str], job: Job, *, windows: int) -> dict[str, Result]:
    """The results of all programs, which take turns. Exits if one fails or its results are not what the job asks."""
    results = {name: Result() for name in names}
    processes: dict[str, subprocess.Popen[str]] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(asdict(job), file)
        file.flush()
        try:
            for name in names:
                processes[name] = start(name, file.name)
            for window in range(windows + 1):  # the first one warms up
                for name, process in processes.items():
                    seconds = translate(name, process, job, results[name])
                    if window:
                        results[name].seconds.append(seconds)
                        print(f"window {window}  {name:24s} {seconds:8.2f} s", file=sys.stderr)
        finally:
            for process in processes.values():
                process.kill()
    return results


def start(name: str, job_file: str) -> subprocess.Popen[str]:
    environment = os.environ | dict([CHANGED[how]] if (how := name.rpartition("-")[2]) in CHANGED else [])
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", name, "--job", job_file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def translate(name: str, process: subprocess.Popen[str], job: Job, result: Result) -> float:
    """Lets a program translate all sources; returns the seconds, and keeps the rest in its result."""
    assert process.stdin is not None and process.stdout is not None
    print("go", file=process.stdin, flush=True)
    line = next((line for line in process.stdout if line.startswith('{"seconds"')), None)
    if line is None:
        raise SystemExit(f"{name} ended before it answered; its own error is above. --only chooses others.")
    answer = json.loads(line)
    result.targets, result.peak_memory_bytes = answer["targets"], answer["peak_memory_bytes"]
    job.check(name, result.targets)
    return float(answer["seconds"])


def rows_of(results: dict[str, Result], job: Job) -> dict[str, dict[str, float]]:
    """The figures of each program, by name."""
    rows = {}
    for name, result in results.items():
        n_tokens = job.n_tokens(result.targets)
        speeds = [n_tokens / seconds for seconds in result.seconds]
        rows[name] = {
            "target_tokens": n_tokens,
            "target_tokens_per_second": statistics.median(speeds),
            "least": min(speeds),
            "most": max(speeds),
            "milliseconds_per_sentence": statistics.median(result.seconds) / len(job.sources) * 1e3,
            "peak_memory_bytes": result.peak_memory_bytes,
        }
    others = (row["target_tokens_per_second"] for name, row in rows.items() if not name.startswith("heed-"))
    best = max(others, default=float("nan"))
    for row in rows.values():
        row["ratio_to_best_other"] = row["target_tokens_per_second"] / best
    return rows


def print_table(rows: dict[str, dict[str, float]]) -> None:
    print(f"{'':22}{'tok/s':>10}{'least':>10}{'most':>10}{'× best other':>14}{'ms/sentence':>12}{'MiB':>8}{'BLEU':>8}")
    for name, row in rows.items():
        print(
            f"{name:22}{row['target_tokens_per_second']:>10,.0f}{row['least']:>10,.0f}{row['most']:>10,.0f}"
            f"{row['ratio_to_best_other']:>14.2f}{row['milliseconds_per_sentence']:>12.1f}"
            f"{row['peak_memory_bytes'] / 2**20:>8,.0f}{row.get('bleu', float('nan')):>8.2f}"
        )


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--one-by-one", action="store_true", help="each sentence by itself: latency")
    parser.add_argument("--early-stopping", action="store_true", help="let Heed stop as early as the others do")
    parser.add_argument("--preset", default="base", help="shape of the random weights: a preset, or opus-mt")
    parser.add_argument("--vocab", type=int, default=37_000, help="vocabulary of the random weights")
    parser.add_argument("--sentences", type=int, default=128, help="number of random sources, of 25 tokens")
    parser.add_argument("--forced", type=int, default=25, help="tokens of every output from random weights")
    parser.add_argument("--model", type=Path, help="a trained model's folder, instead of random weights")
    parser.add_argument("--src", type=Path)
    parser.add_argument("--ref", type=Path)
    parser.add_argument("--tokenize", default="13a")
    instructions.add_option(parser)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda, for which others are the default programs")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.only = arguments.only or ([*HEED, *OTHERS] if arguments.device == "cpu" else ON_GPU)
    return arguments


def main() -> None:
    arguments = parsed_arguments()
    instructions.keep_to(arguments.isa)
    if arguments.isa:
        arguments.only = [name for name in arguments.only if not name.endswith("-avx512")]
    tune_process()  # the programs inherit how threads wait
    if arguments.worker:
        worker(arguments.worker, Job(**json.loads(arguments.job.read_text())))
        return
    trained: dict[str, Any] = {}
    references: list[str] = []
    if arguments.model:
        from heed.data.reading.pairs import read_pairs

        tokenizer = load_model(arguments.model).tokenizer
        lines, references = map(list, zip(*read_pairs((arguments.src, arguments.ref)), strict=True))
        sources = tokenizer.encode_lines(lines)
        trained = {"model": str(arguments.model), "length_penalty": 1.0, "forced": None}
    else:
        draw = torch.Generator().manual_seed(1)
        sources = torch.randint(4, arguments.vocab, (arguments.sentences, 24), generator=draw).tolist()
    same = {
        name: getattr(arguments, name)
        for name in ("beam", "batch", "one_by_one", "early_stopping", "forced", "model", "preset", "device")
    }
    job = Job(**({**same, "vocab_size": arguments.vocab, "length_penalty": 0.6, "sources": sources} | trained))
    results = race(arguments.only, job, windows=arguments.windows)
    rows = rows_of(results, job)
    if references:
        from heed.evaluation.bleu import bleu

        for name, result in results.items():
            texts = [tokenizer.decode(ids) for ids in result.targets]
            rows[name]["bleu"] = bleu(texts, references, tokenize=arguments.tokenize).value
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
