"""Table 3: variations of the base model, and the same ones at a size that a laptop trains."""

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from heed.apps.paper.result_page import Page, command, plain, prose, table
from heed.config import Settings, merged, read_toml, toml_text, validated
from heed.data.corpora.download import Corpora
from heed.data.preparation.job import prepare
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters
from heed.model_folder import read_config
from heed.runs.recipe import Recipe, read_preset, read_recipe
from heed.runs.run_folder import open_run_folder
from heed.runs.tasks.task import task_of
from heed.runs.train import train_recipe
from heed.runtime.files import whole_file
from heed.runtime.json_files import read_json, write_json
from heed.runtime.locks import Busy, locked
from heed.text.printable import printable
from heed.training.checkpoint import checkpoint_steps, read_train_state
from heed.training.divergence import Diverged
from heed.training.logbook import read_entries
from heed.training.settings import TrainingSettings

VOCAB_SIZE = 37_000  # about; section 5.1
# Every row but big counts what the paper says with this shared vocabulary; big does with 35,800.
FITTING_VOCAB_SIZE = 41_000


@dataclass(frozen=True)
class Row:
    """A row of Table 3 as published. params: in millions, None where the paper leaves the column to base."""

    row: str
    preset: str
    differs: str
    perplexity: float
    bleu: float
    params: int | None = None


ROWS = (
    Row("base", "base", "", 4.92, 25.8, 65),
    Row("(A)", "table3-A-h1", "h 1, d_k = d_v 512", 5.29, 24.9),
    Row("(A)", "table3-A-h4", "h 4, d_k = d_v 128", 5.00, 25.5),
    Row("(A)", "table3-A-h16", "h 16, d_k = d_v 32", 4.91, 25.8),
    Row("(A)", "table3-A-h32", "h 32, d_k = d_v 16", 5.01, 25.4),
    Row("(B)", "table3-B-dk16", "d_k 16", 5.16, 25.1, 58),
    Row("(B)", "table3-B-dk32", "d_k 32", 5.01, 25.4, 60),
    Row("(C)", "table3-C-N2", "N 2", 6.11, 23.7, 36),
    Row("(C)", "table3-C-N4", "N 4", 5.19, 25.3, 50),
    Row("(C)", "table3-C-N8", "N 8", 4.88, 25.5, 80),
    Row("(C)", "table3-C-d256", "d_model 256, d_k = d_v 32", 5.75, 24.5, 28),
    Row("(C)", "table3-C-d1024", "d_model 1024, d_k = d_v 128", 4.66, 26.0, 168),
    Row("(C)", "table3-C-ff1024", "d_ff 1024", 5.12, 25.4, 53),
    Row("(C)", "table3-C-ff4096", "d_ff 4096", 4.75, 26.2, 90),
    Row("(D)", "table3-D-dropout0.0", "P_drop 0.0", 5.77, 24.6),
    Row("(D)", "table3-D-dropout0.2", "P_drop 0.2", 4.95, 25.5),
    Row("(D)", "table3-D-smoothing0.0", "ε_ls 0.0", 4.67, 25.3),
    Row("(D)", "table3-D-smoothing0.2", "ε_ls 0.2", 5.47, 25.7),
    Row("(E)", "table3-E-learned", "learned positions", 4.92, 25.7),
    Row("big", "big", "d_model 1024, d_ff 4096, h 16, P_drop 0.3, 300 K steps", 4.33, 26.4, 213),
)

Measure = Literal["perplexity", "bleu"]


@dataclass(frozen=True)
class Finding:
    """A conclusion of the paper from two rows: by `measure` the better one beats the worse, or both are alike."""

    claim: str
    better: str
    worse: str
    measure: Measure
    alike: bool = False


FINDINGS = (
    Finding("a single head is worse than 8", "base", "table3-A-h1", "bleu"),
    Finding("so are too many heads (32)", "base", "table3-A-h32", "bleu"),
    Finding("narrow keys (d_k 16) hurt", "base", "table3-B-dk16", "bleu"),
    Finding("so do keys of 32", "base", "table3-B-dk32", "bleu"),
    Finding("6 layers are better than 2", "base", "table3-C-N2", "perplexity"),
    Finding("6 layers are better than 4", "base", "table3-C-N4", "perplexity"),
    Finding("8 layers are better than 6", "table3-C-N8", "base", "perplexity"),
    Finding("d_model 512 is better than 256", "base", "table3-C-d256", "perplexity"),
    Finding("d_model 1024 is better than 512", "table3-C-d1024", "base", "perplexity"),
    Finding("d_ff 2048 is better than 1024", "base", "table3-C-ff1024", "perplexity"),
    Finding("d_ff 4096 is better than 2048", "table3-C-ff4096", "base", "perplexity"),
    Finding("the big model is better than base", "big", "base", "perplexity"),
    Finding("dropout helps", "base", "table3-D-dropout0.0", "bleu"),
    Finding("label smoothing helps BLEU", "base", "table3-D-smoothing0.0", "bleu"),
    Finding("and hurts perplexity", "table3-D-smoothing0.0", "base", "perplexity"),
    Finding("learned positions are as good as sinusoids", "base", "table3-E-learned", "bleu", alike=True),
)
FOLDER = Path("runs/table3")
RECIPE = "table3-multi30k"  # whose model stands for base
DIVERGED = 1e100  # perplexities above this are no measure
RESULT = "result.json"  # in the folder of a finished run
ALIKE = 0.5  # BLEU; smaller differences count as none
# 97.5 % quantiles of Student's t for 1, 2, 3 … degrees of freedom: how many standard errors decide, both sides open.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
COLUMNS = ("N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "ε_ls", "train steps")


def columns(row: Row) -> dict[str, Any]:
    """The published settings of a row, by Table 3's columns."""
    arch = architecture(row)
    training = validated(
        TrainingSettings, read_preset(row.preset, where="Table 3").get("training", {}), where=row.preset
    )
    values = (
        arch.n_layers, arch.d_model, arch.d_ff, arch.n_heads, arch.key_width, arch.value_width, arch.dropout,
        training.label_smoothing, training.max_steps,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def architecture(row: Row) -> Architecture:
    """The row's model."""
    return validated(Architecture, read_preset(row.preset, where="Table 3").get("model", {}), where=row.preset)


def published(vocab_size: int = VOCAB_SIZE) -> list[dict[str, Any]]:
    """All rows: published columns, and Heed's count of parameters with a shared vocabulary of this size."""
    return [
        {
            "row": row.row,
            "preset": row.preset,
            "differs": row.differs,
            "settings": columns(row),
            "published_perplexity": row.perplexity,
            "published_bleu": row.bleu,
            "published_params_millions": row.params,
            "parameters": n_parameters(architecture(row), vocab_size),
        }
        for row in ROWS
    ]


def chosen(names: Sequence[str]) -> list[Row]:
    """The rows of these presets or of groups (A to E), base always among them; all without names.

    HeedError names an unknown one.
    """
    for name in names:
        known = [row.preset for row in ROWS]
        if name not in known and name not in tuple("ABCDE"):
            raise HeedError(f"--rows {name}: no row of Table 3; known: A, B, C, D, E, {', '.join(known)}.")
    wanted = {"base", *names, *(f"({name})" for name in names)}
    return [row for row in ROWS if not names or wanted & {row.preset, row.row}]


def scaled(row: Row, recipe: Recipe, seed: int) -> Recipe:
    """The recipe, whose own model stands for base, changed as the row changes the paper's base: the same ratios.

    Rates of dropout and label smoothing are the row's own where it differs from base.
    """
    base, arch, small = Architecture(), architecture(row), recipe.model
    ratios = {
        "n_layers": (arch.n_layers, base.n_layers, small.n_layers),
        "d_model": (arch.d_model, base.d_model, small.d_model),
        "d_ff": (arch.d_ff, base.d_ff, small.d_ff),
        "n_heads": (arch.n_heads, base.n_heads, small.n_heads),
        "d_k": (arch.key_width, base.key_width, small.key_width),
        "d_v": (arch.value_width, base.value_width, small.value_width),
    }
    if small.n_encoder_layers is not None:
        ratios["n_encoder_layers"] = (arch.encoder_layers, base.encoder_layers, small.n_encoder_layers)
    if small.n_decoder_layers is not None:
        ratios["n_decoder_layers"] = (arch.decoder_layers, base.decoder_layers, small.n_decoder_layers)
    model: dict[str, Any] = {"positions": arch.positions}
    for name, (this, of, to) in ratios.items():
        if to * this % of:
            raise HeedError(
                f"model.{name}={to} times {this}/{of} is not a whole number (row {row.preset}); take another."
            )
        model[name] = to * this // of
    if arch.dropout != base.dropout:
        model["dropout"] = arch.dropout
    row_training = read_preset(row.preset, where="Table 3").get("training", {})
    training: dict[str, Any] = {"seed": seed, "average_last": 1, "keep_checkpoints": 1, "keep_better": False}
    if recipe.training.patience is None:
        training["best_by"] = "loss"  # a choice that nothing would follow
    if "label_smoothing" in row_training:
        training["label_smoothing"] = row_training["label_smoothing"]
    values = merged(recipe.model_dump(exclude_none=True), {"model": model, "training": training})
    return validated(Recipe, values, where=row.preset)


def run_rows(rows: Iterable[Row], recipe: Recipe, folder: Path, *, n_seeds: int, corpora: Corpora) -> dict[str, Any]:
    """Trains every row with seeds 1 to n_seeds, scaled to the recipe, and returns `measured`.

    Finished runs are skipped, interrupted ones resumed, and those that another process trains are left to it, so
    several processes may share the work. All rows are trained with one seed before the next.
    """
    if recipe.parsing is not None:
        raise HeedError("--recipe: Table 3 is about translation, but this recipe trains a parser; take another.")
    if recipe.training.n_teachers:
        raise HeedError("--recipe: Table 3's models have no teachers; set training.n_teachers to 0.")
    rows = list(rows)
    report = corpora.report
    _write_recipe(recipe, rows, folder)
    with locked(folder / "data", wait=math.inf):  # prepared once for all runs: no row changes data or tokenizer
        files = task_of(recipe).text_files(folder, corpora)
        prepare(files, recipe.data, recipe.tokenizer, folder=folder / "data", report=report)
    for seed in range(1, n_seeds + 1):
        for row in rows:
            run = folder / row.preset / f"seed-{seed}"
            if (run / RESULT).exists():
                continue
            report(f"Table 3, {row.preset}, seed {seed} of {n_seeds}.")
            small = scaled(row, recipe, seed)
            try:
                _share_data(folder, run, small)
                evaluations = train_recipe(small, run, corpora)
            except Busy as error:
                report(f"{error} Left to it.")
                continue
            except Diverged as error:
                report(f"{error} The row is left out.")
                continue
            trained = read_config(run / "model")
            dev = next(evaluation for evaluation in evaluations if evaluation.name.startswith("dev"))
            result = {
                "perplexity": dev.perplexity,
                "bleu": dev.scores["bleu"].value,
                "signature": dev.scores["bleu"].signature,
                "parameters": n_parameters(trained.arch, trained.vocab_size, trained.src_vocab_size),
                "minutes": _minutes(run),
            }
            with whole_file(run / RESULT) as temporary:
                write_json(temporary, result)
    return measured(folder)


def measured(folder: Path) -> dict[str, Any]:
    """Results of the finished runs: preset → seed → perplexity, bleu, signature, parameters, minutes."""
    results: dict[str, Any] = {}
    for row in ROWS:
        for path in sorted((folder / row.preset).glob(f"seed-*/{RESULT}")):
            result = validated(_Result, read_json(path), where=str(path))
            results.setdefault(row.preset, {})[path.parent.name.removeprefix("seed-")] = result.model_dump()
    return results


class _Result(Settings):
    """The contents of result.json, which `run_rows` writes."""

    perplexity: float = Field(allow_inf_nan=True)
    bleu: float
    signature: str
    parameters: int
    minutes: float


def _write_recipe(recipe: Recipe, rows: Sequence[Row], folder: Path) -> None:
    """Writes FOLDER/recipe.toml; HeedError if it exists with other settings, since all rows must share them.

    Also if a row cannot be scaled to the recipe.

    Settings that an older Heed did not write have their defaults. A folder without recipe.toml is not used if it holds
    names that `run_rows` would write.
    """
    path = folder / "recipe.toml"
    if os.path.lexists(path):
        if validated(Recipe, read_toml(path), where=str(path)) != recipe:
            raise HeedError(
                f"{folder}: its rows were trained with other settings (recipe.toml); take another --folder."
            )
    else:
        for name in ("data", "lines", *(row.preset for row in ROWS)):
            if os.path.lexists(folder / name):
                raise HeedError(f"{folder}: holds {name}, but no recipe.toml of Table 3; take another --folder.")
    for row in rows:
        scaled(row, recipe, seed=1)
    with whole_file(path) as temporary:
        temporary.write_text(toml_text(recipe.model_dump()), encoding="utf-8")


def _share_data(folder: Path, run: Path, recipe: Recipe) -> None:
    """Creates the run folder with a link to the ids that all runs share. Busy if another process has locked it."""
    if not (run / "data").exists():
        with open_run_folder(recipe, run, report=lambda line: None):
            (run / "data").symlink_to(os.path.relpath(folder / "data", run), target_is_directory=True)


def _minutes(run: Path) -> float:
    """Minutes of training, validation left out."""
    last = checkpoint_steps(run / "checkpoints")[-1]
    return read_train_state(run / "checkpoints" / str(last)).seconds / 60


def verdict(finding: Finding, results: dict[str, Any]) -> tuple[str, float, float] | None:
    """("seen", "contradicted" or "undecided", difference in the paper's favour, its standard error); None if not run.

    The variance over seeds is pooled over all rows, since each row has few seeds. A difference decides if its 95 %
    confidence interval (Student's t) excludes 0. Two rows are alike if the interval lies within ±ALIKE, and differ if
    it lies outside. A row with a single seed decides nothing.
    """
    if finding.better not in results or finding.worse not in results:
        return None
    better, worse = (values(results[name], finding.measure) for name in (finding.better, finding.worse))
    if not all(map(math.isfinite, (*better, *worse))):  # one of them diverged
        return "undecided", math.nan, 0.0
    sign = 1 if finding.measure == "bleu" else -1
    difference = sign * (statistics.mean(better) - statistics.mean(worse))
    spread, freedom = pooled_deviation(results, finding.measure)
    error = spread * (1 / len(better) + 1 / len(worse)) ** 0.5
    if min(len(better), len(worse)) < 2:
        return "undecided", difference, error
    margin = STUDENT[min(freedom, len(STUDENT)) - 1] * error
    if finding.alike:
        seen, contradicted = abs(difference) + margin < ALIKE, abs(difference) - margin > ALIKE
    else:
        seen, contradicted = difference > margin, difference < -margin
    return "seen" if seen else "contradicted" if contradicted else "undecided", difference, error


def values(seeds: dict[str, Any], measure: Measure) -> list[float]:
    """One measure of a row, by seed; ∞ for the perplexity of a model that diverged."""
    numbers = (float(result[measure]) for result in seeds.values())
    return [value if value < DIVERGED else math.inf for value in numbers]


def pooled_deviation(results: dict[str, Any], measure: Measure) -> tuple[float, int]:
    """Standard deviation over seeds, from all rows together, and its degrees of freedom; 0 and 0 if no row has two.

    Rows of which a model diverged are left out.
    """
    of_rows = (values(seeds, measure) for seeds in results.values())
    groups = [group for group in of_rows if len(group) > 1 and all(map(math.isfinite, group))]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups)
    return (squares / max(1, freedom)) ** 0.5, freedom


def page(vocab_size: int, folder: Path) -> Page:
    """The table as Markdown, with the results of the folder's runs and what they say about each finding."""
    results = measured(folder)
    missing = _missing(results, folder)
    made_by = command(
        "table3", vocab=None if vocab_size == VOCAB_SIZE else vocab_size, folder=None if folder == FOLDER else folder
    )
    lines = ["# Table 3: variations of the base model", "", *_published_section(vocab_size)]
    lines += ["", "## The same ratios at a laptop's size", ""]
    if results:
        lines += [prose(printable(_setup(folder))), "", *_measured_section(folder, results), ""]
        lines += [*_findings_section(results), "", *(f"Not measured yet: {line}\n" for line in missing)]
    else:
        lines += [*(f"Not measured yet: {line}" for line in missing), ""]
    return Page("table3", "\n".join(lines), made_by, missing=missing)


def _published_section(vocab_size: int) -> list[str]:
    lines = [
        prose(
            f"""Published on newstest2013, without averaging; an empty cell is as in base. Parameters are counted by
            Heed for a shared vocabulary of {vocab_size:,}; the paper's column fits one of about
            {FITTING_VOCAB_SIZE:,} (big: 35,800). `preset = "…"` in a recipe takes a row's settings; base and big
            average their last checkpoints, as section 6.1 does, the other rows take the last one."""
        ),
        "",
    ]
    base, rows = columns(ROWS[0]), []
    for row, in_paper in zip(ROWS, published(vocab_size), strict=True):
        own = {name: value for name, value in columns(row).items() if row is ROWS[0] or value != base[name]}
        cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in (own.get(n, "") for n in COLUMNS)]
        if architecture(row).positions == "learned":
            cells[0] = "learned positions"
        params = "" if row.params is None else row.params
        count = f"{in_paper['parameters'] / 1e6:.1f}"
        rows.append((row.row, f"`{row.preset}`", *cells, f"{row.perplexity:.2f}", row.bleu, params, count))
    return [*lines, *table(("row", "preset", *COLUMNS, "PPL", "BLEU", "params (10⁶)", "Heed's count"), rows)]


def _measured_section(folder: Path, results: dict[str, Any]) -> list[str]:
    steps = validation_perplexities(folder / "base" / "seed-1")
    after = [f"after {step:,}" for step in steps]
    rows = []
    for row in ROWS:
        if row.preset in results:
            seeds = results[row.preset]
            first = next(iter(seeds))
            course = validation_perplexities(folder / row.preset / f"seed-{first}")
            cells = [f"{course[step]:.2f}" if step in course else "" for step in steps]
            cells += [_mean_and_deviation(values(seeds, measure)) for measure in ("perplexity", "bleu")]
            cells += [f"{sum(result['minutes'] for result in seeds.values()):.0f}"]
            parameters = seeds[first]["parameters"]
            rows.append((f"`{row.preset}`", f"{parameters:,}", len(seeds), *cells))
    total = sum(result["minutes"] for seeds in results.values() for result in seeds.values())
    signature = next(result["signature"] for seeds in results.values() for result in seeds.values())
    explanation = prose(
        f"""“After” is the dev perplexity of the row's first seed at that step: nearly all rows were still learning
        when they stopped, so rows that leave the plateau of the first steps late rank lower than they would after
        longer training. Minutes are of training, next to whatever else the machine did: {total:,.0f} in all.
        BLEU: {plain(signature)}."""
    )
    header = ("preset", "parameters", "seeds", *after, "dev perplexity", "dev BLEU", "minutes")
    return [*table(header, rows), "", explanation]


def _findings_section(results: dict[str, Any]) -> list[str]:
    rows = []
    for finding in FINDINGS:
        if (judged := verdict(finding, results)) is None:
            rows.append((finding.claim, "not run", ""))
            continue
        state, difference, error = judged
        unit = "BLEU" if finding.measure == "bleu" else "perplexity"
        shown = "diverged" if math.isnan(difference) else f"{difference:+.2f}{f' ± {error:.2f}' * bool(error)} {unit}"
        rows.append((finding.claim, state, shown))
    lines = table(("the paper finds", "here", "difference in its favour"), rows)
    (bleu_spread, freedom), (spread, _) = (pooled_deviation(results, m) for m in ("bleu", "perplexity"))
    if not freedom:
        return [*lines, "", "One seed per row: the variance is unknown, so nothing is decided."]
    quantile = STUDENT[min(freedom, len(STUDENT)) - 1]
    explanation = prose(
        f"""± is the standard error, from the standard deviation over seeds of all rows together: {bleu_spread:.2f}
        BLEU, {spread:.2f} perplexity, {freedom} degrees of freedom. A row with one seed decides nothing; otherwise a
        difference of {quantile:.2f} standard errors does (95 %, Student's t). Two rows are alike if they differ by less
        than {ALIKE} BLEU, that margin included."""
    )
    return [*lines, "", explanation]


def _missing(results: dict[str, Any], folder: Path) -> list[str]:
    n_rows, n_twice = len(results), sum(len(seeds) > 1 for seeds in results.values())
    if n_twice == len(ROWS):
        return []
    recipe = folder / "recipe.toml"
    is_own = recipe.is_file() and (
        folder != FOLDER or validated(Recipe, read_toml(recipe), where=str(recipe)) != read_recipe(RECIPE)
    )
    same = command("table3", run=True, recipe=recipe if is_own else None, folder=folder if folder != FOLDER else None)
    lacking = [f"{len(ROWS) - n_rows} of {len(ROWS)} rows"] if n_rows < len(ROWS) else []
    lacking += [f"the second seed of {n_rows - n_twice} rows"] if n_twice < n_rows else []
    return [f"Table 3 at a laptop's size, {' and '.join(lacking)}: `{same}` trains them."]


def validation_perplexities(run: Path) -> dict[int, float]:
    """Step → dev perplexity of a run's validations, the last one left out. Damaged log entries are skipped."""
    perplexities = {
        entry["step"]: entry["perplexity"]
        for entry in read_entries(run / "metrics.jsonl")
        if entry.get("kind") == "validation" and isinstance(entry.get("perplexity"), (int, float))
    }
    return {step: perplexities[step] for step in sorted(perplexities)[:-1]}


def _setup(folder: Path) -> str:
    path = folder / "recipe.toml"
    recipe = validated(Recipe, read_toml(path), where=str(path))
    model, training = recipe.model, recipe.training
    corpus = plain(recipe.data.corpus_name)
    return (
        f"`heed paper table3 --run`: base is N {model.n_layers}, d_model {model.d_model}, d_ff {model.d_ff}, "
        f"h {model.n_heads}, dropout {model.dropout}; {training.max_steps:,} steps of "
        f"{training.batch_tgt_tokens:,} target tokens on {corpus}, the last "
        f"checkpoint, beam {recipe.decoding.beam_size}, dev set. Every row has the same ratio to it as in the paper; "
        "all rows train for the same number of steps, big too, which has three times as many in the paper."
    )


def _mean_and_deviation(numbers: list[float]) -> str:
    if not all(map(math.isfinite, numbers)):  # a model that diverged
        return "∞"
    spread = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{spread}"
