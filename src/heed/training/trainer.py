"""The training loop of section 5: steps over token batches, validation, checkpoints, early stop."""

import copy
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from heed.config import Settings
from heed.data.batching import Batch, Rows, TokenBatches
from heed.errors import HeedError, Stopped
from heed.model.transformer import Transformer
from heed.runtime.device import Machine, Precision
from heed.runtime.memory import free_memory, peak_memory, reset_peak_memory
from heed.runtime.signals import StopSignals, stop_signals
from heed.training.callbacks import NO_CALLBACKS, Callbacks
from heed.training.checkpoint import Checkpoints, TrainState
from heed.training.distributed import NoAnswer, Workers
from heed.training.logbook import Logbook, duration
from heed.training.objective import learning_rate, projected_loss

MOST = 10**9  # of anything that is counted: larger numbers are mistakes
UNITS = ("steps", "epochs", "minutes")
MAX_FAULTS = 3  # steps in a row without a finite loss until training goes back to a checkpoint
MAX_DETOURS = 3  # times that it goes back to the same one
EXTRA_SUMS = 4  # loss, negative log-likelihood, workers that are asked to stop, seconds by the first one's clock
# How far the dropout seeds of a detour are from those before it, and of a worker from the one before.
DETOUR, WORKER = 7919, 104_729


class TrainingSettings(Settings):
    """How to train; defaults are the paper's base model on eight GPUs' worth of tokens a step."""

    seed: int = Field(default=1, ge=0, le=2**31, description="of weights, batches and dropout")
    batch_src_tokens: int = Field(
        default=25_000, ge=1, le=MOST, description="source tokens a step at most, padding counted"
    )
    batch_tgt_tokens: int = Field(
        default=25_000, ge=1, le=MOST, description="target tokens a step at most, padding counted"
    )
    micro_batch_tokens: int | None = Field(
        default=None, ge=1, le=MOST, description="tokens a pass; default: what the machine holds"
    )
    learning_rate_factor: float = Field(default=1.0, gt=0, description="times equation 3")
    warmup_steps: int = Field(default=4000, ge=1, le=MOST, description="equation 3")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="section 5.3")
    adam_beta2: float = Field(default=0.98, ge=0, lt=1, description="section 5.3")
    adam_epsilon: float = Field(default=1e-9, gt=0, description="section 5.3")
    label_smoothing: float = Field(default=0.1, ge=0, lt=1, description="ε_ls; torch's definition")
    clip_norm: float | None = Field(default=None, gt=0, description="gradient's norm at most; the paper does not clip")
    max_steps: int = Field(default=100_000, ge=1, le=MOST, description="updates of the weights")
    max_epochs: int | None = Field(default=None, ge=1, le=MOST, description="passes over the corpus at most")
    max_minutes: float | None = Field(
        default=None, gt=0, description="minutes of training at most, validation left out"
    )
    checkpoint_every: str = Field(
        default="10 minutes", max_length=40, description="a number of steps, epochs or minutes"
    )
    keep_checkpoints: int = Field(default=5, ge=1, le=MOST, description="the last so many stay on disk")
    average_last: int = Field(default=5, ge=1, le=MOST, description="checkpoints in the final average (section 6.1)")
    patience: int | None = Field(
        default=None, ge=1, le=MOST, description="stop after so many validations without a lower dev loss"
    )
    precision: Precision = Field(default="auto", description="auto: bf16 where the hardware is fast at it, else fp32")
    report_every: int = Field(default=100, ge=1, le=MOST, description="steps between entries of the log")

    @field_validator("checkpoint_every")
    @classmethod
    def _number_and_unit(cls, text: str) -> str:
        number, _, unit = text.strip().partition(" ")
        unit = unit.strip() if unit.strip().endswith("s") else unit.strip() + "s"
        try:
            amount = float(number) if unit == "minutes" else int(number)
        except ValueError:
            amount = 0
        if unit not in UNITS or not 0 < amount <= MOST:
            raise ValueError(f'checkpoint_every = "{text}": write a number and {", ".join(UNITS)}, as "10 minutes"')
        return f"{number} {unit}"

    @model_validator(mode="after")
    def _average_what_is_kept(self) -> Self:
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last={self.average_last} needs keep_checkpoints={self.average_last} or more, "
                f"found {self.keep_checkpoints}"
            )
        return self


class MasterWeights:
    """The weights in fp32, which the optimizer moves, and the copy in the machine's precision, which computes.

    In fp32 both are one. In bf16 the copy is renewed after each step, instead of being cast in every pass as autocast
    does. Gradients are summed in fp32, over every micro-batch, in one stretch of memory, which `sums` is with places
    for EXTRA_SUMS more behind it: so one call adds up those of all workers. Each weight of the copy knows its master's
    gradient as `main_grad`, to which the operations on a whole vocabulary add by themselves.
    """

    def __init__(self, model: Transformer, machine: Machine):
        self.masters = model.to(machine.device)
        self.model = model if machine.dtype == torch.float32 else copy.deepcopy(model).to(machine.dtype)
        self._pairs = list(zip(self.masters.parameters(), self.model.parameters(), strict=True))
        sizes = [master.numel() for master, _ in self._pairs]
        self.sums = torch.zeros(sum(sizes) + EXTRA_SUMS, device=machine.device)
        for (master, parameter), gradient in zip(self._pairs, self.gradients.split(sizes), strict=True):
            master.grad = gradient.view_as(master)
            parameter.main_grad = master.grad  # type: ignore[attr-defined]  # a tensor takes any attribute

    @property
    def gradients(self) -> Tensor:
        """Of all masters, one behind the other."""
        return self.sums[:-EXTRA_SUMS]

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Adds the copy's gradients to the masters'."""
        if self.model is self.masters:
            return
        for master, parameter in self._pairs:
            if parameter.grad is not None and master.grad is not None:
                master.grad.add_(parameter.grad)
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Renews the copy from the masters."""
        if self.model is not self.masters:
            for master, parameter in self._pairs:
                parameter.copy_(master)


def make_optimizer(model: Transformer, settings: TrainingSettings) -> torch.optim.Adam:
    """Adam as in section 5.3; the trainer sets its rate before every step."""
    return torch.optim.Adam(
        model.parameters(),
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=True,
    )


def micro_batch_loss(model: Transformer, batch: Batch, *, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """(smoothed loss, negative log-likelihood), each summed over the batch's real target tokens."""
    features = model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask, batch.tgt_places)
    targets = batch.tgt_out.flatten().index_select(0, batch.tgt_places)
    return projected_loss(features, model.output.weight, targets, label_smoothing=label_smoothing)


class StepResult:
    """What a step found: loss and negative log-likelihood, each summed over the target tokens of all workers.

    If the step is not finite the weights stayed as they were, and both sums are 0.
    """

    def __init__(self, loss: Tensor, nll: Tensor, finite: Tensor, n_stopping: Tensor, seconds: Tensor):
        self.loss, self.nll = loss.where(finite, 0), nll.where(finite, 0)
        self._facts = torch.stack([finite.to(seconds.dtype), n_stopping, seconds])
        self._arrived: torch.cuda.Event | None = None
        if loss.is_cuda:  # sent at once: who asks a GPU later waits for all that it was given in between
            self._facts = self._facts.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(loss.device))

    def arrived(self) -> tuple[bool, bool, float]:
        """(whether it is finite, whether any worker is asked to stop, seconds of training before it), once computed."""
        if self._arrived is not None:
            self._arrived.synchronize()
        finite, n_stopping, seconds = self._facts.tolist()
        return bool(finite), n_stopping > 0, seconds


def train_step(
    weights: MasterWeights,
    optimizer: torch.optim.Adam,
    batches: list[Batch],
    settings: TrainingSettings,
    machine: Machine,
    workers: Workers,
    *,
    rate: float,
    n_tgt_tokens: int | None = None,
    stop: bool = False,
    seconds: float = 0.0,
) -> StepResult:
    """One step: the gradient of the mean token loss over all micro-batches moves the weights.

    batches: this worker's. n_tgt_tokens: those of all workers, if there are others. Nothing in here waits for a
    GPU's numbers.
    """
    weights.model.train()
    n_tgt_tokens = n_tgt_tokens or sum(batch.n_tgt_tokens for batch in batches)
    for batch in batches:
        loss, nll = micro_batch_loss(weights.model, batch.to(machine.device), label_smoothing=settings.label_smoothing)
        (loss / n_tgt_tokens).backward()
        weights.collect_gradients()
        weights.sums[-4] += loss.detach()
        weights.sums[-3] += nll
    weights.sums[-2].fill_(stop)
    weights.sums[-1].fill_(seconds if workers.first else 0)
    workers.all_reduce_(weights.sums)
    norm = torch.linalg.vector_norm(weights.gradients)
    loss, nll, n_stopping, elapsed = weights.sums[-EXTRA_SUMS:].clone()
    finite = torch.isfinite(norm) & torch.isfinite(loss)
    if settings.clip_norm is not None:
        weights.gradients.mul_((settings.clip_norm / (norm + 1e-6)).clamp(max=1))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]  # fused Adam then leaves the weights alone
    optimizer.step()
    weights.sums.zero_()
    weights.publish()
    return StepResult(loss, nll, finite, n_stopping, elapsed)


def largest_fitting_batches(
    weights: MasterWeights, optimizer: torch.optim.Adam, batches: TokenBatches, machine: Machine, workers: Workers
) -> TokenBatches:
    """The batches, in so small micro-batches that the largest can be trained on: half the tokens until they fit."""
    while not _fits_in_memory(weights, optimizer, batches, machine, workers):
        if batches.micro_tokens <= batches.longest:
            raise HeedError(
                f"not even one pair of {batches.longest:,} tokens fits into memory: lower data.max_tokens, or take a "
                "smaller model."
            )
        batches = batches.with_micro_tokens(max(batches.micro_tokens // 2, batches.longest))
    return batches


def _fits_in_memory(
    weights: MasterWeights, optimizer: torch.optim.Adam, batches: TokenBatches, machine: Machine, workers: Workers
) -> bool:
    """Whether both passes over the heaviest micro-batches can be made. The gradients are zero afterwards.

    A GPU says when its memory is full. A CPU's system would end the process instead: there a quarter goes first, and
    the whole only if four times what that took is free.
    """
    fits = torch.ones(1, device=machine.device)
    moments: list[Tensor] = []
    try:
        if not optimizer.state:  # the first step makes Adam's two moments
            moments = [torch.empty_like(weights.sums) for _ in range(2)]
        heaviest = batches.heaviest()
        if machine.device.type != "cpu":  # where a worker's pass is not put together from parts, see _Loop._step
            heaviest = workers.shard(heaviest)
        for rows in heaviest:
            parts = [rows]
            if machine.device.type == "cpu":
                before = reset_peak_memory()
                parts = [rows[: -(-len(rows) // 4)], rows]
            for i, part in enumerate(parts):
                # Workers of one machine try side by side; those of others' are counted too, which is on the safe side.
                if i == 1 and 4 * workers.n * (peak_memory() - before) > free_memory():
                    raise MemoryError
                batch = batches.collate(part).to(machine.device)
                loss, _ = micro_batch_loss(weights.model, batch, label_smoothing=0.1)
                loss.backward()
                weights.collect_gradients()
    except (MemoryError, torch.OutOfMemoryError):
        fits.zero_()
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        fits.zero_()
    moments.clear()
    weights.sums.zero_()
    for parameter in weights.model.parameters():
        if weights.model is not weights.masters:
            parameter.grad = None
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()
    workers.all_reduce_(fits)
    return int(fits) == workers.n


class _NotFinite(Exception):
    """Too many steps in a row had no finite loss and gradient, or the weights that would be saved are not finite."""


def train(
    model: Transformer,
    batches: TokenBatches,
    settings: TrainingSettings,
    machine: Machine,
    workers: Workers,
    *,
    run: Path,
    checkpoints: Checkpoints,
    validate: Callable[[Transformer], dict[str, float]],
    report: Callable[[str], None],
    callbacks: Callbacks = NO_CALLBACKS,
) -> TrainState:
    """Trains until a limit of the settings, from the newest checkpoint if there is one; the last state is saved.

    `validate` returns numbers of the dev set by name, `loss` among them, of a model in evaluation mode. Every random
    draw depends on the seed, the step and the epoch alone, so a resumed run takes the same steps as one never stopped.
    SIGINT and SIGTERM end it after the step at hand, with its state saved: Stopped. HeedError if the loss is not finite
    again and again, or if not even one pair fits into memory.
    """
    weights = MasterWeights(model, machine)
    optimizer = make_optimizer(weights.masters, settings)
    # What one worker's memory suggests, another's may not: all make the same plan.
    begun_at, detours, wanted = -1, 0, workers.broadcast(batches.micro_tokens)
    while True:
        progress = checkpoints.restore(weights.masters, optimizer)
        if progress.wanted_micro_tokens != wanted:  # another setting, or another machine
            progress.wanted_micro_tokens, progress.micro_tokens = wanted, wanted
        workers.broadcast_parameters(weights.masters)  # their seeds or files may differ
        weights.publish()
        if progress.step and begun_at < 0:
            report(f"Resumed from step {progress.step:,} (epoch {progress.epoch + 1}).")
        if begun_at >= 0:
            detours = detours + 1 if progress.step == begun_at else 1
            if detours > MAX_DETOURS or progress.step == 0:
                raise HeedError(
                    f"the loss was not finite {MAX_FAULTS} steps in a row, or the weights at a checkpoint, and going "
                    f"back to step {progress.step:,} did not help; the checkpoint is unharmed. Lower "
                    "training.learning_rate_factor, or set training.clip_norm=1.0 or training.precision=fp32."
                )
            progress.detours += detours
            report(f"Going back to step {progress.step:,}; dropout takes another way from there.")
        begun_at = progress.step
        batches = largest_fitting_batches(
            weights, optimizer, batches.with_micro_tokens(progress.micro_tokens), machine, workers
        )
        if batches.micro_tokens != progress.micro_tokens:
            report(f"Memory holds {batches.micro_tokens:,} tokens a pass, not {progress.micro_tokens:,}.")
        progress.micro_tokens = batches.micro_tokens
        logbook = Logbook(
            run,
            resumed_step=progress.step,
            report=report,
            writing=workers.first,
            keep_faults=detours > 0,
            callbacks=callbacks,
        )
        loop = _Loop(weights, optimizer, batches, settings, machine, workers, checkpoints, validate, logbook, progress)
        try:
            ended = False
            with stop_signals() as stop, suppress(_NotFinite):
                loop.run(stop)
                ended = True
            if workers.any(bool(stop.signal)):  # too late for the loop to see; what matters is saved
                raise Stopped(stop.signal)
            if ended:
                return progress
        except NoAnswer:
            report("A worker does not answer; the same command resumes from the last checkpoint.")
            raise
        finally:
            logbook.close()


class _Loop:
    """One way from a checkpoint to the end: what its parts share."""

    def __init__(
        self,
        weights: MasterWeights,
        optimizer: torch.optim.Adam,
        batches: TokenBatches,
        settings: TrainingSettings,
        machine: Machine,
        workers: Workers,
        checkpoints: Checkpoints,
        validate: Callable[[Transformer], dict[str, float]],
        logbook: Logbook,
        progress: TrainState,
    ):
        self.weights, self.optimizer, self.batches, self.settings = weights, optimizer, batches, settings
        self.machine, self.workers, self.checkpoints, self.validate = machine, workers, checkpoints, validate
        self.logbook, self.progress = logbook, progress
        number, self.unit = settings.checkpoint_every.split(" ")
        self.interval = float(number)
        self.epoch_batches = 1
        self.window_loss = torch.tensor(progress.window_loss, device=machine.device)
        self.window_nll = torch.tensor(progress.window_nll, device=machine.device)
        # The step before, whose finiteness is looked at when the next one is on its way: a GPU is never waited for.
        self.last: tuple[int, StepResult, list[Rows], int] | None = None
        self.stopping = False
        self.elapsed = progress.seconds  # on which all workers agree
        progress.saved = min(progress.saved, self._clock())  # it was counted in another unit if that was changed
        self.n_faults = 0

    def run(self, stop: StopSignals) -> None:
        """Until a limit; Stopped if a signal came."""
        while not (reason := self._limit_reached()):
            plan = self.batches.plan(self.progress.epoch)
            self.epoch_batches = len(plan)
            for micro_batches in plan[self.progress.batch :]:
                self._step(micro_batches, stop=bool(stop.signal))
                if self.progress.step % self.settings.report_every == 0:
                    self._report()
                if self.unit != "epochs" and self._clock() - self.progress.saved >= self.interval:
                    self._checkpoint()
                if self._limit_reached() or self.stopping:
                    break
            else:
                self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                if self.unit == "epochs" and self._clock() - self.progress.saved >= self.interval:
                    self._checkpoint()
            if self.stopping:
                self._stop(stop.signal)
        if self.progress.checkpoint_step != self.progress.step:
            self._checkpoint()
        self.logbook.report(f"Training ended at step {self.progress.step:,}: {reason}.")

    def _step(self, micro_batches: list[Rows], *, stop: bool) -> None:
        """One update of the weights: equation 3's rate, the gradient of the whole batch's mean token loss."""
        settings, progress, machine, workers = self.settings, self.progress, self.machine, self.workers
        started = time.perf_counter()
        step = progress.step + 1
        draw = settings.seed + DETOUR * progress.detours + WORKER * workers.rank
        torch.manual_seed(draw * 1_000_003 + step)
        # The kernels of a CPU compute no padding, so sentences of any length go together; short passes would be slow.
        shares = workers.shard(micro_batches, merged=machine.device.type == "cpu")
        mine = [self.batches.collate(rows) for rows in shares]
        work = self.batches.workload(micro_batches)
        rate = learning_rate(
            step,
            d_model=self.weights.model.arch.d_model,
            warmup_steps=settings.warmup_steps,
            factor=settings.learning_rate_factor,
        )
        done = train_step(
            *(self.weights, self.optimizer, mine, settings, machine, workers),
            rate=rate,
            n_tgt_tokens=work.n_tgt,
            stop=stop,
            seconds=progress.seconds,
        )
        self.window_loss += done.loss
        self.window_nll += done.nll
        progress.step, progress.batch = step, progress.batch + 1
        progress.add(work)
        progress.window_tokens += work.n_tgt
        progress.window_steps += 1
        self._check_last_step()
        self.last = step, done, micro_batches, work.n_tgt
        seconds = time.perf_counter() - started
        progress.seconds += seconds
        progress.window_seconds += seconds

    def _check_last_step(self) -> None:
        """What the last step found: reports it if it was left out; _NotFinite after a few in a row."""
        if self.last is None:
            return
        (step, done, micro_batches, n_tgt_tokens), self.last = self.last, None
        finite, stopping, self.elapsed = done.arrived()
        self.stopping |= stopping
        if finite:
            self.n_faults = 0
            return
        self.n_faults += 1
        self.progress.window_tokens -= n_tgt_tokens
        lines = self.batches.lines(micro_batches)
        self.logbook.record("fault", step, lines=" ".join(map(str, lines)))
        some = ", ".join(f"{line:,}" for line in lines[:10]) + (" …" if len(lines) > 10 else "")
        self.logbook.report(
            f"step {step:,}: loss or gradient not finite, step left out. Its {len(lines):,} pairs are "
            f"lines {some} of the training text (all of them in metrics.jsonl)."
        )
        if self.n_faults >= MAX_FAULTS:
            raise _NotFinite

    def _report(self) -> None:
        """Logs the means since the last report."""
        self._check_last_step()
        progress, tokens = self.progress, max(1, self.progress.window_tokens)
        loss, nll = float(self.window_loss) / tokens, float(self.window_nll) / tokens
        speed = progress.window_tokens / max(1e-9, progress.window_seconds)
        rate = self.optimizer.param_groups[0]["lr"]
        perplexity = math.exp(min(nll, 700))
        self.logbook.record(
            "train",
            progress.step,
            loss=loss,
            perplexity=perplexity,
            learning_rate=rate,
            tgt_tokens_per_second=speed,
            epoch=progress.epoch + 1,
        )
        left = duration(self._steps_left() * progress.window_seconds / max(1, progress.window_steps))
        self.logbook.report(
            f"step {progress.step:,}/{self.settings.max_steps:,}  epoch {progress.epoch + 1}  loss {loss:.3f}  "
            f"ppl {perplexity:.2f}  lr {rate:.2e}  {speed:,.0f} tok/s  {left} left"
        )
        self.window_loss.zero_()
        self.window_nll.zero_()
        progress.window_tokens = progress.window_steps = 0
        progress.window_seconds = 0.0

    def _steps_left(self) -> float:
        """Updates until the first limit, as far as it can be foretold."""
        settings, progress = self.settings, self.progress
        left = float(settings.max_steps - progress.step)
        if settings.max_epochs is not None:
            done = progress.epoch + progress.batch / self.epoch_batches
            left = min(left, progress.step / max(done, 1e-9) * (settings.max_epochs - done))
        if settings.max_minutes is not None:
            left = min(left, (settings.max_minutes * 60 / max(progress.seconds, 1e-9) - 1) * progress.step)
        return max(0.0, left)

    def _checkpoint(self) -> None:
        """Validates, then saves. _NotFinite if there is nothing to validate."""
        self._check_last_step()
        progress = self.progress
        if not all(bool(parameter.isfinite().all()) for parameter in self.weights.masters.parameters()):
            self.logbook.report(f"step {progress.step:,}: the model's numbers are not finite, so it is not saved.")
            raise _NotFinite
        first = self.workers.first
        numbers = self.workers.broadcast(self.validate(self.weights.model.eval()) if first else {})
        if numbers["loss"] < progress.best_loss:
            progress.best_loss, progress.validations_since_best = numbers["loss"], 0
        else:
            progress.validations_since_best += 1
        self.logbook.record("validation", progress.step, **numbers)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        self.logbook.report(f"step {progress.step:,}  dev: {shown}")
        progress.finished = self._limit_reached()
        if progress.finished and progress.window_steps:
            self._report()
        progress.saved, progress.checkpoint_step = self._clock(), progress.step
        self._save()

    def _save(self, *, stopped: bool = False) -> None:
        progress = self.progress
        progress.window_loss, progress.window_nll = float(self.window_loss), float(self.window_nll)
        self.checkpoints.save(self.weights.masters, self.optimizer, progress, stopped=stopped)

    def _stop(self, signal_number: int) -> None:
        self._check_last_step()
        if self.progress.checkpoint_step != self.progress.step:
            self._save(stopped=True)
        self.logbook.report(f"Stopped at step {self.progress.step:,}, all of it saved; the same command goes on.")
        raise Stopped(signal_number)

    def _clock(self) -> float:
        """How far the run is, in the unit of checkpoint_every."""
        return {"steps": self.progress.step, "epochs": self.progress.epoch, "minutes": self.elapsed / 60}[self.unit]

    def _limit_reached(self) -> str:
        """Why training is over, or an empty string."""
        settings, progress = self.settings, self.progress
        if progress.step >= settings.max_steps:
            return f"max_steps={settings.max_steps:,}"
        if settings.max_epochs is not None and progress.epoch >= settings.max_epochs:
            return f"max_epochs={settings.max_epochs}"
        if settings.max_minutes is not None and self.elapsed >= settings.max_minutes * 60:
            return f"max_minutes={settings.max_minutes:g}"
        if settings.patience is not None and progress.validations_since_best >= settings.patience:
            return f"no lower dev loss in {settings.patience} validations"
        return ""
