"""The whole story, one function a verb: prepare → train → average → translate → score."""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from heed.backends.cpu.build import state as kernels_state
from heed.config import read_toml, toml_text, validated
from heed.data.batching import Batch, TokenBatches
from heed.data.corpus import ParallelCorpus
from heed.data.lines import read_pairs
from heed.data.prepare import TextFiles, prepare
from heed.data.sources import DownloadProgress, NotHere, fetch
from heed.decoding.scoring import cross_entropy, perplexity
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.evaluation.bleu import Score, Tokenization, bleu, chrf, exact_matches
from heed.model.cost import n_parameters, parameters_by_part, training_flops
from heed.model.transformer import Transformer
from heed.model_folder import MODEL_FILES, ModelCard, load_weights, read_config, replace_card, save_model
from heed.parsing.evalb import evalb
from heed.parsing.parser import Parser
from heed.parsing.treebank import gold_trees, training_trees, treebank_folder, trees_of, write_lines
from heed.parsing.trees import Tree
from heed.recipe import Recipe, read_preset, read_recipe
from heed.runtime.device import Machine, choose_machine, matrix_product_rate, micro_batch_tokens, n_threads
from heed.runtime.files import MANIFEST, check, check_replaceable, locked, remove_unfinished, whole_file
from heed.runtime.memory import keep_freed_memory
from heed.text.numbers import english, german, number_splits
from heed.text.tokenizer import Tokenizer
from heed.training.checkpoint import Checkpoints, averaged_weights, checkpoint_steps, read_progress
from heed.training.distributed import Workers, join_workers, may_spawn, spawn_workers
from heed.training.logbook import Logbook, duration
from heed.training.trainer import train

Report = Callable[[str], None]
SUSTAINED = "sustained FLOP/s"  # of a large matrix product on the machine that trained, all workers together
HELPED_PARAMETERS = 10_000_000  # at most: see `n_workers`
# In a run folder, beside config.toml.
RUN_NAMES = ("corpus", "lines", "data", "checkpoints", "metrics.jsonl", "tensorboard", "model")
MODEL_FOLDER_NAMES = (*MODEL_FILES, MANIFEST, "README.md")
DEMO_PAIRS = 40_000  # of a million; 2,000 others are held out for the test


@dataclass(frozen=True)
class Evaluation:
    """What a model scores on one set of pairs: BLEU and chrF of translations, F1 of trees."""

    name: str
    n_lines: int
    scores: Mapping[str, Score]  # by key: bleu, chrf, f1
    perplexity: float | None = None

    def numbers(self) -> dict[str, Any]:
        """For JSON and logs: values with their signatures."""
        found: dict[str, Any] = {"name": self.name, "lines": self.n_lines}
        for key, score in self.scores.items():
            found |= {key: score.value, f"{key}_signature": score.signature}
        return found if self.perplexity is None else found | {"perplexity": self.perplexity}

    def __str__(self) -> str:
        parts = [str(score) for score in self.scores.values()]
        if self.perplexity is not None:
            parts.append(f"perplexity {self.perplexity:.3f} a token")
        return "; ".join(parts)


def corpus_files(
    recipe: Recipe,
    run: Path,
    *,
    directory: Path,
    mirror: str | None,
    report: Report,
    progress: DownloadProgress | None = None,
    fetching: bool = True,
) -> TextFiles:
    """The text files that a recipe trains on; with `fetching` False NotHere names one that is not there.

    A named corpus is fetched into `directory` unless it is there; a treebank's lines are written into RUN/lines.
    """
    data = recipe.data
    if recipe.parsing is not None:
        files = write_lines(recipe.parsing, run / "lines", directory=directory, mirror=mirror, report=report)
        return TextFiles((files.pop("train"),), files.pop("dev"), files)
    if data.corpus is not None:
        found = fetch(
            data.corpus,
            src=data.src,
            tgt=data.tgt,
            variant=data.variant,
            directory=directory,
            mirror=mirror,
            report=report,
            progress=progress,
            fetching=fetching,
        )
        return TextFiles(found.train, found.dev, found.tests)
    assert data.train is not None and data.dev is not None  # DataSettings saw to it
    tests = {name: (Path(files[0]), Path(files[1])) for name, files in data.tests.items()}
    return TextFiles(((Path(data.train[0]), Path(data.train[1])),), (Path(data.dev[0]), Path(data.dev[1])), tests)


def count_pairs(recipe: Recipe, *, directory: Path, mirror: str | None, report: Report) -> int | None:
    """Pairs of the training text, which is read through once as all other is; None if it is still to be fetched."""
    data = recipe.data
    if (parsing := recipe.parsing) is not None:
        folder = treebank_folder(parsing, directory=directory, mirror=mirror)
        for entries in (parsing.dev, *parsing.tests.values()):
            for _ in trees_of(folder, entries, functions=parsing.functions):
                pass
        gold = list(trees_of(folder, parsing.train, functions=parsing.functions))
        n_trees = sum(1 for _ in training_trees(parsing, folder, gold))
        report(f"{n_trees:,} training trees from {len(gold):,} gold ones in {folder}; those of dev and tests are read.")
        return n_trees
    try:
        files = corpus_files(recipe, Path(), directory=directory, mirror=mirror, report=report, fetching=False)
    except NotHere as missing:
        report(f"{missing} The run will do that (or heed data get {data.corpus}).")
        return None
    n_pairs = sum(1 for pair in files.train for _ in read_pairs(pair))
    for pair in (files.dev, *files.tests.values()):
        for _ in read_pairs(pair):
            pass
    report(f"{n_pairs:,} training pairs; both sides of every file have as many lines.")
    return n_pairs


def train_recipe(
    recipe: Recipe,
    run: Path,
    *,
    directory: Path,
    mirror: str | None,
    report: Report,
    progress: DownloadProgress | None = None,
) -> list[Evaluation]:
    """Everything that is still missing in the run folder, in order: corpus, tokenizer, ids, training, average, scores.

    The same call again resumes. Returns the scores on the test sets, of the average and of the last checkpoint.
    """
    machine = choose_machine(recipe.training.precision)
    workers = join_workers(machine.device)
    if not workers.first:
        report, progress = _silent, None
    with ExitStack() as at_the_end:
        if workers.first:
            at_the_end.enter_context(begun(recipe, run, report=report))
            corpus_files(recipe, run, directory=directory, mirror=mirror, report=report, progress=progress)
            if machine.device.type == "cpu":
                kernels_state()  # makes them, once for all workers
        if workers.n == 1:
            arguments = ["train", str(run), "--dir", str(directory)]
            arguments += [] if mirror is None else ["--mirror", mirror]
            helpers = spawn_workers(n_workers(recipe, machine), arguments, report=report)
            workers = at_the_end.enter_context(helpers)
        workers.broadcast(None)  # until the first one has fetched all
        files = corpus_files(recipe, run, directory=directory, mirror=mirror, report=_silent)
        return train_files(recipe, files, run, machine, workers, report=report)


def n_workers(recipe: Recipe, machine: Machine) -> int:
    """How many processes `train_recipe` makes of one: on a CPU, for a small model, as many as a step has micro-batches.

    Threads wait for each other hundreds of times a step, workers once, to add up their gradients. More workers than
    micro-batches would make short passes, and threads left over would be wasted.
    """
    settings = recipe.training
    small = n_parameters(recipe.model, recipe.tokenizer.vocab_size) <= HELPED_PARAMETERS
    if machine.device.type != "cpu" or not small or not may_spawn():
        return 1
    n_micro = settings.batch_tgt_tokens // (settings.micro_batch_tokens or micro_batch_tokens(machine.device))
    return max(n for n in range(1, max(1, n_micro) + 1) if n_threads() % n == 0)


def _silent(line: str) -> None:
    """Says nothing: what one of many workers says is enough."""


def train_files(
    recipe: Recipe, files: TextFiles, run: Path, machine: Machine, workers: Workers, *, report: Report
) -> list[Evaluation]:
    """As `train_recipe`, on these files. Workers but the first one return no scores."""
    keep_freed_memory()
    settings = recipe.training
    together = f" by {workers.n} workers" if workers.n > 1 else ""
    on_cpu = f" with {n_threads()} thread(s), {kernels_state()}" if machine.device.type == "cpu" else ""
    report(f"Computing on {machine}{together}{on_cpu}.")
    for turn in (True, False):  # the first worker prepares, the others then find all there
        if workers.first == turn:
            prepared = prepare(files, recipe.data, recipe.tokenizer, folder=run / "data", report=report)
        workers.broadcast(None)
    tokenizer = prepared.tokenizer
    torch.manual_seed(settings.seed)
    model = Transformer(recipe.model, len(tokenizer))
    report(f"The model has {n_parameters(recipe.model, len(tokenizer)):,} parameters, {len(tokenizer):,} ids.")

    batches = _batches(recipe, prepared.train, tokenizer, machine)
    card = ModelCard(
        recipe.data.src,
        recipe.data.tgt,
        parsing=recipe.parsing.linearisation() if recipe.parsing else {},
        decoding=recipe.decoding.model_dump(),
        trained_on={
            "corpus": recipe.data.corpus or (f"treebank {recipe.parsing.treebank}" if recipe.parsing else "own files"),
            "pairs": len(prepared.train),
            "sha256 of its ids": prepared.train.fingerprint,
            "machine": str(machine),
            SUSTAINED: f"{workers.n * matrix_product_rate(machine):.2e}",
        },
    )
    if workers.first:
        remove_unfinished(run / "checkpoints")
        remove_unfinished(run)
    checkpoints = Checkpoints(
        run / "checkpoints",
        keep=settings.keep_checkpoints,
        tokenizer=tokenizer,
        card=card,
        report=report,
        workers=workers,
    )
    dev = _batches(recipe, prepared.dev, tokenizer, machine)
    dev_trees = gold_trees(files.dev[0]) if recipe.parsing else []
    dev_pairs = [] if recipe.parsing else list(read_pairs(files.dev))
    # During training greedy search will do: it ranks checkpoints alike at a fraction of the time.
    greedy = recipe.decoding.model_copy(update={"beam_size": 1})

    @workers.others_wait()
    def validate(current: Transformer) -> dict[str, float]:
        nats = cross_entropy(current, _all_batches(dev, machine))
        precision = machine.precision
        if recipe.parsing is not None:
            parser = Parser(current, tokenizer, greedy, recipe.parsing, precision=precision)
            name, score = "f1", parsing_scores(parser, dev_trees)["f1_of_all_gold"]
        else:
            translator = Translator(current, tokenizer, greedy, precision=precision)
            texts = [translation.text for translation in translator.translate(src for src, _ in dev_pairs)]
            references = [tgt for _, tgt in dev_pairs]
            name, score = "bleu", bleu(texts, references, tokenize=recipe.evaluation.tokenize)
        return {"loss": nats, "perplexity": perplexity(nats), f"greedy_{name}": score.value}

    progress = train(
        model, batches, settings, machine, workers, run=run, checkpoints=checkpoints, validate=validate, report=report
    )
    if not workers.first:
        return []
    epochs = progress.epoch + progress.batch / max(1, len(batches.plan(progress.epoch)))
    card.trained_on["epochs"] = round(epochs, 2)
    with workers.others_wait():
        return _average_and_evaluate(recipe, files, run, card, report)


def _average_and_evaluate(
    recipe: Recipe, files: TextFiles, run: Path, card: ModelCard, report: Report
) -> list[Evaluation]:
    """The averaged model beside the last checkpoint, on dev and on every test set; writes RUN/model."""
    model_folder = average_run(run, last=recipe.training.average_last, report=report, card=card)
    last_step = checkpoint_steps(run / "checkpoints")[-1]
    card = read_config(model_folder)[2]
    results = []
    logbook = Logbook(run, resumed_step=last_step, report=report)
    for title, folder in (("average", model_folder), ("last checkpoint", run / "checkpoints" / str(last_step))):
        model = Translator.load(folder) if recipe.parsing is None else Parser.load(folder, report=report)
        for name, pair in {"dev": files.dev, **files.tests}.items():
            report(f"{'Translating' if recipe.parsing is None else 'Parsing'} {name} with the {title}.")
            label = f"{name} ({title})"
            if isinstance(model, Parser):
                gold = gold_trees(pair[0])
                result = Evaluation(label, len(gold), parsing_scores(model, gold))
            else:
                sources, references = map(list, zip(*read_pairs(pair), strict=True))
                tokenize = recipe.evaluation.tokenize
                result = evaluate_model(model, sources, references, name=label, tokenize=tokenize)
            logbook.record("test", last_step, **result.numbers())
            results.append(result)
            if title == "average":
                card.scores[name] = str(result)
    logbook.close()
    replace_card(model_folder, card)
    return results


def average_run(
    run: Path, *, last: int, report: Report, out: Path | None = None, card: ModelCard | None = None
) -> Path:
    """Averages the last checkpoints of a run into a model folder, RUN/model unless another is given."""
    out = out or run / "model"
    _check_out(out, run)
    steps = checkpoint_steps(run / "checkpoints")
    if not steps:
        raise HeedError(f"{run}: no checkpoints; expected a run folder with checkpoints/STEP in it.")
    chosen = steps[-last:]
    if len(chosen) < last:
        report(f"Only {len(chosen)} checkpoints are there, not {last}; averaging those.")
    folders = []
    for folder in (run / "checkpoints" / str(step) for step in chosen):
        try:
            check(folder, MODEL_FILES)
            folders.append(folder)
        except HeedError as error:
            report(f"{error} Left out of the average.")
    if not folders:
        raise HeedError(f"{run}: no good checkpoint is left to average.")
    chosen = [int(folder.name) for folder in folders]
    arch, vocab_size, old_card = read_config(folders[-1])
    weights = averaged_weights(folders)
    model = Transformer(arch, vocab_size)
    load_weights(model, weights, where=folders[-1])
    card = card or old_card
    average = {"average of steps": ", ".join(map(str, chosen))}
    described = replace(card, trained_on={**card.trained_on, **_costs(folders[-1], card), **average})
    save_model(out, model, Tokenizer.load(folders[-1] / "tokenizer.json"), described)
    report(f"Averaged {len(chosen)} checkpoints (steps {chosen[0]:,} to {chosen[-1]:,}) into {out}.")
    return out


def _check_out(out: Path, run: Path) -> None:
    """HeedError if a model must not be put there: what would be lost is a user's, or the run's own."""
    place = Path(os.path.realpath(out))
    for name in RUN_NAMES:
        own = Path(os.path.realpath(run / name))
        if own in place.parents or (own == place and name != "model"):
            raise HeedError(f"--out {out}: in {run / name}, which training writes to; choose another folder.")
    check_replaceable(out, MODEL_FOLDER_NAMES)


def _costs(checkpoint: Path, card: ModelCard) -> dict[str, Any]:
    """What training took up to a checkpoint, for a model's card; FLOPs by formula and as the paper counts them."""
    progress = read_progress(checkpoint)
    arch, vocab_size, _ = read_config(checkpoint)
    flops = training_flops(arch, vocab_size, progress.work, n_steps=progress.step)
    costs = {"steps": progress.step, "time": duration(progress.seconds), "FLOPs": f"{flops:.2e}"}
    if sustained := card.trained_on.get(SUSTAINED):
        costs["FLOPs as the paper counts"] = f"{progress.seconds * float(sustained):.2e} (time × what is sustained)"
    return costs


def evaluate_model(
    translator: Translator, sources: list[str], references: list[str], *, name: str, tokenize: Tokenization
) -> Evaluation:
    """BLEU and chrF of the model's translations, and its perplexity a token of the references."""
    texts = [translation.text for translation in translator.translate(sources)]
    log_probs = translator.log_probs(sources, references)
    nats = -sum(map(sum, log_probs)) / sum(map(len, log_probs))
    scores = {"bleu": bleu(texts, references, tokenize=tokenize), "chrf": chrf(texts, references)}
    return Evaluation(name, len(sources), scores, perplexity(nats))


def parsing_scores(parser: Parser, gold: Sequence[Tree]) -> dict[str, Score]:
    """f1: EVALB's of the parser's trees over the same words; f1_of_all_gold: with what EVALB leaves out as missed.

    EVALB leaves a sentence out as an error if its punctuation is tagged as a word, for example. A parser that errs
    wherever a sentence is long would look good for the short ones.
    """
    found = evalb(zip(gold, (parse.tree for parse in parser.parse(tree.words() for tree in gold)), strict=True))
    left_out = f"{found.all.errors + found.all.skipped:,} of {found.all.sentences:,} sentences left out"
    return {
        "f1": Score("F1", found.f1, f"{found.params.signature()}; {left_out}"),
        "f1_of_all_gold": Score("all gold", found.strict_f1, "F1 with those counted as missed"),
    }


@dataclass(frozen=True)
class Demo:
    """What the demo found: exactly right translations of held-out numbers, and some of them to look at."""

    accuracy: float
    n_tested: int
    samples: list[tuple[str, str, bool]]
    model: Path


def demo(run: Path, *, report: Report) -> Demo:
    """Trains a small Transformer on the numbers that Heed makes itself and counts the held-out ones it gets right."""
    values = read_preset("demo", where="heed demo")
    splits = number_splits(n_train=DEMO_PAIRS)
    pairs = {name: (run / "corpus" / f"{name}.en", run / "corpus" / f"{name}.de") for name in vars(splits)}
    values["data"] |= {
        "train": [str(path) for path in pairs["train"]],
        "dev": [str(path) for path in pairs["dev"]],
        "tests": {"test": [str(path) for path in pairs["test"]]},
    }
    recipe = validated(Recipe, values, where="heed demo")
    with begun(recipe, run, report=report):
        for name, numbers in vars(splits).items():
            for path, words in zip(pairs[name], (english, german), strict=True):
                if not path.exists():
                    with whole_file(path) as temporary:
                        temporary.write_text("".join(f"{words(number)}\n" for number in numbers), encoding="utf-8")
        files = TextFiles((pairs["train"],), pairs["dev"])
        train_files(recipe, files, run, choose_machine(recipe.training.precision), Workers(), report=report)
    translator = Translator.load(run / "model")
    sources = [english(number) for number in splits.test]
    references = [german(number) for number in splits.test]
    texts = [translation.text for translation in translator.translate(sources)]
    samples = list(zip(sources, texts, (t == r for t, r in zip(texts, references, strict=True)), strict=True))
    return Demo(exact_matches(texts, references), len(texts), samples[:5], run / "model")


def _batches(recipe: Recipe, corpus: ParallelCorpus, tokenizer: Tokenizer, machine: Machine) -> TokenBatches:
    settings = recipe.training
    return TokenBatches(
        corpus,
        tokenizer.special,
        max_src_tokens=settings.batch_src_tokens,
        max_tgt_tokens=settings.batch_tgt_tokens,
        micro_tokens=settings.micro_batch_tokens or micro_batch_tokens(machine.device),
        seed=settings.seed,
    )


def _all_batches(batches: TokenBatches, machine: Machine) -> Iterator[Batch]:
    for micro_batches in batches.plan(0):
        for rows in micro_batches:
            yield batches.collate(rows).to(machine.device)


@contextmanager
def begun(recipe: Recipe, run: Path, *, report: Report) -> Iterator[None]:
    """Keeps a run folder to this process and writes its config.toml. HeedError if the folder is not a run's.

    config.toml comes first: it tells the folder of a run that was cut off from a user's.
    """
    _check_run_folder(run)
    with locked(run):
        _keep_config(recipe, run, report)
        check_replaceable(run / "model", MODEL_FOLDER_NAMES)
        yield


def _check_run_folder(run: Path) -> None:
    """HeedError if a run in this folder would write over what no run has written."""
    config = run / "config.toml"
    if os.path.lexists(config):
        try:
            validated(Recipe, read_toml(config), where=str(config))
        except HeedError as error:
            raise HeedError(f"{error} {run} is not a run folder of this Heed; choose another --run.") from None
    else:
        for name in RUN_NAMES:
            if os.path.lexists(run / name):
                raise HeedError(f"{run}: holds {name}, but no config.toml of a run; choose another --run.")


def _keep_config(recipe: Recipe, run: Path, report: Report) -> None:
    """Writes RUN/config.toml, or compares it: what shaped data and weights must not change within a run."""
    path = run / "config.toml"
    new = tomllib.loads(toml_text(recipe.model_dump()))
    if path.exists() and any((run / made).exists() for made in ("lines", "data")):
        # With the defaults of settings that the Heed which wrote it did not know.
        old = tomllib.loads(toml_text(validated(Recipe, read_toml(path), where=str(path)).model_dump()))
        for table in sorted(old.keys() | new.keys()):
            before, now = old.get(table, {}), new.get(table, {})
            for name in sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
                change = f"{table}.{name} was {before.get(name)!r}, is {now.get(name)!r}"
                # The treebank may move: the run keeps its lines.
                if table in ("data", "tokenizer", "model", "parsing") and name != "treebank":
                    raise HeedError(f"{run}: this run began with other settings: {change}; choose another --run.")
                report(f"Changed since the run began: {change}.")
    with whole_file(path) as temporary:
        temporary.write_text(toml_text(new), encoding="utf-8")


def describe(path: Path, *, vocab_size: int | None = None) -> dict[str, Any]:
    """Facts of a model folder, a recipe, or a run folder: of its model, or else of its last checkpoint."""
    if path.is_dir() and not (path / "config.json").exists():
        steps = checkpoint_steps(path / "checkpoints")
        if (path / "model").is_dir():
            path = path / "model"
        elif steps:
            path = path / "checkpoints" / str(steps[-1])
    if path.is_dir() or path.suffix != ".toml":
        arch, vocab_size, card = read_config(path)
        rest = {"trained on": card.trained_on, "scores": card.scores, "decoding": card.decoding}
        facts: dict[str, Any] = {"model": str(path), "languages": f"{card.src} → {card.tgt}"}
    else:
        recipe = read_recipe(path)
        arch, vocab_size = recipe.model, vocab_size or recipe.tokenizer.vocab_size
        rest = {name: settings for name, settings in recipe.model_dump().items() if name != "model"}
        facts = {"recipe": str(path)}
    shapes = {name: value for name, value in arch.model_dump().items() if value is not None}
    parts = parameters_by_part(arch, vocab_size)
    return facts | {
        "vocabulary": vocab_size,
        "shapes": shapes,
        "parameters": parts | {"total": sum(parts.values())},
        **{name: content for name, content in rest.items() if content},
    }
