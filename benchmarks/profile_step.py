"""Where the time of a training step goes: torch.profiler's record of twenty steps, as JSON.

    python benchmarks/profile_step.py --preset base
    python benchmarks/profile_step.py --preset base --trace step.json.gz  # to open in chrome://tracing

Per step: seconds on the clock, seconds in kernels of the device, their number, and the operations that take longest by
their own time, on the device if that is a GPU, else on the CPU.
"""

import argparse
import json
from time import perf_counter
from typing import Any

from heed.runtime.process_tuning import import_torch_for_training, tune_process

N_SHOWN = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--tokens", type=int, help="per side and step, padding included")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trace", help="file for the whole record")
    arguments = parser.parse_args()
    tune_process()
    import_torch_for_training()
    from torch.profiler import ProfilerActivity, profile

    from heed.apps.bench.training_speed import peak_memory, preset_shape, training_loop
    from heed.runtime.device import choose_machine
    from heed.training.distributed import ALONE

    arch, settings, vocab_size = preset_shape(
        arguments.preset, vocab_size=arguments.vocab, batch_tokens=arguments.tokens, precision="auto"
    )
    machine, started = choose_machine(settings.precision), perf_counter()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (machine.device.type == "cuda")
    record = profile(activities=activities)
    with training_loop(arch, settings, vocab_size, machine, workers=ALONE) as loop:
        loop.run(min(arguments.steps, loop.n_batches))  # not recorded
        with record:
            loop.run(arguments.steps)
    on_gpu = machine.device.type == "cuda"
    kernels = [event for event in record.events() if event.device_type.name == "CUDA"]

    def own_seconds(entry: Any) -> float:
        return float(entry.self_device_time_total if on_gpu else entry.self_cpu_time_total) / 1e6

    operations = sorted(record.key_averages(), key=own_seconds, reverse=True)
    times = [event.time_range for event in record.events()]
    span = max(time.end for time in times) - min(time.start for time in times)
    result = {
        "preset": arguments.preset,
        "machine": str(machine),
        "steps": arguments.steps,
        "step_seconds": span / 1e6 / arguments.steps,
        "device_seconds_per_step": sum(event.time_range.elapsed_us() for event in kernels) / 1e6 / arguments.steps,
        "launches_per_step": len(kernels) / arguments.steps,
        "peak_memory_bytes": peak_memory(machine.device),
        "operations": [
            {
                "name": entry.key,
                "calls_per_step": entry.count / arguments.steps,
                "ms_per_step": own_seconds(entry) * 1e3 / arguments.steps,
            }
            for entry in operations[:N_SHOWN]
        ],
        "took_seconds": perf_counter() - started,
    }
    print(json.dumps(result, indent=1))
    if arguments.trace:
        record.export_chrome_trace(arguments.trace)


if __name__ == "__main__":
    main()
