"""heed translate, score, evaluate: translations of lines of text, and how good they are."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from heed.apps.cli.guesses import one_of
from heed.apps.cli.options import (
    JSON,
    PENALTY,
    Device,
    From,
    PrecisionOption,
    To,
    Tokenize,
    check_options,
    decoding_of,
    decoding_precision,
    sampling_settings,
    with_options,
)
from heed.apps.cli.process import import_torch_if_needed
from heed.apps.cli.terminal import print_json, print_text, printing_progress, say, show, standard_input
from heed.apps.documents.command import (
    DocumentChoices,
    check_format,
    print_document,
    read_document_from_standard_input,
)
from heed.apps.documents.formats import PRINTED
from heed.decoding.option_rules import SEARCH_RULES, Rule
from heed.decoding.settings import DecodingOptions, DecodingSettings
from heed.errors import HeedError

if TYPE_CHECKING:
    from heed.decoding.translation import Translation
    from heed.runs.tasks.evaluation import Evaluation
    from heed.runtime.device import DecodingPrecisionChoice
    from heed.text.tokenizer_kinds import AnyTokenizer

MODELS_HELP = "A model folder, or several of one vocabulary as an ensemble."
Models = Annotated[list[Path], typer.Argument(metavar="MODEL", help=MODELS_HELP)]


TRANSLATE_RULES = (
    *(
        Rule((option,), f"{{{option}}} is for documents; give {{document_format}} too.", without="document_format")
        for option in ("language", "keep", "attributes", "glossary", "cues")
    ),
    Rule(
        ("n_best", "scores", "as_json", "prefix", "prefixes", "sample", "mbr", "strict"),
        "{these} {is|are} for lines; leave out {document_format} or {these}.",
        beside="document_format",
    ),
    Rule(("prefix",), "{prefixes} has a prefix for each line; leave out {prefix}.", beside="prefixes"),
    Rule(("top_k", "top_p", "seed"), "{these} {needs|need} {sample} TEMPERATURE.", without="sample"),
    Rule(("utility",), "{utility} needs {mbr} N.", without="mbr"),
    Rule(("beam_size",), "{mbr=} is the size of the beam too; leave out {beam_size}.", beside="mbr"),
    Rule(("beam_size",), "{sample} draws {n_best} translations; {beam_size} is for search only.", beside="sample"),
    *(
        Rule((name,), f"{{{name}}} is for search only; leave it out with {{sample}}.", beside="sample")
        for name in ("early_stopping", "no_repeat_ngram_size", "repetition_penalty")
    ),
    Rule(
        PENALTY,
        "{these} {changes|change} only the scores of samples; add {scores} or {as_json}, or leave {it|them} out.",
        beside="sample",
        # Scores order --n-best samples, unless --mbr does; --scores and --json show them.
        when=lambda given: ("n_best" not in given or "mbr" in given) and not given.keys() & {"scores", "as_json"},
    ),
    *SEARCH_RULES,
    Rule(
        ("n_best",),
        "{n_best=} needs as many candidates, but {mbr} is {=mbr}; 100 is the most.",
        beside="mbr",
        when=lambda given: given["n_best"] > given["mbr"],
    ),
)
# Of what the model's recipe says too.
LOADED_RULES = (
    Rule(
        ("n_best",),
        "{n_best=} needs a beam of at least {=n_best}, found {=beam_size}; set {beam_size}.",
        when=lambda given: given["n_best"] > given["beam_size"],
    ),
)
EVALUATE_RULES = (
    Rule(
        (*DecodingSettings.model_fields, "device", "precision", "source", "target"),
        "{hyp} is translated already: leave out {these}, which {says|say} how a model translates.",
        beside="hyp",
    ),
    *SEARCH_RULES,
)


@with_options(
    choices=DocumentChoices,
    decoding=decoding_of(
        *("beam_size", *PENALTY, "early_stopping", "min_tokens", "max_tokens", "max_extra_tokens"),
        *("no_repeat_ngram_size", "repetition_penalty"),
    ),
)
def translate(
    models: Models,
    *,
    decoding: DecodingOptions,
    source: From = None,
    target: To = None,
    prefix: Annotated[
        str, typer.Option(help="Every translation begins with this text, which may end within a word.")
    ] = "",
    prefixes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A line for each line of input: its translation begins with this text."),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="Lines to print per line of input: the best different translations, then blank lines."
        ),
    ] = 1,
    sample: Annotated[
        float | None,
        typer.Option(metavar="TEMPERATURE", help="Sample --n-best translations per line instead of searching."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Sample from the K most probable tokens only.")
    ] = None,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Sample from the fewest tokens whose probabilities reach P.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed of --sample. Default: 1.")] = None,
    mbr: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            max=100,
            help="Minimum Bayes risk: print the candidate with the highest expected utility among N samples (with "
            "--sample) or the N best of a beam of N.",
        ),
    ] = None,
    utility: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help="What --mbr compares candidates by: chrf or bleu. Default: chrf."),
    ] = None,
    scores: Annotated[bool, typer.Option(help="Print the score and a tab before each translation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    document_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Translate standard input as one document and keep its layout: "
            f"{', '.join(PRINTED)}. Default: one sentence per line.",
            autocompletion=one_of(*PRINTED),
        ),
    ] = None,
    choices: DocumentChoices,
    strict: Annotated[
        bool, typer.Option(help="Exit with 1 if a translation was cut off at its longest length.")
    ] = False,
    precision: PrecisionOption = "auto",
    device: Device = None,
) -> None:
    """Translate standard input line by line, in order, as it arrives. Empty lines stay empty.

    A file: heed translate MODEL < text.en > text.de. With --format it is one document, whose layout is kept.
    """
    check_options(
        TRANSLATE_RULES, **decoding, **choices.given, document_format=document_format, scores=scores,
        as_json=as_json, strict=strict, prefix=prefix, prefixes=prefixes, n_best=n_best if n_best > 1 else None,
        sample=sample, top_k=top_k, top_p=top_p if top_p != 1.0 else None, seed=seed, mbr=mbr, utility=utility,
    )  # fmt: skip
    # Standard input and prefixes are read before the seconds that PyTorch takes to load.
    if document_format is not None:
        check_format(document_format, known=PRINTED)
        options_for = choices.checked()
        content = read_document_from_standard_input()
    begins_with = prefix if prefixes is None else _checked_lines(prefixes)
    import_torch_if_needed(device)
    from heed.data.reading.stream import DeferredError, PrefetchedLines
    from heed.decoding.translator import Translator
    from heed.evaluation.utility import check_utility

    # Candidates of minimum Bayes risk, and samples, take the place of the beam.
    sampling = sampling_settings(sample, top_k=top_k, top_p=top_p, seed=seed)
    compared_by = None if mbr is None else check_utility("chrf" if utility is None else utility)
    if mbr is not None or sampling is not None:
        decoding["beam_size"] = mbr or n_best
    translator = Translator.load(
        *models,
        device=device,
        precision=decoding_precision(precision),
        report=say,
        source=source,
        target=target,
        **decoding,
    )
    check_options(LOADED_RULES, n_best=n_best, beam_size=translator.settings.beam_size)
    if document_format is not None:
        print_document(content, translator, options_for(translator), format=document_format)
        return
    # Lines are read ahead by a thread, so that translations appear while the input is still open.
    lines = DeferredError(standard_input())
    any_cut_off = False
    try:
        with printing_progress("Translating", unit="lines") as task:
            for translation in translator.stream(
                PrefetchedLines(lines, size=len),
                n_best=n_best,
                prefix=begins_with,
                sampling=sampling,
                utility=compared_by,
                prefixes_name=str(prefixes),
                task=task,
            ):
                any_cut_off |= not translation.ended
                if as_json:
                    _print_as_json(translation, with_utility=compared_by is not None)
                else:
                    _print_n_best(translation, n_best, with_scores=scores)
                sys.stdout.flush()
    except HeedError:
        lines.raise_error()  # the input ended there, which is why there are more prefixes
        raise
    lines.raise_error()
    if strict and any_cut_off:
        raise typer.Exit(1)


def _checked_lines(path: Path) -> Iterator[str]:
    """The lines of a file, whose faults show before a model is loaded; a pipe can be read only once."""
    from heed.data.reading.lines import read_lines

    if path.is_file() or not path.exists():
        for _ in read_lines(path):
            pass
    return read_lines(path)


def _print_as_json(translation: "Translation", *, with_utility: bool) -> None:
    fields = ("text", "tokens", "score", "log_prob", "ended", *["utility"] * with_utility)
    hypotheses = [{name: getattr(t, name) for name in fields} for t in translation.alternatives]
    print_json({"source": translation.source, "translations": hypotheses}, indent=None)


def _print_n_best(translation: "Translation", n_best: int, *, with_scores: bool) -> None:
    """Prints n_best lines: a line that was translated in pieces, or is empty, has fewer hypotheses."""
    hypotheses = [(hypothesis.score, hypothesis.text) for hypothesis in translation.alternatives]
    for value, text in hypotheses + [(-math.inf, "")] * (n_best - len(hypotheses)):
        print_text(f"{value:.4f}\t{text}" if with_scores else text)


@with_options(decoding=decoding_of(*PENALTY))
def score(
    models: Models,
    src: Annotated[Path, typer.Option(help="Source lines.")],
    tgt: Annotated[Path, typer.Option(help="Target lines.")],
    source: From = None,
    target: To = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="Target lines are tokens, separated by spaces, as translate --json gives them; not text."
        ),
    ] = False,
    *,
    decoding: DecodingOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    precision: PrecisionOption = "auto",
    device: Device = None,
) -> None:
    """Print the natural log P(target | source), eos included, and the length-penalised score of each pair of lines."""
    check_options(SEARCH_RULES, **decoding)
    import_torch_if_needed(device)
    from heed.data.reading.pairs import read_sides
    from heed.decoding.scoring import length_penalty as penalty
    from heed.decoding.translator import Translator

    translator = Translator.load(
        *models,
        device=device,
        precision=decoding_precision(precision),
        report=say,
        source=source,
        target=target,
        **decoding,
    )
    settings = translator.settings
    sources, targets = read_sides((src, tgt))
    tokenizer = translator.tokenizer
    segmented = (
        _tokens(tgt, targets, tokenizer)
        if tokens
        else [tokenizer.tokens(ids) for ids in tokenizer.encode_targets(targets)]
    )
    of_targets = translator.log_probs(sources, segmented)
    for number, (line, of_target, log_probs) in enumerate(zip(targets, segmented, of_targets, strict=True), start=1):
        if not tokens and tokenizer.symbols and line.strip() and len(log_probs) == 1:  # eos alone
            raise HeedError(f"{tgt}, line {number:,}: a symbol that the model's vocabulary lacks.")
        total = sum(log_probs)
        length = len(log_probs) + translator.direction.forced.end  # a language that is given counts
        value = total / penalty(length, settings.length_penalty, settings.length_penalty_form)
        if as_json:
            record = {
                "target": line,
                "tokens": of_target,
                "log_prob": total,
                "score": value,
                "token_log_probs": log_probs,
            }
            print_json(record, indent=None)
        else:
            print(f"{total:.4f}\t{value:.4f}")


def _tokens(path: Path, lines: list[str], tokenizer: "AnyTokenizer") -> list[list[str]]:
    """The tokens of each line. HeedError names the file and the line of an unknown one."""
    tokens = [[token for token in line.split(" ") if token] for line in lines]
    for number, of_line in enumerate(tokens, start=1):
        try:
            tokenizer.token_ids(of_line)
        except HeedError as error:
            raise HeedError(f"{path}, line {number:,}: {error}") from None
    return tokens


@with_options(decoding=decoding_of("beam_size", *PENALTY, "early_stopping"))
def evaluate(
    ref: Annotated[list[Path], typer.Option(help="Reference translations; repeatable.")],
    models: Annotated[list[Path] | None, typer.Argument(metavar="MODEL", help=MODELS_HELP)] = None,
    src: Annotated[Path | None, typer.Option(help="Source lines.")] = None,
    hyp: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    source: From = None,
    target: To = None,
    tokenize: Tokenize = "auto",
    *,
    decoding: DecodingOptions,
    as_json: JSON = False,
    precision: Annotated[
        str,
        typer.Option(help="fp32, bf16, int8, or auto: the fastest here. all: each in turn, with its time."),
    ] = "auto",
    device: Device = None,
) -> None:
    """Compute BLEU, chrF and perplexity of a model's translations of --src, or BLEU and chrF of those in --hyp."""
    from heed.data.corpora.own_recipe import language_of
    from heed.data.reading.pairs import read_sides
    from heed.evaluation.bleu import bleu, chrf
    from heed.evaluation.tokenization import check_tokenization, choose_tokenization, language_of_file
    from heed.runs.tasks.evaluation import Evaluation

    choice = check_tokenization(tokenize)
    if bool(models) == (hyp is not None) or bool(models) != (src is not None):
        raise HeedError("give either model folders and --src, or --hyp.")
    how = None if precision == "auto" else precision
    check_options(EVALUATE_RULES, **decoding, hyp=hyp, device=device, precision=how, source=source, target=target)
    # Translations from a file need no model.
    if hyp is not None:
        (texts, references), *more = (read_sides((hyp, path)) for path in ref)
        language = language_of_file(ref[0], references)
        tokenization = choose_tokenization(choice, references, language=language, report=say)
        others = [of for _, of in more]
        scores = {
            "bleu": bleu(texts, references, *others, tokenize=tokenization),
            "chrf": chrf(texts, references, *others),
        }
        _show_evaluation(Evaluation(str(hyp), len(texts), scores), as_json=as_json)
        return
    # Otherwise a model translates, once for each precision asked for.
    assert models and src is not None
    import_torch_if_needed(device)
    (sources, references), *more = (read_sides((src, path)) for path in ref)
    others = [of for _, of in more]

    def evaluation(precision: "DecodingPrecisionChoice", report: Callable[[str], None]) -> Evaluation:
        from heed.api import evaluate as evaluated
        from heed.decoding.translator import Translator

        translator = Translator.load(
            *models, device=device, precision=precision, report=report, source=source, target=target, **decoding
        )
        exchanged = (language_of(ref[0]), language_of(src))
        if exchanged == translator.languages and exchanged[0] != exchanged[1]:
            report(f"{src} is in {exchanged[1]} by its name, the model's target; should --src and --ref be exchanged?")
        return evaluated(translator, sources, references, *others, tokenize=choice, name=str(src))

    if precision == "all":
        _show_precisions(evaluation, as_json=as_json)
    else:
        _show_evaluation(evaluation(decoding_precision(precision), say), as_json=as_json)


def _show_evaluation(result: "Evaluation", *, as_json: bool) -> None:
    if as_json:
        print_json(_numbers(result) | {"perplexity": result.perplexity})
        return
    from heed.training.logbook import short

    for line in result.scores.values():
        show(line)
    if result.perplexity is not None:
        print(f"perplexity {short(result.perplexity, 4)} a target token, eos included")


def _numbers(result: "Evaluation") -> dict[str, Any]:
    return {key: value for key, value in result.numbers().items() if key != "name"}


def _show_precisions(
    evaluation: Callable[["DecodingPrecisionChoice", Callable[[str], None]], "Evaluation"], *, as_json: bool
) -> None:
    """A row for each precision that this machine has: what it costs in BLEU and in time."""
    from heed.backends.protocol import NO_BF16, NO_INT8
    from heed.runtime.device import DecodingPrecision
    from heed.training.logbook import short

    results = []
    for precision in get_args(DecodingPrecision):
        try:
            results.append(evaluation(precision, say))
        except HeedError as error:
            if not str(error).startswith((NO_BF16.removesuffix("."), NO_INT8.removesuffix("."))):
                raise
            say(str(error))
    if as_json:
        print_json([_numbers(result) | {"seconds": result.seconds} for result in results])
        return
    print("precision    BLEU    chrF  perplexity  seconds")
    for result in results:
        bleu, chrf = result.scores["bleu"].value, result.scores["chrf"].value
        ppl = "–" if result.perplexity is None else short(result.perplexity, 4)
        print(f"{result.precision:9}  {bleu:6.2f}  {chrf:6.2f}  {ppl:>10}  {result.seconds:7.2f}")
    for score in results[0].scores.values():
        show(f"{score.name} {score.signature}")
