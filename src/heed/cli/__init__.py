"""One sub-command a verb: reads arguments, calls the pipeline or a room, prints. Only the verbs import torch."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from heed.cli.paper import paper_app
from heed.cli.parsing import evalb, parse
from heed.cli.process import run_and_exit
from heed.cli.terminal import (
    JSON,
    Alpha,
    Beam,
    Device,
    Directory,
    Mirror,
    PrecisionOption,
    decoding_precision,
    message,
    print_json,
    print_text,
    say,
    show,
    standard_input,
)
from heed.errors import HeedError
from heed.text.printable import printable

app = typer.Typer(
    name="heed",
    help='The Transformer of "Attention Is All You Need": parallel text in, a trained model and translations out.',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
data_app = typer.Typer(help="Named corpora: list them, fetch them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="Speed on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")
app.add_typer(paper_app, name="paper")
app.command(epilog="Example: heed parse runs/parsing-gum/model < sentences.txt > trees.txt")(parse)
app.command(epilog="Example: heed evalb gold.trees parsed.trees")(evalb)

Form = Annotated[
    str | None,
    typer.Option(
        "--length-penalty-form",
        help="A score is log P / ((5 + length) / 6)^α (paper), / length^α (average), or log P (none).",
    ),
]
Tokenize = Annotated[
    str, typer.Option(help="BLEU's tokenisation: 13a for raw text, none for text that is tokenised already.")
]


@app.command(epilog="Example: heed demo")
def demo(
    run: Annotated[Path, typer.Option(help="Run folder; the model comes to lie in RUN/model.")] = Path("runs/demo"),
    as_json: JSON = False,
) -> None:
    """Train a small Transformer on self-made number words in a few minutes; show how many unseen ones it gets right."""
    from heed import pipeline

    result = pipeline.demo(run, report=say)
    if as_json:
        print_json({"accuracy": result.accuracy, "tested": result.n_tested, "model": str(result.model)})
        return
    print(f"\nUnseen numbers translated exactly right: {result.accuracy:.2%} of {result.n_tested:,}")
    for source, text, right in result.samples:
        show(f"  {source}")
        show(f"    → {text}{'' if right else '   (wrong)'}")
    print()
    show(f'Try it: echo "forty-two thousand one hundred seven" | heed translate {result.model}')


@data_app.command("list", epilog="Example: heed data list")
def data_list(as_json: JSON = False) -> None:
    """List the corpora that Heed knows by name."""
    from heed.data.sources import catalogue

    if as_json:
        print_json([vars(info) for info in catalogue()])
        return
    for info in catalogue():
        pairs = ", ".join(f"{src}-{tgt}" for src, tgt in info.languages)
        size = f"{info.download_bytes / 1e6:,.0f} MB" if info.download_bytes else "size unknown"
        for line in (
            f"{info.name}: {info.title}",
            f"  {pairs}; {', '.join(info.variants)}; {size}",
            f"  {info.licence}",
        ):
            show(line)


@data_app.command("get", epilog="Example: heed data get multi30k --src en --tgt de --dir corpora")
def data_get(
    name: Annotated[str, typer.Argument(help="A name that `heed data list` shows.")],
    src: Annotated[str, typer.Option(help="Source language.")] = "en",
    tgt: Annotated[str, typer.Option(help="Target language.")] = "de",
    variant: Annotated[str, typer.Option(help="raw, or lc.norm.tok where it is offered.")] = "raw",
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
) -> None:
    """Fetch a corpus, with checksums; what is there already is not fetched again, a broken download is resumed."""
    from heed.data.sources import fetch

    found = fetch(
        name, src=src, tgt=tgt, variant=variant, directory=directory, mirror=mirror, report=say, progress=_progress
    )
    for pair in (*found.train, found.dev, *found.tests.values()):
        print(f"{printable(str(pair[0]))}\t{printable(str(pair[1]))}")


@app.command(epilog="Example: heed train recipes/multi30k-en-de.toml --set training.max_steps=2000")
def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe, or a run folder, whose recipe is taken up again.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override one setting; repeatable.")
    ] = None,
    run: Annotated[
        Path | None,
        # torchrun takes "--run" for an abbreviation of an option of its own, even behind the script's name.
        typer.Option("--run", "--run-folder", help="Run folder. Default: runs/NAME of the recipe."),
    ] = None,
    directory: Directory = Path("corpora"),
    mirror: Mirror = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe and tell what the run will take here; change nothing.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Do whatever is still missing: corpus, tokenizer, ids, training, averaging, scores. Called again, it resumes."""
    from heed import pipeline
    from heed.recipe import read_recipe

    path = recipe / "config.toml" if recipe.is_dir() else recipe
    run = run or (recipe if recipe.is_dir() else Path("runs") / recipe.stem)
    if dry_run:
        _dry_run(read_recipe(path, settings or []), directory, mirror, as_json)
        return
    results = pipeline.train_recipe(
        read_recipe(path, settings or []), run, directory=directory, mirror=mirror, report=say, progress=_progress
    )
    if not results:  # a worker, and not the first
        return
    if as_json:
        print_json({"run": str(run), "model": str(run / "model"), "scores": [r.numbers() for r in results]})
        return
    scores, ppl = results[0].scores.values(), results[0].perplexity is not None
    print(f"\n{'':34}" + "".join(f"{score.name:>9}" for score in scores) + (f"{'ppl':>9}" if ppl else ""))
    for result in results:
        columns = "".join(f"{score.value:9.2f}" for score in result.scores.values())
        show(f"{result.name:34}{columns}" + (f"{result.perplexity:9.3f}" if ppl else ""))
    for signature in dict.fromkeys(f"{s.name} {s.signature}" for result in results for s in result.scores.values()):
        show(signature)
    show(f"Model: {run / 'model'}")


def _dry_run(recipe: Any, directory: Path, mirror: str | None, as_json: bool) -> None:
    from heed.benchmark import forecast
    from heed.pipeline import count_pairs, n_workers
    from heed.runtime.device import choose_machine

    n_pairs = count_pairs(recipe, directory=directory, mirror=mirror, report=say)
    if n_pairs is None and recipe.training.max_epochs is not None:
        say("How long an epoch is shows only then: training.max_epochs is not counted here.")
    say(f"Taking some steps of {recipe.training.batch_tgt_tokens:,} target tokens on random sentences.")
    vocab_size = recipe.tokenizer.vocab_size
    told = forecast(recipe.model, recipe.training, vocab_size=vocab_size, n_pairs=n_pairs)
    workers = n_workers(recipe, choose_machine(recipe.training.precision))
    if as_json:
        print_json({"pairs": n_pairs, "workers": workers, **told.numbers()})
        return
    if workers > 1:
        say(f"Measured in one process; the run takes {workers}, which is faster and holds most of that memory in each.")
    print(f"{told.parameters:,} parameters, {told.dtype} on {told.device}")
    print(f"{told.step_seconds:.2f} s a step, {told.target_tokens_per_second:,.0f} target tokens/s")
    print(f"{told.peak_memory_bytes / 2**20:,.0f} MiB at the peak, of {told.memory_bytes / 2**20:,.0f}")
    print(f"{told.n_steps:,} steps: {told.hours:,.1f} hours, {told.flops:.1e} floating-point operations of the model")


@app.command(epilog="Example: heed average runs/multi30k-en-de --last 5")
def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the newest checkpoints.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Model folder to write. Default: RUN/model.")] = None,
) -> None:
    """Average the last checkpoints of a run into a model folder."""
    from heed import pipeline

    show(pipeline.average_run(run, last=last, out=out, report=say))


@app.command(epilog='Example: echo "a dog runs ." | heed translate runs/multi30k-en-de/model')
def translate(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="A model folder; several of one vocabulary: an ensemble.")
    ],
    beam: Beam = None,
    length_penalty: Alpha = None,
    length_penalty_form: Form = None,
    min_tokens: Annotated[int | None, typer.Option(min=0, help="No translation ends before so many tokens.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="No translation has more tokens.")] = None,
    prefix: Annotated[str, typer.Option(help="Every translation begins with this text.")] = "",
    n_best: Annotated[
        int, typer.Option(min=1, help="Lines to print for each line of input: its best hypotheses, then blank lines.")
    ] = 1,
    sample: Annotated[
        float | None,
        typer.Option(metavar="TEMPERATURE", help="Draw translations, --n-best a line, instead of searching."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among so many tokens only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw among the fewest tokens of so much probability only.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 1,
    scores: Annotated[bool, typer.Option(help="Print the score and a tab before each translation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    precision: PrecisionOption = "fp32",
    device: Device = None,
) -> None:
    """Translate standard input to standard output, line by line, in order, as it comes. An empty line stays empty."""
    from heed.config import validated
    from heed.data.lines import Arriving, UntilError
    from heed.decoding.settings import SamplingSettings

    lines = UntilError(standard_input())
    sampling = None
    if sample is not None:
        values = {"temperature": sample, "top_k": top_k, "top_p": top_p, "seed": seed}
        sampling = validated(SamplingSettings, values, where="--sample")
        if beam is not None:
            raise HeedError("--sample draws --n-best translations; --beam belongs to a search.")
        beam = n_best
    elif top_k is not None or top_p != 1.0:
        raise HeedError("--top-k and --top-p need --sample TEMPERATURE.")
    translator = _translator(
        *models,
        device=device,
        precision=precision,
        beam_size=beam,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
    )
    beam_size = translator.settings.beam_size
    if n_best > beam_size:
        raise HeedError(f"--n-best {n_best} needs a beam of at least {n_best}, found {beam_size}; set --beam.")
    arriving = Arriving(_counted(lines), size=len)
    for translation in translator.stream(arriving, n_best=n_best, prefix=prefix, sampling=sampling):
        if as_json:
            fields = ("text", "score", "log_prob", "ended")
            hypotheses = [{name: getattr(t, name) for name in fields} for t in translation.alternatives]
            print_json({"source": translation.source, "translations": hypotheses}, indent=None)
        else:
            found = [(hypothesis.score, hypothesis.text) for hypothesis in translation.alternatives]
            for value, text in found + [(-math.inf, "")] * (n_best - len(found)):
                print_text(f"{value:.4f}\t{text}" if scores else text)
        sys.stdout.flush()
    lines.raise_error()


@app.command(epilog="Example: heed score runs/demo/model --src numbers.en --tgt numbers.de")
def score(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    src: Annotated[Path, typer.Option(help="Source lines.")],
    tgt: Annotated[Path, typer.Option(help="Target lines.")],
    length_penalty: Alpha = None,
    length_penalty_form: Form = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    precision: PrecisionOption = "fp32",
    device: Device = None,
) -> None:
    """Print for each pair of lines log P(target | source), natural, eos included, and its length-penalised score."""
    from heed.data.lines import read_pairs
    from heed.decoding.settings import length_penalty as penalty

    translator = _translator(
        model,
        device=device,
        precision=precision,
        length_penalty=length_penalty,
        length_penalty_form=length_penalty_form,
    )
    settings = translator.settings
    sources, targets = map(list, zip(*read_pairs((src, tgt)), strict=True))
    for target, log_probs in zip(targets, translator.log_probs(sources, targets), strict=True):
        total = sum(log_probs)
        value = total / penalty(len(log_probs), settings.length_penalty, settings.length_penalty_form)
        if as_json:
            record = {"target": target, "log_prob": total, "score": value, "token_log_probs": log_probs}
            print_json(record, indent=None)
        else:
            print(f"{total:.4f}\t{value:.4f}")


@app.command(epilog="Example: heed evaluate runs/multi30k-en-de/model --src test.en --ref test.de --tokenize none")
def evaluate(
    ref: Annotated[Path, typer.Option(help="Reference translations.")],
    model: Annotated[Path | None, typer.Argument(help="A model folder, to translate --src with.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source lines.")] = None,
    hyp: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    tokenize: Tokenize = "13a",
    beam: Beam = None,
    length_penalty: Alpha = None,
    length_penalty_form: Form = None,
    as_json: JSON = False,
    precision: PrecisionOption = "fp32",
    device: Device = None,
) -> None:
    """BLEU and chrF with signatures of a model on --src, with its perplexity, or of finished translations --hyp."""
    from heed.data.lines import read_pairs
    from heed.evaluation.bleu import bleu, checked_tokenization, chrf

    tokenization = checked_tokenization(tokenize)
    if (model is None) == (hyp is None) or (model is None) != (src is None):
        raise HeedError("give either a model folder and --src, or --hyp.")
    if hyp is not None:
        hypotheses, references = map(list, zip(*read_pairs((hyp, ref)), strict=True))
        bleu_score, chrf_score = bleu(hypotheses, references, tokenize=tokenization), chrf(hypotheses, references)
        perplexity, n_lines = None, len(references)
    else:
        assert model is not None and src is not None
        from heed import pipeline

        sources, references = map(list, zip(*read_pairs((src, ref)), strict=True))
        translator = _translator(
            model,
            device=device,
            precision=precision,
            beam_size=beam,
            length_penalty=length_penalty,
            length_penalty_form=length_penalty_form,
        )
        result = pipeline.evaluate_model(translator, sources, references, name=str(src), tokenize=tokenization)
        bleu_score, chrf_score = result.scores["bleu"], result.scores["chrf"]
        perplexity, n_lines = result.perplexity, result.n_lines
    if as_json:
        print_json(
            {
                "lines": n_lines,
                "bleu": bleu_score.value,
                "bleu_signature": bleu_score.signature,
                "chrf": chrf_score.value,
                "chrf_signature": chrf_score.signature,
                "perplexity": perplexity,
            }
        )
        return
    show(bleu_score)
    show(chrf_score)
    if perplexity is not None:
        print(f"perplexity {perplexity:.4f} a target token, eos included")


@app.command(epilog='Example: heed attention runs/multi30k-en-de/model "a dog runs ." --out dog.html')
def attention(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    sentence: Annotated[str, typer.Argument(help="A source sentence.")],
    out: Annotated[Path, typer.Option(help="A page to click in (.html), or a picture (.svg, .png).")],
    target: Annotated[str | None, typer.Option(help="Look at this target. Default: the model's translation.")] = None,
    view: Annotated[str, typer.Option(help="encoder, decoder or cross.")] = "encoder",
    layer: Annotated[int | None, typer.Option(min=1, help="Counted from 1. Default: the last.")] = None,
    head: Annotated[list[int] | None, typer.Option(min=1, help="Counted from 1; repeatable. Default: all.")] = None,
    from_word: Annotated[str | None, typer.Option(help="Only this word's lines (or its number).")] = None,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Join the pieces of words.")] = False,
) -> None:
    """Draw what a model attends to for a sentence, as in figures 3 to 5 of the paper.

    A page (.html) holds all of it; the address that is printed opens it at the view, layer, heads and word asked for.
    """
    from heed.runtime.files import check_target
    from heed.visualization import render
    from heed.visualization.trace import VIEWS, trace, word_place

    if out.suffix not in (".html", ".svg", ".png"):
        raise HeedError(f"--out {out}: expected a name that ends in .html, .svg or .png.")
    if view not in VIEWS:
        raise HeedError(f"--view {view}: expected {', '.join(VIEWS)}.")
    check_target(out)
    found = trace(_translator(model, device=None, precision="fp32"), sentence, target=target, whole_words=whole_words)
    shown = found.view(view)
    n_layers, n_heads = shown.weights.shape[:2]
    for name, number, most in (("--layer", layer, n_layers), *(("--head", h, n_heads) for h in head or ())):
        if number is not None and number > most:
            raise HeedError(f"{name} {number}: the model has {most}.")
    word = None if from_word is None else word_place(shown.queries, from_word)
    heads = [h - 1 for h in head or range(1, n_heads + 1)]
    at = ""
    if out.suffix != ".html":
        render.write_picture(out, shown, layer=(layer or n_layers) - 1, heads=heads, word=word)
    else:
        render.write_page(out, found)
        asked = {"view": view, "layer": layer or n_layers, "heads": ",".join(map(str, head or ()))}
        asked |= {} if word is None else {"word": word + 1}
        at = "#" + "&".join(f"{key}={value}" for key, value in asked.items() if value)
    say(f"{found.source} → {found.target}")
    say(f"Wrote {out}{at}.")


@app.command(epilog="Example: heed info runs/demo/model")
def info(
    path: Annotated[Path, typer.Argument(help="A model folder, a run folder or a recipe.")],
    vocab_size: Annotated[int | None, typer.Option(help="Count a recipe's parameters for this vocabulary.")] = None,
    as_json: JSON = False,
) -> None:
    """Shapes, parameters by part, what a model was trained on and scores."""
    from heed import pipeline

    facts = pipeline.describe(path, vocab_size=vocab_size)
    if as_json:
        print_json(facts)
        return
    for title, content in facts.items():
        show(title if isinstance(content, dict) else f"{title}: {content}")
        if isinstance(content, dict):
            for name, value in content.items():
                show(f"  {name}: {value:,}" if isinstance(value, int) else f"  {name}: {value}")


@bench_app.command("train", epilog="Example: heed bench train --preset tiny")
def bench_train(
    preset: Annotated[str, typer.Option(help="Shape of the model: tiny, base, big …")] = "base",
    vocab: Annotated[int | None, typer.Option(min=4, help="Vocabulary. Default: the preset's.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=64, help="Tokens a side and step, padding counted. Default: the preset's; on a CPU 4,096 at most."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    device: Device = None,
    as_json: JSON = False,
) -> None:
    """Whole training steps a second, and their share of what this machine's matrix products allow."""
    if dtype not in ("auto", "fp32", "bf16"):
        raise HeedError(f"--dtype {dtype}: expected auto, fp32 or bf16.")
    from heed.benchmark import preset_shape, training_speed

    arch, settings, vocab_size = preset_shape(preset, vocab_size=vocab, batch_tokens=tokens, precision=dtype)
    speed = training_speed(arch, settings, vocab_size=vocab_size, device=device)
    if as_json:
        print_json(speed.numbers())
        return
    least, most = min(speed.windows), max(speed.windows)
    print(f"{preset}: {speed.parameters:,} parameters, {speed.dtype} on {speed.device}")
    print(f"{speed.target_tokens_per_second:,.0f} target tokens/s ({least:,.0f} to {most:,.0f} in 5 windows)")
    print(f"{speed.source_tokens_per_second:,.0f} source tokens/s, {speed.step_seconds:.3f} s a step")
    print(
        f"{speed.model_flops_per_second / 1e9:,.0f} GFLOP/s of the model, {speed.utilization:.0%} of the "
        f"{speed.ceiling_flops_per_second / 1e9:,.0f} that its matrix products reach by themselves"
    )
    print(f"{speed.peak_memory_bytes / 2**20:,.0f} MiB at the peak")


@bench_app.command("decode", epilog="Example: heed bench decode --preset base --beam 4 --batch 32")
def bench_decode(
    preset: Annotated[str, typer.Option(help="Shape of the model: tiny, base, big …")] = "base",
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses kept a sentence; 1 is greedy.")] = 4,
    batch: Annotated[int, typer.Option(min=1, help="Sentences searched at a time.")] = 32,
    src_len: Annotated[int, typer.Option(min=1, help="Tokens of every source, eos included.")] = 25,
    tgt_len: Annotated[int, typer.Option(min=1, help="Tokens that every output is forced to.")] = 25,
    vocab: Annotated[int | None, typer.Option(min=4, help="Vocabulary. Default: the preset's.")] = None,
    precision: PrecisionOption = "fp32",
    device: Device = None,
    as_json: JSON = False,
) -> None:
    """Target tokens a second of beam search, with random weights and outputs of one length."""
    from heed.benchmark import decoding_speed

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
        print_json(speed.numbers())
        return
    least, most = min(speed.windows), max(speed.windows)
    print(f"{preset}, {speed.dtype} on {speed.device}, beam {beam}, {batch} sentences at a time")
    print(f"{speed.target_tokens_per_second:,.0f} target tokens/s ({least:,.0f} to {most:,.0f})")
    print(f"{speed.sentences_per_second:,.1f} sentences/s")
    print(f"{speed.latency_ms_p50:,.0f} ms a sentence, 95 % within {speed.latency_ms_p95:,.0f} ms")
    print(f"{speed.peak_memory_bytes / 2**20:,.0f} MiB at the peak")


def _counted(lines: Iterable[str]) -> Iterator[str]:
    """The lines; how many there have been is shown where a person watches and the output goes elsewhere."""
    shown = sys.stderr.isatty() and not sys.stdout.isatty()
    started = time.monotonic()
    n = 0
    for n, line in enumerate(lines, start=1):
        if shown and n % 100 == 0:
            speed = n / max(1e-9, time.monotonic() - started)
            message(f"\r{n:,} lines read, {speed:,.0f} a second")
        yield line
    if shown:
        message(f"\r{n:,} lines read" + " " * 20 + "\n")


def _translator(*models: Path, device: str | None, precision: str, **settings: Any) -> Any:
    from heed.decoding.translator import Translator

    return Translator.load(*models, device=device, precision=decoding_precision(precision), report=say, **settings)


def _progress(name: str, done: int, total: int | None) -> None:
    if sys.stderr.isatty():
        share = f" of {total / 1e6:,.1f}" if total else ""
        message(f"\r{printable(name)}: {done / 1e6:,.1f}{share} MB" + "\n" * (done == total))


def main() -> None:
    """The command `heed`."""
    run_and_exit(app)
