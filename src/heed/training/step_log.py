"""The log's lines between checkpoints: mean loss and speed of the steps since the last line."""

import math

import torch

from heed.runtime.progress import duration
from heed.training.checkpoint import TrainState
from heed.training.limits import Limits
from heed.training.logbook import Logbook, short
from heed.training.step import QueuedStep


class Progress:
    """Sums over the steps since the log's last line.

    The losses are summed on the device, so that no step waits for them; the other sums are kept in the state.
    """

    def __init__(self, state: TrainState, limits: Limits, logbook: Logbook, device: torch.device):
        self._state, self._limits, self._logbook = state, limits, logbook
        self._loss = torch.tensor(state.window_loss, device=device)
        self._nll = torch.tensor(state.window_nll, device=device)

    def add(self, result: QueuedStep, n_tgt_tokens: int) -> None:
        """Counts a step that has just been queued on the device."""
        self._loss += result.loss
        self._nll += result.nll
        self._state.window_tokens += n_tgt_tokens
        self._state.window_steps += 1

    def mean_nll(self) -> float:
        """Negative log-likelihood a token of the steps since the last line, or of the last line if there are none."""
        tokens = self._state.window_tokens
        return float(self._nll) / tokens if tokens else self._state.last_nll

    def store(self) -> None:
        """Copies the sums of the losses into the state, to be saved with it."""
        self._state.window_loss, self._state.window_nll = float(self._loss), float(self._nll)

    def report(self, *, rate: float, epoch_batches: int) -> None:
        """Logs the means and begins a new window. `rate`: the last step's learning rate."""
        if self._state.window_tokens:  # else every step was skipped
            self._log(self._state.window_tokens, rate, epoch_batches)
        self._loss.zero_()
        self._nll.zero_()
        self._state.window_tokens = self._state.window_steps = 0
        self._state.window_seconds = 0.0

    def _log(self, tokens: int, rate: float, epoch_batches: int) -> None:
        state = self._state
        loss, nll = float(self._loss) / tokens, float(self._nll) / tokens
        state.last_nll = nll
        speed = tokens / max(1e-9, state.window_seconds)
        perplexity = math.exp(min(nll, 700))
        self._logbook.record(
            "train",
            state.step,
            loss=loss,
            perplexity=perplexity,
            learning_rate=rate,
            tgt_tokens_per_second=speed,
            epoch=state.epoch + 1,
        )
        step_seconds = state.window_seconds / max(1, state.window_steps)
        times = [duration(steps * step_seconds) for steps in self._limits.steps_left(epoch_batches)]
        self._logbook.report(
            f"step {state.step:,}/{self._limits.max_steps:,}  epoch {state.epoch + 1}  loss {loss:.3f}  "
            f"ppl {short(perplexity, 2)}  lr {rate:.2e}  {speed:,.0f} tok/s  {' to '.join(dict.fromkeys(times))} left"
        )
