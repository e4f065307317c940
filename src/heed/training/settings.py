"""How to train: the settings of a recipe's table `training`."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, cast, get_args

from pydantic import Field, field_validator, model_validator

from heed.config import cut, shown
from heed.runtime.device import Precision
from heed.training.schedule import FALLING, MAX_COUNT, ScheduleSettings

MAX_SEED = 2**31
IntervalUnit = Literal["steps", "epochs", "minutes"]
AverageLast = int | Literal["best"]
BestBy = Literal["loss", "bleu", "chrf", "f1"]


class TrainingSettings(ScheduleSettings):
    """How to train; the defaults are those of the paper's base model, with the batches of its eight GPUs together."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"teachers": "n_teachers"}

    seed: int = Field(default=1, ge=0, le=MAX_SEED, description="of weights, batches and dropout")
    start_from: str | None = Field(
        default=None,
        description="model folder whose weights, shape and vocabulary the run starts from; if not set: random weights",
    )
    n_teachers: int = Field(
        default=0,
        ge=0,
        le=100,
        description="number of models of this recipe, with other seeds, that are trained first, in RUN/teachers; the "
        "run also learns from their ensemble's translations of its text (Kim and Rush 2016; Nguyen et al. 2020)",
    )
    batch_src_tokens: int = Field(
        default=25_000, ge=1, le=MAX_COUNT, description="maximum number of source tokens per step, without padding"
    )
    batch_tgt_tokens: int = Field(
        default=25_000, ge=1, le=MAX_COUNT, description="maximum number of target tokens per step, without padding"
    )
    micro_batch_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="maximum number of tokens per side in one forward pass, which changes how a step is divided, not "
        "what is in it; if not set: 4,096 on a CPU, on a GPU as its memory allows",
    )
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="section 5.3")
    adam_beta2: float = Field(default=0.98, ge=0, lt=1, description="section 5.3")
    adam_epsilon: float = Field(default=1e-9, gt=0, description="section 5.3")
    label_smoothing: float = Field(default=0.1, ge=0, lt=1, description="ε_ls as torch.nn.CrossEntropyLoss defines it")
    consistency: float = Field(
        default=0.0,
        ge=0,
        description="α of R-Drop (Liang et al. 2021 take 5): every batch runs twice, with different dropout masks, and "
        "α weighs the divergence between both predictions; 0: one pass",
    )
    cutoff: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with consistency: probability of zeroing a token's embedding in the second pass (Shen et al. "
        "2020; Gao et al. 2022 take 0.05)",
    )
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        description="largest norm of a step's gradient, which is scaled down to it: 1.0 helps where losses are not "
        "finite or jump; the paper does not clip",
    )
    max_epochs: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="maximum number of passes over the corpus"
    )
    max_minutes: float | None = Field(
        default=None, gt=0, description="maximum number of minutes of training, validation not counted"
    )
    checkpoint_every: str = Field(
        default="10 minutes", max_length=40, description="a number of steps, epochs or minutes"
    )
    keep_checkpoints: int = Field(default=5, ge=1, le=MAX_COUNT, description="number of recent checkpoints to keep")
    average_last: AverageLast = Field(
        default=5,
        description="number of checkpoints to average (section 6.1), at most keep_checkpoints; best: try the averages "
        "of the last 1, 2, 5, 10 and 20 checkpoints and the best checkpoint; keep the one with the best dev score",
    )
    keep_better: bool = Field(
        default=True,
        description="keep the best checkpoint too, and make it the model if the average is worse on dev; false: always "
        "take the average, as the paper does",
    )
    best_by: BestBy = Field(
        default="loss",
        description="which checkpoint is the best: that of the lowest dev loss, or of the highest score of greedy "
        "translations (bleu, chrf) or parses (f1) of dev",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="stop after this many validations that are not better than all before, by best_by, or by the loss "
        "where that is equal; counted after the warm-up and, with data.mix_stages, in the last stage",
    )
    precision: Precision = Field(default="auto", description="auto: bf16 where the hardware is fast at it, else fp32")
    report_every: int = Field(default=100, ge=1, le=MAX_COUNT, description="steps between two entries of the log")

    @field_validator("checkpoint_every", mode="before")
    @classmethod
    def _number_and_unit(cls, value: Any) -> str:
        text = str(value).strip()
        number, _, unit = text.partition(" ")
        unit = unit.strip() if unit.strip().endswith("s") else unit.strip() + "s"
        try:
            amount = float(number) if unit == "minutes" else int(number)
        except ValueError:
            amount = 0
        units = get_args(IntervalUnit)
        if unit not in units or not 0 < amount <= MAX_COUNT:
            number = number if number.isdecimal() and number.strip("0") else "10"
            raise ValueError(
                f'checkpoint_every = {shown(value)}: write a number and {", ".join(units)}, as "{cut(number, 9)} steps"'
            )
        return f"{number} {unit}"

    @field_validator("average_last", mode="before")
    @classmethod
    def _number_or_best(cls, value: Any) -> Any:
        # Not by a Field's bounds, whose error would speak of both types.
        if value == "best" or (type(value) is int and 1 <= value <= MAX_COUNT):
            return value
        raise ValueError(f'average_last: expected a number from 1 to {MAX_COUNT:,} or "best", found {shown(value)}')

    @model_validator(mode="after")
    def _average_what_is_kept(self) -> Self:
        if self.average_last == "best":
            if self.keep_checkpoints == 1:
                raise ValueError(
                    'average_last="best" has nothing to choose from with keep_checkpoints=1; keep 20 for all averages'
                )
        elif self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last={self.average_last} needs keep_checkpoints={self.average_last} or more, "
                f"found {self.keep_checkpoints}"
            )
        return self

    @model_validator(mode="after")
    def _the_best_matters(self) -> Self:
        if self.best_by != "loss" and not (self.keeps_best or self.patience):
            raise ValueError(
                f'best_by="{self.best_by}" has no effect with keep_better=false and without patience; set one of them'
            )
        return self

    @model_validator(mode="after")
    def _cut_off_in_a_second_pass(self) -> Self:
        if self.cutoff and not self.consistency:
            raise ValueError(
                f"cutoff={self.cutoff} has no effect with consistency=0; set consistency (R-Drop's is 5) or leave out "
                "cutoff"
            )
        return self

    @property
    def keeps_best(self) -> bool:
        """Whether the best checkpoint stays on disk, however old it is."""
        return self.keep_better or self.patience is not None or self.average_last == "best"

    @property
    def best_number(self) -> str:
        """The name, among the numbers of a validation, of the one that tells the best checkpoint."""
        return "loss" if self.best_by == "loss" else f"greedy_{self.best_by}"

    def rank(self, numbers: Mapping[str, float]) -> tuple[float, float]:
        """The place of a validation's numbers, of which the lowest is the best: by `best_number`, then by the loss.

        ∞ stands for a number that is not finite.
        """
        number, loss = numbers[self.best_number], numbers.get("loss", math.inf)
        first = number if self.best_by == "loss" else -number
        return (first if math.isfinite(number) else math.inf, loss if math.isfinite(loss) else math.inf)

    def cut_schedule(self, n_steps: float | None = None) -> str:
        """A remark that the run may end before a falling schedule has fallen; empty if nothing can end it earlier.

        n_steps: how many it takes by max_epochs and max_minutes, if that can be told.
        """
        if self.schedule not in FALLING:
            return ""
        limits: dict[str, float | None] = {"patience": self.patience}
        if n_steps is None or n_steps < 0.9 * self.max_steps:
            limits |= {"max_epochs": self.max_epochs, "max_minutes": self.max_minutes}
        if not (named := [f"{name}={value:g}" for name, value in limits.items() if value is not None]):
            return ""
        expected = f" (after some {n_steps:,.0f} steps)" if len(limits) > 1 and n_steps is not None else ""
        return (
            f"Remark: training.schedule={self.schedule} falls until max_steps={self.max_steps:,}, and "
            f"{' or '.join(named)} can end the run before{expected}, at a rate near its highest. Set max_steps to the "
            "steps that the run will take, or choose another schedule."
        )

    @property
    def n_passes(self) -> int:
        """How often a step computes each batch."""
        return 2 if self.consistency else 1

    def micro_tokens(self, of_device: int) -> int:
        """Tokens a side of a micro-batch whose passes together hold `micro_batch_tokens`, or if not set `of_device`."""
        return max(1, (self.micro_batch_tokens or of_device) // self.n_passes)

    def patient_steps(self, *, epoch_steps: float, step_seconds: float, validations: int = 0) -> float | None:
        """The fewest steps in which patience can run out, after this many validations without a better one.

        From the first step on, or the first that patience counts; None without patience.
        """
        if self.patience is None:
            return None
        amount, unit = self.checkpoint_interval
        steps = {"steps": 1.0, "epochs": epoch_steps, "minutes": 60 / max(step_seconds, 1e-9)}[unit]
        return max(0, self.patience - validations) * amount * steps

    @property
    def checkpoint_interval(self) -> tuple[float, IntervalUnit]:
        """`checkpoint_every` as a number and its unit."""
        number, unit = self.checkpoint_every.split(" ")
        return float(number), cast(IntervalUnit, unit)
