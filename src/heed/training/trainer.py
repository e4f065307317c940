"""The training loop of section 5: steps over token batches, validation, checkpoints, early stop."""

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from heed.config import HeedError, Settings
from heed.data.batching import Batch, TokenBatches
from heed.model.transformer import Transformer
from heed.runtime import Machine, Precision
from heed.training.checkpoint import Checkpoints, Progress
from heed.training.logbook import Logbook, duration
from heed.training.objective import learning_rate, projected_loss

UNITS = ("steps", "epochs", "minutes")


class TrainingSettings(Settings):
    """How to train; defaults are the paper's base model on eight GPUs' worth of tokens a step."""

    seed: int = Field(1, ge=0, description="of weights, batches and dropout")
    batch_src_tokens: int = Field(25_000, ge=1, description="source tokens a step at most, padding counted")
    batch_tgt_tokens: int = Field(25_000, ge=1, description="target tokens a step at most, padding counted")
    micro_batch_tokens: int | None = Field(None, ge=1, description="tokens a pass; default: what the machine holds")
    learning_rate_factor: float = Field(1.0, gt=0, description="times equation 3")
    warmup_steps: int = Field(4000, ge=1, description="equation 3")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="section 5.3")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="section 5.3")
    adam_epsilon: float = Field(1e-9, gt=0, description="section 5.3")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="ε_ls; torch's definition")
    clip_norm: float | None = Field(None, gt=0, description="gradient's norm at most; the paper does not clip")
    max_steps: int = Field(100_000, ge=1, description="updates of the weights")
    max_epochs: int | None = Field(None, ge=1, description="passes over the corpus at most")
    max_minutes: float | None = Field(None, gt=0, description="minutes of training at most, validation left out")
    checkpoint_every: str = Field("10 minutes", description="a number of steps, epochs or minutes")
    keep_checkpoints: int = Field(5, ge=1, description="the last so many stay on disk")
    average_last: int = Field(5, ge=1, description="checkpoints in the final average (section 6.1)")
    patience: int | None = Field(None, ge=1, description="stop after so many validations without a lower dev loss")
    precision: Precision = Field("auto", description="auto: bf16 where the hardware is fast at it, else fp32")
    report_every: int = Field(100, ge=1, description="steps between entries of the log")

    @field_validator("checkpoint_every")
    @classmethod
    def _number_and_unit(cls, text: str) -> str:
        number, _, unit = text.strip().partition(" ")
        unit = unit.strip() if unit.strip().endswith("s") else unit.strip() + "s"
        try:
            amount = float(number) if unit == "minutes" else int(number)
        except ValueError:
            amount = 0
        if unit not in UNITS or amount <= 0:
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


class Weights:
    """The weights in fp32, which the optimizer moves, and the copy in the machine's precision, which computes.

    In fp32 both are one. In bf16 the copy is renewed after each step, instead of being cast in every pass as autocast
    does. Gradients are summed in fp32, over every micro-batch: each weight of the copy knows its master's gradient as
    `main_grad`, to which the operations on a whole vocabulary add by themselves.
    """

    def __init__(self, model: Transformer, machine: Machine):
        self.masters = model.to(machine.device)
        self.model = model if machine.dtype == torch.float32 else copy.deepcopy(model).to(machine.dtype)
        self._pairs = list(zip(self.masters.parameters(), self.model.parameters(), strict=True))
        for master, parameter in self._pairs:
            master.grad = torch.zeros_like(master)
            parameter.main_grad = master.grad  # type: ignore[attr-defined]  # a tensor takes any attribute

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


def update(
    weights: Weights,
    optimizer: torch.optim.Adam,
    batches: list[Batch],
    settings: TrainingSettings,
    machine: Machine,
    *,
    rate: float,
) -> tuple[Tensor, Tensor, int]:
    """One step: the gradient of the mean token loss over all micro-batches moves the weights.

    Returns the loss and the negative log-likelihood, each summed over the target tokens, and their number.
    """
    weights.model.train()
    n_tgt_tokens = sum(batch.n_tgt_tokens for batch in batches)
    total_loss = torch.zeros((), device=machine.device)
    total_nll = torch.zeros((), device=machine.device)
    for batch in batches:
        loss, nll = micro_batch_loss(weights.model, batch.to(machine.device), label_smoothing=settings.label_smoothing)
        (loss / n_tgt_tokens).backward()
        weights.collect_gradients()
        total_loss += loss.detach()
        total_nll += nll
    for group in optimizer.param_groups:
        group["lr"] = rate
    if settings.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(weights.masters.parameters(), settings.clip_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)  # the sums keep their place
    weights.publish()
    return total_loss, total_nll, n_tgt_tokens


def train(
    model: Transformer,
    batches: TokenBatches,
    settings: TrainingSettings,
    machine: Machine,
    *,
    run: Path,
    checkpoints: Checkpoints,
    validate: Callable[[Transformer], dict[str, float]],
    report: Callable[[str], None],
) -> Progress:
    """Trains until a limit of the settings, from the newest checkpoint if there is one; the last state is saved.

    `validate` returns numbers of the dev set by name, `loss` among them, of a model in evaluation mode. Every random
    draw depends on the seed, the step and the epoch alone, so a resumed run takes the same steps as one never stopped.
    """
    weights = Weights(model, machine)
    optimizer = make_optimizer(weights.masters, settings)
    progress = checkpoints.restore(weights.masters, optimizer)
    weights.publish()
    if progress.step:
        report(f"Resumed from step {progress.step:,} (epoch {progress.epoch + 1}).")
    logbook = Logbook(run, resumed_step=progress.step, report=report)
    loop = _Loop(weights, optimizer, batches, settings, machine, checkpoints, validate, logbook, progress)
    try:
        loop.run()
    finally:
        logbook.close()
    return progress


class _Loop:
    """One call of `train`: what its parts share."""

    def __init__(
        self,
        weights: Weights,
        optimizer: torch.optim.Adam,
        batches: TokenBatches,
        settings: TrainingSettings,
        machine: Machine,
        checkpoints: Checkpoints,
        validate: Callable[[Transformer], dict[str, float]],
        logbook: Logbook,
        progress: Progress,
    ):
        self.weights, self.optimizer, self.batches, self.settings = weights, optimizer, batches, settings
        self.machine, self.checkpoints, self.validate = machine, checkpoints, validate
        self.logbook, self.progress = logbook, progress
        number, self.unit = settings.checkpoint_every.split(" ")
        self.interval = float(number)
        self.saved = self._clock()
        self.epoch_batches = 1
        self._start_window()

    def run(self) -> None:
        while not (reason := self._limit_reached()):
            plan = self.batches.plan(self.progress.epoch)
            self.epoch_batches = len(plan)
            for micro_batches in plan[self.progress.batch :]:
                self._step(micro_batches)
                if self.progress.step % self.settings.report_every == 0:
                    self._report()
                if self.unit != "epochs" and self._clock() - self.saved >= self.interval:
                    self._checkpoint()
                if self._limit_reached():
                    break
            else:
                self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                if self.unit == "epochs" and self._clock() - self.saved >= self.interval:
                    self._checkpoint()
        if self.checkpoints.steps()[-1:] != [self.progress.step]:
            self._checkpoint()
        if self.window_steps:
            self._report()
        self.logbook.report(f"Training ended at step {self.progress.step:,}: {reason}.")

    def _step(self, micro_batches: list) -> None:
        """One update of the weights: equation 3's rate, the gradient of the whole batch's mean token loss."""
        settings, progress = self.settings, self.progress
        started = time.perf_counter()
        step = progress.step + 1
        torch.manual_seed(settings.seed * 1_000_003 + step)
        collated = [self.batches.collate(rows) for rows in micro_batches]
        rate = learning_rate(
            step,
            d_model=self.weights.model.arch.d_model,
            warmup_steps=settings.warmup_steps,
            factor=settings.learning_rate_factor,
        )
        loss, nll, n_tgt_tokens = update(self.weights, self.optimizer, collated, settings, self.machine, rate=rate)
        self.window_loss += loss
        self.window_nll += nll
        progress.step, progress.batch = step, progress.batch + 1
        progress.n_tgt_tokens += n_tgt_tokens
        progress.n_src_tokens += sum(int(batch.src_mask.sum()) for batch in collated)
        progress.seconds += time.perf_counter() - started
        self.window_tokens += n_tgt_tokens
        self.window_steps += 1

    def _start_window(self) -> None:
        self.window_loss = torch.zeros((), device=self.machine.device)
        self.window_nll = torch.zeros((), device=self.machine.device)
        self.window_tokens = self.window_steps = 0
        self.window_start = self.progress.seconds

    def _report(self) -> None:
        """Logs the means since the last report. HeedError if the loss is no number any more."""
        progress, tokens = self.progress, max(1, self.window_tokens)
        loss, nll = float(self.window_loss) / tokens, float(self.window_nll) / tokens
        if not math.isfinite(loss):
            raise HeedError(
                f"the loss is {loss} at step {progress.step:,}; the last checkpoint is unharmed. Lower "
                "training.learning_rate_factor, or set training.clip_norm=1.0 or training.precision=fp32."
            )
        seconds = progress.seconds - self.window_start
        speed = self.window_tokens / max(1e-9, seconds)
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
        left = duration(self._steps_left() * seconds / max(1, self.window_steps))
        self.logbook.report(
            f"step {progress.step:,}/{self.settings.max_steps:,}  epoch {progress.epoch + 1}  loss {loss:.3f}  "
            f"ppl {perplexity:.2f}  lr {rate:.2e}  {speed:,.0f} tok/s  {left} left"
        )
        self._start_window()

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
        """Validates, then saves."""
        progress = self.progress
        if self.window_steps and not math.isfinite(float(self.window_loss)):
            self._report()  # raises: a model of NaN must not replace a good checkpoint
        numbers = self.validate(self.weights.model.eval())
        if numbers["loss"] < progress.best_loss:
            progress.best_loss, progress.validations_since_best = numbers["loss"], 0
        else:
            progress.validations_since_best += 1
        self.logbook.record("validation", progress.step, **numbers)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        self.logbook.report(f"step {progress.step:,}  dev: {shown}")
        progress.finished = self._limit_reached()
        self.checkpoints.save(self.weights.masters, self.optimizer, progress)
        self.saved = self._clock()

    def _clock(self) -> float:
        """How far the run is, in the unit of checkpoint_every."""
        return {"steps": self.progress.step, "epochs": self.progress.epoch, "minutes": self.progress.seconds / 60}[
            self.unit
        ]

    def _limit_reached(self) -> str:
        """Why training is over, or an empty string."""
        settings, progress = self.settings, self.progress
        if progress.step >= settings.max_steps:
            return f"max_steps={settings.max_steps:,}"
        if settings.max_epochs is not None and progress.epoch >= settings.max_epochs:
            return f"max_epochs={settings.max_epochs}"
        if settings.max_minutes is not None and progress.seconds >= settings.max_minutes * 60:
            return f"max_minutes={settings.max_minutes:g}"
        if settings.patience is not None and progress.validations_since_best >= settings.patience:
            return f"no lower dev loss in {settings.patience} validations"
        return ""
