"""Recipe → trained and scored model: prepare the text, train, average the last checkpoints, evaluate."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from heed.backends.choice import kernels_state
from heed.backends.dispatch import backend_for
from heed.data.batches.batch import Rows
from heed.data.batches.mixed_batches import MixedBatches
from heed.data.batches.token_batches import PADDED, BatchLimits, Step, TokenBatches
from heed.data.corpora.download import Corpora, Report
from heed.data.corpus.shard import ParallelCorpus
from heed.data.corpus.sharded import TrainingCorpus
from heed.data.preparation.job import Prepared, prepare
from heed.data.preparation.tags import shown_codes, tagged_languages
from heed.data.reading.text_files import TextFiles
from heed.decoding.scoring import perplexity
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source, maximum_length
from heed.errors import HeedError
from heed.model import networks
from heed.model.cost import n_parameters
from heed.model.networks import is_installed, network_of
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, ModelFolder, load_model, read_config
from heed.runs.average import KEPT, SUSTAINED, average_best, average_better, average_run, report_if_worse
from heed.runs.context import RunContext
from heed.runs.evaluate import evaluate_run
from heed.runs.prepare import lost_tokenizer
from heed.runs.recipe import Recipe
from heed.runs.run_folder import check_all_see, open_run_folder, recipe_of_run
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.teach import teach
from heed.runtime.device import Machine, choose_machine, matrix_product_rate, micro_batch_tokens, n_threads
from heed.runtime.files import remove_unfinished
from heed.runtime.progress import counted
from heed.text.tokenizer_kinds import AnyTokenizer
from heed.training import schedule
from heed.training.callbacks import NO_CALLBACKS, Callbacks
from heed.training.checkpoint import Checkpoints, plan_name, state_names
from heed.training.distributed import ALONE, is_spawned, join_workers, may_spawn, spawn_workers
from heed.training.divergence import unigram_loss
from heed.training.logbook import Logbook
from heed.training.schedule import fine_tuning_rate, rate_of_step
from heed.training.settings import TrainingSettings
from heed.training.trainer import train
from heed.training.validation import batch_nll, cross_entropy

MACHINE, IDS_HASH = "machine", "sha256 of its ids"  # on the card
MUCH_HIGHER = 5  # times the rate for fine-tuning
FEW_PAIRS = 3_000
EXAMINED_SOURCES = 1000  # of a set, for codes of languages
MAX_SPAWNING_PARAMETERS = 10_000_000  # a larger model trains in one process: see `n_workers`


def train_recipe(
    recipe: Recipe, run: Path, corpora: Corpora, *, callbacks: Callbacks = NO_CALLBACKS
) -> list[Evaluation]:
    """Trains the recipe's model in a run folder: downloads and prepares its text, trains, averages, evaluates.

    Its teachers (`training.n_teachers`) come first. Called again, it resumes; after the end, it averages and evaluates
    again. Returns the scores on dev and the test sets, of the average and of the last checkpoint. callbacks: of the
    run, not of its teachers. On a CPU a small model is trained by several processes (`n_workers`).
    """
    network_of(recipe.model, where=str(run))  # a missing package shows before the text is prepared
    schedule.package_of(recipe.training)
    machine = choose_machine(recipe.training.precision)
    workers = join_workers(machine.device)
    corpora_here = corpora if workers.first else corpora.without_reports()
    recipe = recipe_of_run(recipe, run, report=corpora_here.report)
    context = RunContext(recipe, run, corpora_here, machine, workers)
    with ExitStack() as stack:
        if workers.first:
            stack.enter_context(open_run_folder(recipe, run, report=context.report))
        if workers.n > 1 and not is_spawned():  # they may be on several machines
            check_all_see(run, workers)
        if recipe.training.n_teachers and not is_spawned():
            teach(context, train_recipe)
        files: TextFiles | None = None
        if workers.first:
            files = context.task.text_files(run, context.corpora)
            if machine.device.type == "cpu":
                kernels_state()  # compiles them, once for all workers
        if workers.n == 1:
            arguments = ["train", str(run.absolute()), *corpora.options()]
            spawned = spawn_workers(
                n_workers(recipe, machine, plan=plan_name(run / "checkpoints")), arguments, report=context.report
            )
            context = replace(context, workers=stack.enter_context(spawned))
        context.workers.broadcast(None)  # the others wait until the first has all files
        return train_files(context, files or context.task.text_files(run, context.corpora), callbacks=callbacks)


def n_workers(recipe: Recipe, machine: Machine, *, plan: str | None = None) -> int:
    """Number of processes that train together: more than one only for a small model on a CPU.

    Threads wait for each other hundreds of times per step; workers wait once, to sum their gradients. More workers than
    a step has passes would make these short, and their number must divide that of the threads. plan: that the run began
    with, so that it keeps its number of processes.
    """
    settings = recipe.training
    small = n_parameters(recipe.model, recipe.tokenizer.vocab_size) <= MAX_SPAWNING_PARAMETERS
    if machine.device.type != "cpu" or not small or not may_spawn() or not is_installed(recipe.model):
        return 1
    micro_tokens = settings.micro_tokens(micro_batch_tokens(machine.device))
    rest = 0 if plan == PADDED else micro_tokens - 1
    n_passes = (settings.batch_tgt_tokens + rest) // micro_tokens
    return max(n for n in range(1, max(1, n_passes) + 1) if n_threads() % n == 0)


def train_files(context: RunContext, files: TextFiles, *, callbacks: Callbacks = NO_CALLBACKS) -> list[Evaluation]:
    """Does what `train_recipe` does, on these files. Workers other than the first return no scores."""
    recipe, run, machine, workers = context.recipe, context.run, context.machine, context.workers
    settings, report = recipe.training, context.report
    report(_machine_line(context))
    # A model that training starts from, or a run that lost its tokenizer, decides the tokenizer: read before the data.
    given = _given_model(recipe, run)
    prepared = _prepare(context, files, given.tokenizer if given else lost_tokenizer(run))
    tokenizer = prepared.tokenizer
    _check_same_text(prepared.train, run)
    _report_missing_codes(prepared, report)
    is_trained = given is not None
    model = _first_model(context, tokenizer, given)
    del given
    _check_limits(context, prepared)

    # The card is saved with every checkpoint, so it is made before the first.
    batches = _training_batches(context, files, prepared.train, tokenizer)
    card = _card(context, files, prepared.train, prepared.tokenizer)
    card.trained_on.update(batches.facts())
    if settings.start_from is not None:
        card.trained_on["started from"] = Path(settings.start_from).name

    # Only the first worker writes; what is unfinished was left by a process that was killed.
    if workers.first:
        remove_unfinished(run / "checkpoints")
        remove_unfinished(run)
    checkpoints = Checkpoints(
        run / "checkpoints",
        keep=settings.keep_checkpoints,
        keep_best=settings.keeps_best,
        tokenizer=tokenizer,
        card=card,
        report=report,
        workers=workers,
    )

    # `validate` scores dev during training; the unigram loss is what a model reaches that has learned only frequencies.
    dev = _kinds(context)[0](prepared.dev, tokenizer.special, _limits(context))
    state = train(
        *(model, batches, settings, machine),
        workers=workers,
        run=run,
        checkpoints=checkpoints,
        validate=_validation(context, files, dev, tokenizer),
        report=report,
        callbacks=callbacks,
        unigram_loss=unigram_loss(prepared.train, prepared.dev, vocab_size=len(tokenizer), eos=tokenizer.special.eos),
        stages=batches.stages,
        is_trained=is_trained,
    )

    # The other workers are done: averages and scores are made by one process, with all threads.
    if not workers.first:
        return []
    trained = read_config(run / "checkpoints" / str(state.step)).card.trained_on
    # Of the machine that took the last step, which may have been in a call before this one.
    card.trained_on.update({name: trained[name] for name in (MACHINE, SUSTAINED) if name in trained})
    batches = batches.with_micro_tokens(state.micro_tokens)
    card.trained_on["epochs"] = round(state.epochs(len(state.plan_of(batches))), 2)
    card.trained_on.update(batches.facts_at(state.epoch, state.epoch_state, step=state.step))
    return _averaged_and_scored(context, files, card, dev, tokenizer=tokenizer, step=state.step)


def _first_model(context: RunContext, tokenizer: AnyTokenizer, given: ModelFolder | None) -> Transformer:
    """The model before training: its weights come from the seed, unless a given model replaces them."""
    recipe, settings, report = context.recipe, context.recipe.training, context.report
    torch.manual_seed(settings.seed)
    model = network_of(recipe.model)(recipe.model, len(tokenizer), tokenizer.src_vocab_size)
    if given is not None:
        # The highest rate: that of the end of the warm-up, or of a shorter run.
        d_model, highest = recipe.model.d_model, min(settings.warmup_steps, settings.max_steps)
        rate, usual = rate_of_step(highest, settings, d_model=d_model), fine_tuning_rate(d_model)
        report(f"Starting from the weights in {settings.start_from}, at a learning rate of up to {rate:.1e}.")
        if rate > MUCH_HIGHER * usual:
            report(
                f"Remark: such a rate is for training from nothing, and may undo what the model has learned; for "
                f'fine-tuning, try training.schedule="constant" with training.learning_rate={usual:g}.'
            )
        model.load_state_dict(given.model.state_dict())
    return model


def _check_limits(context: RunContext, prepared: Prepared) -> None:
    """HeedError, or a remark, for limits that these data break: before hours of training."""
    recipe, report, tokenizer = context.recipe, context.report, prepared.tokenizer
    _check_positions(recipe, prepared)
    if recipe.parsing is None:  # a tree is as long as it has to be
        _report_unreachable(prepared.train, recipe.decoding, report)
        if (n := len(prepared.train)) < FEW_PAIRS and recipe.training.start_from is None:
            report(
                f"Remark: {n:,} pairs are too few to learn a language from: some ten thousand are needed. A trained "
                "model (heed import) can do without, or learn from these (training.start_from)."
            )
    n_weights = n_parameters(recipe.model, len(tokenizer), tokenizer.src_vocab_size)
    report(f"The model has {n_weights:,} parameters, {len(tokenizer):,} ids.")
    if remark := recipe.training.cut_schedule(_expected_steps(prepared.train, recipe.training)):
        report(remark)


def _averaged_and_scored(
    context: RunContext, files: TextFiles, card: ModelCard, dev: TokenBatches, *, tokenizer: AnyTokenizer, step: int
) -> list[Evaluation]:
    """The scores of RUN/model, which becomes an average of checkpoints or the best one (average_last, keep_better)."""
    run, machine, settings, report = context.run, context.machine, context.recipe.training, context.report
    alone = replace(context, workers=ALONE)

    # The numbers by which training chose its best checkpoint, of any model.
    def measure(model: Transformer) -> Mapping[str, float]:
        model = model.to(machine.device, machine.dtype).eval()
        if settings.best_by == "loss":
            return {"loss": cross_entropy(model, map(dev.collate, _passes(dev, dev.plan(0), model)))}
        return _validation(alone, files, dev, tokenizer)(model)

    on_dev: Mapping[Path, Evaluation] = {}
    title = "average"
    with context.workers.all_threads():
        with closing(Logbook(run, resumed_step=step, repeated="average", report=report)) as logbook:
            if settings.average_last == "best":
                _, on_dev = average_best(
                    run, context.task, files.dev, settings=settings, report=report, card=card, logbook=logbook
                )
                title = read_config(run / "model").card.trained_on[KEPT].partition(",")[0]
                title = "average" if title.startswith("average") else f"kept, {title}"
            elif settings.keep_better:
                title = average_better(run, settings, measure, report=report, card=card, logbook=logbook)
            else:
                card.trained_on[KEPT] = "the average, whatever the best checkpoint scores (training.keep_better=false)"
                average_run(run, last=settings.average_last, report=report, card=card)
        if settings.average_last == "best" or not settings.keep_better:
            report_if_worse(run, settings, measure, report=report)
        return evaluate_run(context, files, title=title, known=on_dev)


def _machine_line(context: RunContext) -> str:
    machine, workers = context.machine, context.workers
    n_processes = f" by {workers.n} workers" if workers.n > 1 else ""
    on_cpu = f" with {counted(n_threads(), 'thread')}, {kernels_state()}" if machine.device.type == "cpu" else ""
    return f"Computing on {machine}{n_processes}{on_cpu}."


def _given_model(recipe: Recipe, run: Path) -> ModelFolder | None:
    """The model that a new run starts from; None if it starts from random weights or resumes from a checkpoint.

    HeedError if the recipe asks for a network of another shape.
    """
    folder = recipe.training.start_from
    if folder is None or state_names(run / "checkpoints"):
        return None
    given = load_model(Path(folder))
    shape, given_shape = recipe.model.shape(), given.model.arch.shape()
    for name in shape:
        if shape[name] != given_shape[name]:
            raise HeedError(
                f"model.{name} is {shape[name]!r}, but training.start_from ({folder}) has {given_shape[name]!r}."
            )
    return given


def _check_same_text(corpus: TrainingCorpus, run: Path) -> None:
    """HeedError if a run's checkpoints are of another text: RUN/data, which would tell, may have been deleted."""
    for name in state_names(run / "checkpoints"):
        try:
            trained_on = read_config(run / "checkpoints" / name).card.trained_on
        except HeedError:  # damaged, which is said, and mended, where it is needed
            continue
        if trained_on.get(IDS_HASH, corpus.fingerprint) != corpus.fingerprint:
            raise HeedError(
                f"{run}: the training text has changed since the run began; restore the old text and delete "
                f"{run / 'data'}, or choose another --run."
            )


def _report_missing_codes(prepared: Prepared, report: Report) -> None:
    """Says how many sources begin with no code of a target language, if the given model knows several."""
    codes = prepared.tokenizer.language_codes
    if len(codes) < 2:
        return
    ids = set(codes.values())
    for name, corpus in (("dev", prepared.dev), ("train", prepared.train)):
        if isinstance(corpus, ParallelCorpus):
            rows = range(0, len(corpus), max(1, len(corpus) // EXAMINED_SOURCES))
            if n_without := sum(ids.isdisjoint(corpus[row][0][:1].tolist()) for row in rows):
                report(
                    f"Remark: {name}: {n_without:,} of {len(rows):,} sources begin with no code of a target language "
                    f"({shown_codes(codes)}), by which the given model chooses one; put a code before each source, or "
                    "give the parts of a mix such a tag (data.mix)."
                )


def _prepare(context: RunContext, files: TextFiles, given: AnyTokenizer | None) -> Prepared:
    """Tokenizer and ids in RUN/data. The first worker writes them; the others wait, then read them."""
    recipe, folder = context.recipe, context.run / "data"
    for first in (True, False):
        if context.workers.first == first:
            prepared = prepare(files, recipe.data, recipe.tokenizer, folder=folder, report=context.report, given=given)
        context.workers.broadcast(None)
    return prepared


def _check_positions(recipe: Recipe, prepared: Prepared) -> None:
    """HeedError names a pair that is too long for learned positions."""
    if recipe.model.positions != "learned":
        return
    most = recipe.model.max_positions
    longest = []  # ids of the longest side of each set, and where it stands
    for corpus in (prepared.train, prepared.dev):
        n_ids, line = corpus.longest
        longest.append((n_ids, *corpus.place(line)))
    for n_ids, file, line in longest:
        if n_ids >= most:  # with bos or eos
            raise HeedError(
                f"{file or 'the prepared text'}, line {line:,}: {n_ids + 1:,} positions, but model.max_positions is "
                f"{most:,}: raise it, or shorten the line."
            )


def _report_unreachable(corpus: TrainingCorpus, settings: DecodingSettings, report: Report) -> None:
    """Says how many targets to learn from are longer than a search will ever make theirs."""
    n_src, n_tgt, n_pairs, lines = corpus.length_counts().T
    limits = np.zeros(n_src.max() + 1, np.int64)
    for length in np.unique(n_src).tolist():
        limits[length] = maximum_length(Source(0, (), length=length), settings)
    too_long = n_tgt >= limits[n_src]  # eos counts too
    if too_long.any():
        file, line = corpus.place(int(lines[too_long].min()))
        n_too_long = int(n_pairs[too_long].sum())
        report(
            f"{n_too_long:,} of {len(corpus):,} training targets are longer than decoding.max_extra_tokens="
            f"{settings.max_extra_tokens} or max_tokens let a translation be, first in the pair of {file}, line "
            f"{line:,}."
        )


def _expected_steps(corpus: TrainingCorpus, settings: TrainingSettings) -> float | None:
    """The fewest steps that max_epochs allow; None where other limits may come first, or none is set."""
    if settings.max_epochs is None or settings.max_minutes is not None:
        return None
    n_src, n_tgt, n_pairs, _ = corpus.length_counts().T
    limits = settings.batch_src_tokens, settings.batch_tgt_tokens
    n_batches = max(((side * n_pairs).sum() / most for side, most in zip((n_src, n_tgt), limits, strict=True)))
    return float(settings.max_epochs * n_batches)


def _card(context: RunContext, files: TextFiles, corpus: TrainingCorpus, tokenizer: AnyTokenizer) -> ModelCard:
    card = context.task.card(files)
    if files.directions:
        card = replace(card, languages=tagged_languages(tokenizer, files.directions))
    recipe = context.recipe
    packages = {
        "network's package": networks.package_of(recipe.model),
        "schedule's package": schedule.package_of(recipe.training),
    }
    card.trained_on.update(
        {what: package for what, package in packages.items() if package is not None}
        | {
            "pairs": len(corpus),
            IDS_HASH: corpus.fingerprint,
            MACHINE: str(context.machine),
            SUSTAINED: f"{context.workers.n * matrix_product_rate(context.machine):.2e}",
        }
    )
    return card


def _validation(
    context: RunContext, files: TextFiles, dev: TokenBatches, tokenizer: AnyTokenizer
) -> Callable[[Transformer], dict[str, float]]:
    """The numbers logged at every checkpoint: cross-entropy and perplexity of dev, and the task's own score.

    Workers share its batches and sentences; the first one has the numbers, which do not depend on how many share them.
    """
    workers = context.workers
    validator = context.task.validator(files, tokenizer, context.report, workers=workers)
    steps = dev.plan(0)
    n_tokens = dev.workload(list(chain.from_iterable(steps))).n_tgt

    @workers.all_threads()
    def validate(model: Transformer) -> dict[str, float]:
        def nlls(some: list[Rows]) -> list[float]:
            return [batch_nll(model, dev.collate(rows)) for rows in some]

        total = 0.0
        for nll in workers.map(nlls, _passes(dev, steps, model)):  # in the order of `cross_entropy`, whose sum it is
            total += nll
        nats = total / n_tokens
        scores = {f"greedy_{name}": score for name, score in validator(model).items()}
        return {"loss": nats, "perplexity": perplexity(nats), **scores}

    return validate


def _training_batches(
    context: RunContext, files: TextFiles, corpus: TrainingCorpus, tokenizer: AnyTokenizer
) -> TokenBatches:
    """Returns the batches of the whole corpus, or of the recipe's mix, whose shares are reported."""
    mix = context.recipe.data.mixture
    whole, mixed = _kinds(context)
    if mix is None:
        return whole(corpus, tokenizer.special, _limits(context))
    n_files = [part.n_files for part in files.parts]
    batches = mixed(corpus, tokenizer.special, _limits(context), mix=mix, n_files=n_files)
    for line in mix.lines(batches.sizes):
        context.report(f"Mix: {line}.")
    return batches


def _kinds(context: RunContext) -> tuple[type[TokenBatches], type[MixedBatches]]:
    """Returns the classes of batches, of a text and of a mix, of the plan that the run began with, or of a new run."""
    if plan_name(context.run / "checkpoints") != PADDED:
        return TokenBatches, MixedBatches
    from heed.data.batches.padded_plan import PaddedBatches, PaddedMixedBatches

    return PaddedBatches, PaddedMixedBatches


def _limits(context: RunContext) -> BatchLimits:
    settings = context.recipe.training
    return BatchLimits(
        max_src_tokens=settings.batch_src_tokens,
        max_tgt_tokens=settings.batch_tgt_tokens,
        micro_tokens=settings.micro_tokens(micro_batch_tokens(context.machine.device)),
        seed=settings.seed,
    )


def _passes(batches: TokenBatches, steps: Sequence[Step], model: Transformer) -> list[Rows]:
    """All that a validation of the model computes, pass by pass."""
    padded = backend_for(model).computes_padding
    return [rows for step in steps for rows in batches.passes(step, padded=padded)]
