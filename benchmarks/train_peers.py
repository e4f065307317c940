"""Training speed of Heed and of other PyTorch programs on the same batches of Multi30k English-German, side by side.

    python benchmarks/train_peers.py --preset tiny --mirror FOLDER --eole-python EOLE_VENV/bin/python

Every program is a process of its own that trains the same shape of model on the same batches (at most 4,096 padded
target tokens, sorted by length, joint vocabulary of 10,000, label smoothing 0.1, Adam); heed-bf16-workers is two. All
are warmed up, then each trains a window of the same batches in turn, again and again. Reported: the median over windows
of real target tokens a second (whole steps, padding not counted), the spread, peak memory (of the first worker), and
Heed's ratio to each.

torch.nn.Transformer and Hugging Face's MarianMTModel (pip install transformers) run in plain loops, in fp32 and under
bf16 autocast; eole in its own trainer, in an environment of its own (pip install eole, then --eole-python). --isa avx2
keeps all of them to these instructions.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

SHAPES = {
    "tiny": {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048, "dropout": 0.1},
}
OTHERS = ["torch-fp32", "torch-bf16", "marian-fp32", "marian-bf16", "eole-bf16"]
# heed-bf16-workers: two processes, each with half of every batch, as `heed train` trains a small model.
PROGRAMS = ["heed-bf16", "heed-bf16-workers", "heed-fp32", *OTHERS]
# What each of Heed's own means buys: heed-bf16-NAME is Heed without it (docs/explain/performance.md).
WITHOUT = ["kernels", "tiles", "forward", "add_norm", "bias_relu", "loss", "row_multiple", "main_grad", "kept_memory"]
PAD, BOS, EOS = 0, 1, 2
VOCAB_SIZE = 10_000
LEARNING_RATE = 1e-4


# ----------------------------------------------------------------------------------------------------------------------
# Programs: each is a generator of steps. It is sent nothing; every `next` trains one batch of the list.


def make_batches(source: Path) -> list[tuple[Tensor, Tensor]]:
    """(src with eos, tgt with bos and eos) of each batch, padded with 0."""
    with np.load(source) as arrays:
        return [
            (torch.from_numpy(arrays[f"src{i}"]).long(), torch.from_numpy(arrays[f"tgt{i}"]).long())
            for i in range(len(arrays.files) // 2)
        ]


def switch_off(what: str) -> None:
    """Puts PyTorch's own operations in the place of one part of the CPU backend."""
    import torch.nn.functional as F

    from heed.backends.cpu import forward
    from heed.backends.reference import ReferenceBackend

    # Typed as Any: these modules are changed.
    cpu, packed, training_ops, process, loss, step = (
        cast(Any, import_module(f"heed.{name}"))
        for name in (
            *("backends.cpu", "backends.cpu.packed", "backends.cpu.training_ops"),
            *("runtime.process_tuning", "training.loss", "training.step"),
        )
    )
    reference, fast = ReferenceBackend(), cast(Any, forward)
    match what:
        case "kernels":
            cpu.supports = lambda device, dtype: False
        case "tiles":
            training_ops.has_tiles = lambda: False
        case "forward":  # the plain network: padding and separate operations, but the kernels' loss
            cpu.CpuBackend.target_features = lambda self, *arguments: reference.target_features(*arguments)
        case "add_norm":

            def plain(x: Tensor, branch: Tensor, gain: Tensor, bias: Tensor, *, dropout: float, epsilon: float) -> Any:
                total = x + F.dropout(branch, dropout)
                return total, F.layer_norm(total, gain.shape, gain, bias, epsilon)

            training_ops.sum_and_norm = plain
        case "bias_relu":
            fast.feed_forward = lambda module, x: forward.linear(module.outer, F.relu(forward.linear(module.inner, x)))
        case "loss":
            cpu.CpuBackend.loss_ = lambda self, *arguments, **options: None
        case "row_multiple":
            packed.ROW_MULTIPLE = loss.ROW_MULTIPLE = 1
        case "main_grad":
            whole = step.MasterWeights.__init__

            def without(self: Any, *arguments: Any) -> None:
                whole(self, *arguments)
                for parameter in self.model.parameters():
                    del parameter.main_grad

            step.MasterWeights.__init__ = without
        case "kept_memory":
            process.keep_freed_memory = lambda: None


def heed_steps(
    shape: dict[str, Any], batches: list[tuple[Tensor, Tensor]], dtype: str, variant: str = ""
) -> Iterator[None]:
    from heed.training.distributed import Workers, join_workers, spawn_workers

    if variant != "workers":
        switch_off(variant)
        yield from heed_steps_of(Workers(), shape, batches, dtype)
    elif (joined := join_workers(torch.device("cpu"))).n > 1:
        yield from heed_steps_of(joined, shape, batches, dtype)
    else:
        with spawn_workers(2, sys.argv[1:], report=print, program=[__file__]) as workers:
            if workers.n != 2:
                raise SystemExit("heed-bf16-workers: the workers cannot share memory here.")
            yield from heed_steps_of(workers, shape, batches, dtype)


def heed_steps_of(
    workers: Any, shape: dict[str, Any], batches: list[tuple[Tensor, Tensor]], dtype: str
) -> Iterator[None]:
    from heed.data.batches.batch import Batch
    from heed.model.architecture import Architecture
    from heed.model.transformer import Transformer
    from heed.runtime.device import choose_machine
    from heed.runtime.process_tuning import keep_freed_memory
    from heed.training.optimizer import Adam
    from heed.training.settings import TrainingSettings
    from heed.training.step import MasterWeights, train_step

    keep_freed_memory()
    machine = choose_machine("fp32" if dtype == "fp32" else "bf16", device="cpu")
    settings = TrainingSettings()
    weights = MasterWeights(Transformer(Architecture(**shape), VOCAB_SIZE), machine)
    optimizer = Adam(weights.masters.parameters(), settings)
    own: list[tuple[Batch, int]] = []
    for all_src, all_tgt in batches:
        src, tgt = all_src[workers.rank :: workers.n].numpy(), all_tgt[workers.rank :: workers.n].numpy()
        is_src, is_tgt = src != PAD, tgt[:, 1:] != PAD
        ids = src[is_src], is_src.sum(1), tgt[:, :-1][is_tgt], tgt[:, 1:][is_tgt], is_tgt.sum(1)
        own.append((Batch(*ids), int((all_tgt[:, 1:] != PAD).sum())))
    while True:
        for batch, n_tgt_tokens in own:
            train_step(
                *(weights, optimizer, [batch], settings),
                workers=workers,
                rate=LEARNING_RATE,
                n_tgt_tokens=n_tgt_tokens,
            )
            yield


class TorchModel(nn.Module):
    """torch.nn.Transformer with scaled shared embeddings and sinusoids."""

    positions: Tensor

    def __init__(self, shape: dict[str, Any], vocab_size: int = VOCAB_SIZE):
        super().__init__()
        self.d_model = d = shape["d_model"]
        self.embedding = nn.Embedding(vocab_size, d, padding_idx=PAD)
        self.transformer = nn.Transformer(
            d, shape["n_heads"], shape["n_layers"], shape["n_layers"], shape["d_ff"], shape["dropout"], batch_first=True
        )
        self.dropout = nn.Dropout(shape["dropout"])
        angles = torch.arange(512)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(ids) * math.sqrt(self.d_model) + self.positions[: ids.shape[1]])
        return x

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        causal = torch.ones(tgt_in.shape[1], tgt_in.shape[1], dtype=torch.bool, device=tgt_in.device).triu(1)
        hidden: Tensor = self.transformer(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=causal,
            src_key_padding_mask=src == PAD,
            memory_key_padding_mask=src == PAD,
        )
        return hidden @ self.embedding.weight.T


def plain_loop(
    logits_of: Callable[[Tensor, Tensor], Tensor], model: nn.Module, batches: list[tuple[Tensor, Tensor]], dtype: str
) -> Iterator[None]:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    while True:
        for src, tgt in batches:
            tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
            with torch.autocast(src.device.type, torch.bfloat16, enabled=dtype == "bf16"):
                logits = logits_of(src, tgt_in)
            criterion(logits.float().flatten(0, 1), tgt_out.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def torch_steps(shape: dict[str, Any], batches: list[tuple[Tensor, Tensor]], dtype: str) -> Iterator[None]:
    model = TorchModel(shape)
    return plain_loop(model, model, batches, dtype)


def marian_steps(shape: dict[str, Any], batches: list[tuple[Tensor, Tensor]], dtype: str) -> Iterator[None]:
    from transformers import MarianConfig, MarianMTModel

    layers, heads, d_ff = shape["n_layers"], shape["n_heads"], shape["d_ff"]
    config = MarianConfig(
        vocab_size=VOCAB_SIZE,
        d_model=shape["d_model"],
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=d_ff,
        decoder_ffn_dim=d_ff,
        activation_function="relu",
        dropout=shape["dropout"],
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        use_cache=False,
    )
    model = MarianMTModel(config)

    def logits_of(src: Tensor, tgt_in: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt_in).logits
        return logits

    return plain_loop(logits_of, model, batches, dtype)


def eole_steps(shape: dict[str, Any], batches: list[tuple[Tensor, Tensor]], dtype: str) -> Iterator[None]:
    """Through eole's own trainer: it is given an iterator of batches, and asks for the next when a step is done."""
    import threading
    from queue import Queue

    from eole.config.run import TrainConfig
    from eole.models.model import get_model_class
    from eole.train_single import TrainingInitializer
    from eole.trainer import build_trainer
    from eole.utils.optimizers import Optimizer

    folder = Path(tempfile.mkdtemp())
    (folder / "vocab").write_text("".join(f"t{i}\n" for i in range(3, VOCAB_SIZE)))
    (folder / "text").write_text("t5 t6\n")
    config = TrainConfig(
        src_vocab=str(folder / "vocab"),
        tgt_vocab=str(folder / "vocab"),
        share_vocab=True,
        src_vocab_size=VOCAB_SIZE,
        tgt_vocab_size=VOCAB_SIZE,
        overwrite=True,
        data={"corpus_1": {"path_src": str(folder / "text"), "path_tgt": str(folder / "text"), "transforms": []}},
        model={
            "architecture": "transformer",
            "layers": shape["n_layers"],
            "hidden_size": shape["d_model"],
            "heads": shape["n_heads"],
            "transformer_ff": shape["d_ff"],
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": shape["d_model"], "position_encoding_type": "SinusoidalInterleaved"},
        },
        training={
            "model_path": str(folder / "model"),
            "compute_dtype": "bf16" if dtype == "bf16" else "fp32",
            "batch_type": "tokens",
            "batch_size": 4096,
            "accum_count": [1],
            "normalization": "tokens",
            "dropout": [shape["dropout"]],
            "attention_dropout": [0.0],
            "label_smoothing": 0.1,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": LEARNING_RATE,
            "save_checkpoint_steps": 10**9,
        },
    )
    context = TrainingInitializer(config).initialize()
    vocabs = context.vocabs
    model = get_model_class(context.config.model).for_training(
        context.config.model, vocabs, context.config.training, metadata=None, device_id=-1
    )
    optimizer = Optimizer.from_config(model, context.config, metadata=None)
    trainer = build_trainer(context.config, -1, model, vocabs, optimizer, model_saver=None)
    specials = {PAD: vocabs["specials"]["pad_token"], BOS: vocabs["specials"]["bos_token"]}
    specials[EOS] = vocabs["specials"]["eos_token"]
    new_id = torch.tensor([vocabs["src"][specials.get(i, f"t{i}")] for i in range(VOCAB_SIZE)])
    wanted: Queue[None] = Queue()
    done: Queue[None] = Queue()

    def fed() -> Iterator[tuple[dict[str, Any], int]]:
        first = True
        while True:
            for src, tgt in batches:
                if not first:
                    done.put(None)
                first = False
                wanted.get()
                n = len(src)
                yield (
                    {
                        "src": new_id[src],
                        "srclen": (src != PAD).sum(1),
                        "tgt": new_id[tgt],
                        "tgtlen": (tgt != PAD).sum(1),
                        "ind": torch.arange(n),
                        "cid": ["corpus_1"] * n,
                        "cid_line_number": list(range(n)),
                        "images": None,
                        "prefix_len": None,
                        "left_pad": False,
                    },
                    0,
                )

    def train() -> None:
        try:
            trainer.train(fed(), 10**9, save_checkpoint_steps=0, valid_iter=None, valid_steps=10**9)
        finally:
            done.put(None)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    while thread.is_alive():
        wanted.put(None)
        done.get()
        yield


STEPS = {"heed": heed_steps, "torch": torch_steps, "marian": marian_steps, "eole": eole_steps}


def worker(name: str, preset: str, source: Path, n_threads: int) -> None:
    """Trains as many batches as each line of standard input says; answers with the seconds and the peak memory."""
    torch.set_num_threads(n_threads)
    torch.manual_seed(1)
    kind, *how = name.split("-")
    steps = STEPS[kind](SHAPES[preset], make_batches(source), *how)
    if "HEED_SPAWNED_WORKER" in os.environ:  # it follows the first worker, and ends with it
        for _ in steps:
            pass
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            next(steps)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak}), flush=True)


# ----------------------------------------------------------------------------------------------------------------------
# The race.


def write_batches(target: Path, *, work: Path, mirror: str | None, n_batches: int) -> int:
    """Writes batches of Multi30k as Heed prepares it; returns their real target tokens."""
    from heed.data.batches.padded import PaddedBatch
    from heed.data.batches.token_batches import BatchLimits, TokenBatches
    from heed.data.corpora.download import Corpora
    from heed.data.corpus.shard import ParallelCorpus
    from heed.data.preparation.job import prepare
    from heed.runs.recipe import read_recipe
    from heed.runs.tasks.task import task_of
    from heed.text.tokenizer import SpecialIds

    recipe = read_recipe("multi30k-en-de")
    files = task_of(recipe).text_files(work, Corpora(work / "corpora", mirror, print))
    prepared = prepare(files, recipe.data, recipe.tokenizer, folder=work / "data", report=print)
    assert isinstance(prepared.train, ParallelCorpus)
    special = SpecialIds(PAD, BOS, EOS)
    # Batches of like lengths, since the peers compute padding.
    n = 8 * 4096
    batches = TokenBatches(prepared.train, special, BatchLimits(n, n, 4096, seed=1))
    arrays: dict[str, Any] = {}
    n_tokens = 0
    padded = [rows for step in batches.plan(0) for rows in batches.passes(step, padded=True)]
    for i, rows in enumerate(np.random.default_rng(1).permuted(np.array(padded, dtype=object))[:n_batches]):
        ids = batches.collate(rows)
        batch, lengths = PaddedBatch.of(ids), ids.tgt_lengths
        tgt = np.concatenate([batch.tgt_in.numpy(), np.zeros((len(rows), 1), dtype=np.int64)], axis=1)
        tgt[np.arange(len(rows)), lengths] = EOS
        # The same ids for all: the few beyond 10,000 and the special ones of this tokenizer are moved.
        src = _within_vocabulary(batch.src.numpy(), batch.src_mask.numpy())
        src[np.arange(len(rows)), ids.src_lengths - 1] = EOS
        inner = batch.tgt_mask.numpy().copy()
        inner[:, 0] = False
        tgt[:, :-1] = np.where(inner, _within_vocabulary(tgt[:, :-1], inner), tgt[:, :-1])
        arrays[f"src{i}"], arrays[f"tgt{i}"] = src, tgt
        n_tokens += int(lengths.sum())
    np.savez(target, **arrays)
    return n_tokens


def _within_vocabulary(ids: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.where(real, 3 + ids % (VOCAB_SIZE - 3), PAD)


def race(names: list[str], arguments: argparse.Namespace, source: Path, n_tokens: int) -> dict[str, dict[str, Any]]:
    """Median, least and most target tokens a second and the peak memory of each program."""
    processes: dict[str, subprocess.Popen[str]] = {}
    for name in names:
        python = arguments.eole_python if name.startswith("eole") else sys.executable
        command = [python, __file__, "--worker", name, "--preset", arguments.preset, "--batches", str(source)]
        command += ["--threads", str(arguments.threads)]
        processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    memory: dict[str, int] = {}
    for window in range(arguments.windows + 1):  # the first one warms up
        for name in names:
            process = processes[name]
            assert process.stdin is not None and process.stdout is not None
            print(arguments.n_batches, file=process.stdin, flush=True)
            answer = next((line for line in process.stdout if line.startswith('{"seconds"')), None)
            if answer is None:
                raise SystemExit(f"{name} ended before it answered; its own error is above. --only chooses others.")
            told = json.loads(answer)
            memory[name] = told["peak_memory_bytes"]
            if window:
                speeds[name].append(n_tokens / told["seconds"])
                print(f"window {window}  {name:24s} {speeds[name][-1]:>10,.0f} tok/s", file=sys.stderr, flush=True)
    for process in processes.values():
        process.kill()
    return {
        name: {
            "target_tokens_per_second": statistics.median(speeds[name]),
            "least": min(speeds[name]),
            "most": max(speeds[name]),
            "peak_memory_bytes": memory[name],
        }
        for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=SHAPES, default="tiny")
    parser.add_argument("--mirror", help="folder or address that has the corpus")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmarks"), help="where the corpus is kept")
    parser.add_argument("--eole-python", help="interpreter of an environment with eole; without it eole is left out")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--n-batches", type=int, default=12, help="steps a window")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    names = [*PROGRAMS, *(f"heed-bf16-{means}" for means in WITHOUT)]
    parser.add_argument("--only", nargs="+", choices=names, default=PROGRAMS)
    parser.add_argument("--isa", help="the set that all programs are kept to: HEED_ISA's names, such as avx2")
    parser.add_argument(
        "--ablation", action="store_true", help="Heed without each of its means, instead of other programs"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.preset, arguments.batches, arguments.threads)
        return
    import instructions  # eole's interpreter, which ends above, has no heed

    from heed.runtime.process_tuning import tune_process

    instructions.keep_to(arguments.isa)
    if arguments.ablation:
        arguments.only = ["heed-bf16", *(f"heed-bf16-{means}" for means in WITHOUT)]
    names = [name for name in arguments.only if arguments.eole_python or not name.startswith("eole")]
    arguments.work.mkdir(parents=True, exist_ok=True)
    source = arguments.work / "batches.npz"
    n_tokens = write_batches(source, work=arguments.work, mirror=arguments.mirror, n_batches=arguments.n_batches)
    tune_process()  # the programs inherit how threads wait
    results = race(names, arguments, source, n_tokens)
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    heed = max(
        (row for name, row in results.items() if name in ("heed-bf16", "heed-bf16-workers")),
        key=lambda row: float(row["target_tokens_per_second"]),
        default=results[names[0]],
    )
    print(f"| {arguments.preset} | target tokens/s, median | least to most | peak memory | Heed is faster by |")
    print("|---|---|---|---|---|")
    for name, row in results.items():
        ratio = heed["target_tokens_per_second"] / row["target_tokens_per_second"]
        print(
            f"| {name} | {row['target_tokens_per_second']:,.0f} | {row['least']:,.0f} to {row['most']:,.0f} | "
            f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
