"""heed bench, doctor: the speed of training and decoding on this machine, and what it offers."""

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from heed.apps.cli.options import JSON, Device, PrecisionOption, decoding_option, decoding_precision
from heed.apps.cli.process import Verb, verb_group
from heed.apps.cli.terminal import print_json, say, show
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.runtime.process_tuning import import_torch, import_torch_for_training, torch_folder
from heed.runtime.progress import counted, progress

bench_app = verb_group("Measure speed on this machine.")


@bench_app.command("train", cls=Verb, epilog="Example: heed bench train --preset tiny")
def bench_train(
    preset: Annotated[str, typer.Option(help="Shape of the model: tiny, base, big …")] = "base",
    vocab: Annotated[int | None, typer.Option(min=4, help="Vocabulary. Default: the preset's.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="Tokens per side and step, padding included. Default: the preset's, on a CPU 4,096 a worker at most.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    consistency: Annotated[
        float | None, typer.Option(min=0, help="As training.consistency: above 0, every batch takes two passes.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Number of processes that train together, as they do on small models.")
    ] = 1,
    device: Device = None,
    as_json: JSON = False,
) -> None:
    """Measure training: tokens per second, and their share of what the model's bare matrix products would reach."""
    if dtype not in ("auto", "fp32", "bf16"):
        raise HeedError(f"--dtype {dtype}: expected auto, fp32 or bf16.")
    import_torch_for_training()
    from heed.apps.bench.training_speed import join_training_speed, preset_shape, training_speed
    from heed.runtime.device import choose_machine, n_threads
    from heed.training.distributed import join_workers, may_spawn, spawn_workers

    arch, settings, vocab_size = preset_shape(
        preset,
        vocab_size=vocab,
        batch_tokens=tokens,
        precision=dtype,
        consistency=consistency,
        n_workers=workers,
        device=device,
    )
    arguments = ["bench", "train", "--preset", preset, "--dtype", dtype, "--workers", str(workers)]
    own = (("--vocab", vocab), ("--tokens", tokens), ("--consistency", consistency), ("--device", device))
    for name, value in own:
        arguments += [] if value is None else [name, str(value)]
    with ExitStack() as stack:
        joined = join_workers(choose_machine(settings.precision, device=device).device)
        if joined.n == 1 and workers > 1 and not may_spawn():
            raise HeedError(
                "--workers needs Linux, and neither WORLD_SIZE nor OMP_PROC_BIND nor GOMP_CPU_AFFINITY in the "
                "environment."
            )
        if joined.n == 1 and n_threads() % workers:
            raise HeedError(
                f"--workers {workers}: they cannot share {counted(n_threads(), 'thread')} evenly (OMP_NUM_THREADS)."
            )
        if joined.n == 1:
            joined = stack.enter_context(spawn_workers(workers, arguments, report=say))
        if not joined.first:
            join_training_speed(arch, settings, vocab_size=vocab_size, device=device, workers=joined)
            return
        with progress("Timing steps"):
            speed = training_speed(arch, settings, vocab_size=vocab_size, device=device, workers=joined)
    if as_json:
        print_json(asdict(speed))
        return
    least, most = min(speed.windows), max(speed.windows)
    print(f"{preset}: {speed.parameters:,} parameters, {speed.dtype} on {speed.device}")
    print(f"{speed.target_tokens_per_second:,.0f} target tokens/s ({least:,.0f} to {most:,.0f} in 5 windows)")
    print(f"{speed.source_tokens_per_second:,.0f} source tokens/s, {speed.step_seconds:.3f} s a step")
    print(speed.step_size)
    print(
        f"{speed.model_flops_per_second / 1e9:,.0f} GFLOP/s of the model, {speed.utilization:.0%} of the "
        f"{speed.ceiling_flops_per_second / 1e9:,.0f} that its matrix products reach alone"
    )
    of_each = f" of each of {speed.workers} processes" if speed.workers > 1 else ""
    print(f"{speed.peak_memory_bytes / 2**20:,.0f} MiB at the peak{of_each}")


@bench_app.command("decode", cls=Verb, epilog="Example: heed bench decode --preset base --beam 4 --batch 32")
def bench_decode(
    preset: Annotated[str, typer.Option(help="Shape of the model: tiny, base, big …")] = "base",
    beam: Annotated[int, decoding_option("beam_size", default="")] = DecodingSettings().beam_size,
    batch: Annotated[int, typer.Option(min=1, help="Sentences searched at a time.")] = 32,
    src_len: Annotated[int, typer.Option(min=1, help="Tokens per source, eos included.")] = 25,
    tgt_len: Annotated[int, typer.Option(min=1, help="Tokens per output, to which search is forced.")] = 25,
    vocab: Annotated[int | None, typer.Option(min=4, help="Vocabulary. Default: the preset's.")] = None,
    precision: PrecisionOption = "auto",
    device: Device = None,
    as_json: JSON = False,
) -> None:
    """Measure beam search: target tokens a second, with random weights and outputs of one length."""
    from heed.apps.bench.decoding_speed import decoding_speed

    with progress("Decoding"):
        speed = decoding_speed(
            preset,
            beam=beam,
            batch=batch,
            src_length=src_len,
            tgt_length=tgt_len,
            vocab_size=vocab,
            precision=decoding_precision(precision),
            device=device,
        )
    if as_json:
        print_json(asdict(speed))
        return
    least, most = min(speed.windows), max(speed.windows)
    print(f"{preset}, {speed.dtype} on {speed.device}, beam {beam}, {batch} sentences at a time")
    print(f"{speed.target_tokens_per_second:,.0f} target tokens/s ({least:,.0f} to {most:,.0f})")
    print(f"{speed.sentences_per_second:,.1f} sentences/s")
    print(f"{speed.latency_ms_p50:,.0f} ms a sentence, 95 % within {speed.latency_ms_p95:,.0f} ms")
    print(f"{speed.peak_memory_bytes / 2**20:,.0f} MiB at the peak")


def doctor(as_json: JSON = False) -> None:
    """Show what Heed uses on this machine, and what would make it faster: a line or two for a report of a fault.

    Compiles Heed's kernels if they did not come with Heed and that has not happened yet.
    """
    if torch_folder() is not None:
        import_torch()
    from heed import __version__
    from heed.apps.bench.diagnosis import diagnosis

    machine = diagnosis(__version__)
    if as_json:
        print_json(machine)
        return
    for title, content in machine.items():
        show(f"{title}:" if content else f"{title}: {'nothing' if title == 'faster' else 'none'}")
        rows = content.items() if isinstance(content, dict) else (("", item) for item in content)
        for name, value in rows:
            shown = (", ".join(value) or "none") if isinstance(value, list) else value
            show(f"  {name}: {shown}" if name else f"  {shown}")
