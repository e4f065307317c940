"""heed demo, train, average, info, prepare, recipe: runs, their models and the recipes that come with Heed."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.apps.cli.guesses import complete_recipe, one_of
from heed.apps.cli.options import JSON, Directory, Mirror, Overrides, RecipeName, cpus_of, with_options
from heed.apps.cli.process import Verb, verb_group
from heed.apps.cli.terminal import print_json, say, show
from heed.config import cut
from heed.errors import HeedError
from heed.runtime.process_tuning import import_torch, import_torch_for_training
from heed.runtime.progress import counted, duration, progress

if TYPE_CHECKING:
    from heed.data.corpora.download import Corpora
    from heed.data.corpora.own_recipe import OwnRecipe
    from heed.leases.workforce import Workforce
    from heed.runs.recipe import Recipe
    from heed.runs.tasks.evaluation import Evaluation


TrackerOption = Annotated[
    str | None,
    typer.Option(
        metavar="TRACKER",
        help="trackio or wandb, once installed: report settings, curves and sample translations to it.",
        autocompletion=one_of("trackio", "wandb"),
    ),
]


def demo(
    run: Annotated[Path, typer.Option(help="Run folder; the model is written to RUN/model.")] = Path("runs/demo"),
    as_json: JSON = False,
) -> None:
    """Train a small Transformer on generated number words in a few minutes; count the unseen ones it gets right."""
    import_torch_for_training()
    from heed.runs.demo import demo as train_and_test

    result = train_and_test(run, report=say)
    if as_json:
        print_json({"accuracy": result.accuracy, "tested": result.n_tested, "model": str(result.model)})
        return
    print(f"\nUnseen numbers translated exactly right: {result.accuracy:.2%} of {result.n_tested:,}")
    for source, text, right in result.samples:
        show(f"  {source}")
        show(f"    → {text}{'' if right else '   (wrong)'}")
    print()
    show(f'Try it: echo "forty-two thousand one hundred seven" | heed translate {result.model}')


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name (heed recipe list), a TOML file, or a run folder to resume.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    src: Annotated[
        Path | None,
        typer.Option(
            help="In place of a recipe, with --tgt: a text file, one sentence per line. A recipe for both files is "
            "written to the current folder, then trained."
        ),
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="With --src: the file of translations, line by line.")] = None,
    src_language: Annotated[
        str | None, typer.Option("--from", metavar="CODE", help="Language of --src. Default: the file's suffix.")
    ] = None,
    tgt_language: Annotated[
        str | None, typer.Option("--to", metavar="CODE", help="Language of --tgt. Default: the file's suffix.")
    ] = None,
    settings: Overrides = None,
    run: Annotated[
        Path | None,
        # torchrun takes "--run" for an abbreviation of one of its own options, even behind the script's name.
        typer.Option("--run", "--run-folder", help="Run folder. Default: runs/NAME of the recipe."),
    ] = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=1000,
            metavar="N",
            help="Train N times, with training.seed=1 to N, in RUN/seed-1 to RUN/seed-N; print means and deviations.",
        ),
    ] = None,
    track: TrackerOption = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the recipe, estimate time and memory on this machine; write nothing."),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Download and prepare the corpus, train, average the last checkpoints, report scores. Run it again to resume.

    Two text files are enough: heed train --src corpus.en --tgt corpus.de writes a recipe and trains it.
    """
    from heed.data.corpora.download import Corpora
    from heed.model_folder import read_config
    from heed.runs.recipe import is_run_folder, read_recipe, recipe_of_text

    # A recipe from two text files, or one that exists; both give the same values. Its faults show before torch is here.
    own = None
    if recipe is None:
        own = _recipe_of_files(src, tgt, src_language, tgt_language, settings or [])
        values = recipe_of_text(own.text, settings or [], path=own.path)
        run = run or Path("runs") / own.name
    else:
        given = {"--src": src, "--tgt": tgt, "--from": src_language, "--to": tgt_language}
        if names := [name for name, value in given.items() if value is not None]:
            raise HeedError(f"{' and '.join(names)}: a recipe names its own text; leave these out, or the recipe.")
        run = run or (Path(recipe) if is_run_folder(recipe) else Path("runs") / Path(recipe).stem)
        values = read_recipe(recipe, settings or [])
    import_torch_for_training()
    from heed.runs.average import KEPT
    from heed.runs.tasks.task import task_of

    train_one = _training(track)  # a tracker that is not installed is refused before any work
    if own is not None and not own.is_written() and not dry_run:
        own.write()
        say(f"Wrote ./{own.path}, a recipe like any other. To resume this run: heed train {run}")
    if dry_run:
        _dry_run(values, Corpora(directory, mirror, say), as_json)
        if seeds is not None:
            say(f"Each of {seeds} seeds takes that.")
        return
    corpora = Corpora(directory, mirror, say)
    if seeds is not None:
        _train_seeds(values, run, seeds, corpora, train=train_one, settings=settings or [], as_json=as_json)
        return
    results = train_one(values, run, corpora)
    if not results:  # one of several workers, and not the first
        return
    model = run / "model"
    kept = read_config(model).card.trained_on[KEPT]
    if as_json:
        scores = [result.numbers() for result in results]
        print_json({"run": str(run), "model": str(model), "kept": kept, "scores": scores})
        return
    _show_scores(results)
    show(f"Model: {model}")
    show(f"Kept: {kept}")
    task = task_of(values)
    files = task.text_files(run, corpora.without_reports())
    print("\nNext:")
    for command in task.next_commands(model, files):
        show(f"  {command}")


def _training(track: str | None) -> Callable[..., Any]:
    """Returns `train_recipe`, or what trains so and reports to this tracker."""
    if track is None:
        from heed.runs.train import train_recipe

        return train_recipe
    from heed.runs.tracking import board_named, train_tracked
    from heed.training.callbacks import Callbacks

    return partial(train_tracked, board=board_named(track), project="heed", callbacks=Callbacks())


def _train_seeds(
    recipe: "Recipe",
    run: Path,
    n_seeds: int,
    corpora: "Corpora",
    *,
    train: Callable[..., Any],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    from heed.runs.seeds import table, train_seeds

    if any(text.partition("=")[0].strip() == "training.seed" for text in settings):
        raise HeedError("--seeds sets training.seed to 1, 2, 3 …; leave out --set training.seed.")
    group = train_seeds(recipe, run, n_seeds, corpora, train=train)
    if as_json:
        print_json({"run": str(run), "scores": {f"{of}/{metric}": values for (of, metric), values in group.items()}})
        return
    print()
    for line in table({str(run): group}):
        show(line)
    show(f"To compare it with the seeds of another recipe: heed compare OTHER {run}")


def _recipe_of_files(
    src: Path | None, tgt: Path | None, src_language: str | None, tgt_language: str | None, settings: Sequence[str]
) -> "OwnRecipe":
    """The recipe for --src and --tgt. HeedError if one of them is missing, or if its file exists.

    With --set training.start_from=MODEL it is one for fine-tuning that model.
    """
    if src is None or tgt is None:
        raise HeedError(
            "name a recipe (heed recipe list), or two text files: heed train --src corpus.en --tgt corpus.de."
        )
    if os.environ.get("WORLD_SIZE", "") not in ("", "1"):
        raise HeedError(
            "--src and --tgt write a recipe, which only one process can do; write it without torchrun, then start "
            "torchrun with the recipe."
        )
    from heed.config import parse_overrides
    from heed.data.corpora.own_recipe import own_recipe
    from heed.model_folder import read_config
    from heed.runs.recipe import Recipe
    from heed.training.schedule import fine_tuning_rate

    training = parse_overrides(settings, Recipe, beside="preset").get("training")  # before large files are read
    folder = training.get("start_from") if isinstance(training, dict) else None
    start_from = None
    if isinstance(folder, str):
        start_from = folder, fine_tuning_rate(read_config(Path(folder)).arch.d_model)
    return own_recipe(src, tgt, src=src_language, tgt=tgt_language, start_from=start_from)


def _show_scores(results: Sequence["Evaluation"]) -> None:
    """A table of all scores, then their signatures."""
    from heed.runs.tasks.evaluation import score_table

    print()
    for line in score_table(results):
        show(line)
    for signature in dict.fromkeys(f"{s.name} {s.signature}" for result in results for s in result.scores.values()):
        show(signature)


def _dry_run(recipe: "Recipe", corpora: "Corpora", as_json: bool) -> None:
    from heed.apps.bench.forecast import forecast
    from heed.runs.tasks.task import task_of
    from heed.runs.train import n_workers
    from heed.runtime.device import choose_machine

    n_teachers = recipe.training.n_teachers
    n_pairs = task_of(recipe).count_pairs(corpora)
    if n_pairs is None and recipe.training.max_epochs is not None:
        say("The length of an epoch is not known yet, so training.max_epochs is ignored here.")
    say(f"Timing steps of {recipe.training.batch_tgt_tokens:,} target tokens on random sentences.")
    with progress("Timing steps"):
        expected = forecast(recipe.model, recipe.training, vocab_size=recipe.tokenizer.vocab_size, n_pairs=n_pairs)
    workers = n_workers(recipe, choose_machine(recipe.training.precision))
    if remark := recipe.training.cut_schedule(expected.n_steps):
        say(remark)
    if as_json:
        mix = {"mix": recipe.data.mixture.lines()} if recipe.data.mixture else {}
        print_json({"pairs": n_pairs, **mix, "workers": workers, "teachers": n_teachers, **asdict(expected)})
        return
    if workers > 1:
        say(f"Measured in one process; the run uses {workers}: it is faster, and each takes most of that memory.")
    print(f"{expected.parameters:,} parameters, {expected.dtype} on {expected.device}")
    print(f"{expected.step_seconds:.2f} s a step, {expected.target_tokens_per_second:,.0f} target tokens/s")
    print(f"{expected.peak_memory_bytes / 2**20:,.0f} MiB at the peak, of {expected.memory_bytes / 2**20:,.0f}")
    print(
        f"{expected.n_steps:,} steps: {expected.hours:,.1f} hours, {expected.flops:.1e} floating-point operations of "
        "the model"
    )
    if expected.least_steps < expected.n_steps:
        print(
            f"training.patience={recipe.training.patience} can end it from step {expected.least_steps:,} on, after "
            f"{duration(expected.least_steps * expected.step_seconds)}: as soon as dev no longer improves."
        )
    if n_teachers:
        print(f"Not included: {counted(n_teachers, 'teacher')}, at up to this cost each, and their translations.")


def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Number of recent checkpoints to average; best: the average that scores best on the recipe's dev set, "
            "as training.average_last chooses it.",
        ),
    ] = "5",
    out: Annotated[Path | None, typer.Option(help="Model folder to write. Default: RUN/model.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="With --last best, folder of downloaded corpora. Default: corpora.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="With --last best, local folder or URL to take the corpus from.")
    ] = None,
) -> None:
    """Average the last checkpoints of a run into a model folder."""
    if last != "best" and not (re.fullmatch("[0-9]{1,9}", last) and int(last)):
        raise HeedError(f'--last {cut(last)}: expected a number from 1 to 999,999,999, or "best".')
    for option, value in (("--dir", directory), ("--mirror", mirror)):
        if value is not None and last != "best":
            raise HeedError(f"{option} is for --last best, which reads the dev set; leave it out.")
    import_torch()
    from heed.api import average as averaged

    show(
        averaged(
            run,
            "best" if last == "best" else int(last),
            out=out,
            corpora=directory or Path("corpora"),
            mirror=mirror,
            report=say,
        )
    )


def info(
    path: Annotated[Path, typer.Argument(help="A model folder, a run folder or a recipe.")],
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Count a recipe's parameters for this vocabulary.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show a model's shapes, parameters by part, training data and scores."""
    from heed.runs.describe import describe

    description = describe(path, vocab_size=vocab_size)
    if as_json:
        print_json(description)
        return
    for title, content in description.items():
        show(title if isinstance(content, dict) else f"{title}: {content}")
        if isinstance(content, dict):
            for name, value in content.items():
                show(f"  {name}: {value:,}" if type(value) is int else f"  {name}: {value}")


@with_options(workforce=cpus_of)
def prepare(
    recipe: RecipeName,
    settings: Overrides = None,
    run: Annotated[
        Path | None, typer.Option("--run", "--run-folder", help="Run folder. Default: runs/NAME of the recipe.")
    ] = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    *,
    workforce: "Workforce",
) -> None:
    """Prepare a run's text before it is trained, by many workers if it is large. Run again, it resumes.

    Corpora of more than 10 million pairs, and others if data.shard_pairs is set, are kept in shards.
    """
    from heed.data.corpora.download import Corpora
    from heed.runs.prepare import prepare_run
    from heed.runs.recipe import is_run_folder, read_recipe

    run = run or (Path(recipe) if is_run_folder(recipe) else Path("runs") / Path(recipe).stem)
    values = read_recipe(recipe, settings or [])
    if workforce.is_this_process and workforce.threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(
            workforce.threads
        )  # of the tokenizer, which starts them when it is first used
    if prepare_run(values, run, Corpora(directory, mirror, say), workforce):
        show(f"Prepared: {run / 'data'}")


recipe_app = verb_group("Recipes that come with Heed.")


@recipe_app.command("list", cls=Verb, epilog="Example: heed recipe list")
def recipe_list(as_json: JSON = False) -> None:
    """List the names that heed train knows."""
    from heed.runs.recipes import recipe_names, recipe_title

    titles = {name: recipe_title(name) for name in recipe_names()}
    if as_json:
        print_json([{"name": name, "title": title} for name, title in titles.items()])
        return
    width = max(map(len, titles))
    for name, title in titles.items():
        show(f"{name:{width}}  {title}")


@recipe_app.command("show", cls=Verb, epilog="Example: heed recipe show multi30k-en-de > my.toml")
def recipe_show(
    name: Annotated[str, typer.Argument(help="A name that `heed recipe list` shows.", autocompletion=complete_recipe)],
) -> None:
    """Print a recipe, as a starting point for your own."""
    from heed.runs.recipes import recipe_text

    print(recipe_text(name), end="")
