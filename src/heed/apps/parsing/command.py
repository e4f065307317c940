"""heed parse, evalb: sentences → trees, and how good they are."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from heed.apps.cli.options import JSON, Device, PrecisionOption, decoding_of, decoding_precision, with_options
from heed.apps.cli.process import import_torch_if_needed
from heed.apps.cli.terminal import print_json, print_text, printing_progress, say, show, standard_input
from heed.decoding.settings import DecodingOptions

if TYPE_CHECKING:
    from heed.parsing.evalb import ParseScore

SHOWN_ERRORS = 10


@with_options(decoding=decoding_of("beam_size", "length_penalty"))
def parse(
    models: Annotated[
        list[Path],
        Argument(metavar="MODEL", help="A model folder that was trained on trees, or several as an ensemble."),
    ],
    decoding: DecodingOptions,
    tags: Annotated[bool, Option("--tags", help="The input is word/TAG; use these tags in the trees.")] = False,
    unconstrained: Annotated[
        bool, Option("--unconstrained", help="Search without grammar; a blank line where the output is not a tree.")
    ] = False,
    min_confidence: Annotated[
        float,
        Option(
            min=0,
            max=1,
            help="Leave out trees of a lower confidence: the geometric mean of their symbols' probabilities.",
        ),
    ] = 0.0,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
    precision: PrecisionOption = "fp32",
    device: Device = None,
) -> None:
    """Parse tokenised sentences from standard input, one per line, into trees over exactly their words."""
    import_torch_if_needed(device)
    from heed.data.reading.stream import DeferredError, PrefetchedLines
    from heed.parsing.parser import Parser, n_characters, read_tagged
    from heed.parsing.trees import split_words

    lines = standard_input()
    parser = Parser.load(
        *models,
        device=device,
        precision=decoding_precision(precision),
        constrained=not unconstrained,
        report=say,
        **decoding,
    )

    def read() -> Iterator[tuple[list[str], list[str] | None]]:
        for number, line in enumerate(lines, start=1):
            yield read_tagged(line, number) if tags else (split_words(line), None)

    # Trees appear as sentences arrive; a faulty line is reported after the trees before it.
    n_sentences = n_broken = n_left_out = 0
    sentences = DeferredError(read())
    with printing_progress("Parsing", unit="sentences") as task:
        for parsed in parser.stream(PrefetchedLines(sentences, size=n_characters), task=task):
            n_sentences += len(parsed.words) > 0
            n_broken += parsed.tree is None and len(parsed.words) > 0
            if min_confidence and (parsed.tree is None or parsed.confidence < min_confidence):
                n_left_out += len(parsed.words) > 0
            elif as_json:
                tree = None if parsed.tree is None else str(parsed.tree)
                numbers = {"score": parsed.score, "log_prob": parsed.log_prob, "confidence": parsed.confidence}
                print_json({"words": parsed.words, "tree": tree, **numbers}, indent=None)
            else:
                print_text(str(parsed.tree or ""))
            sys.stdout.flush()
    if unconstrained or n_broken:
        say(f"{n_broken:,} of {n_sentences:,} outputs are not trees over their words.")
    if min_confidence:
        say(f"{n_sentences - n_left_out:,} of {n_sentences:,} trees have a confidence of {min_confidence:g} or more.")
    sentences.raise_error()


def evalb(
    gold: Annotated[Path, Argument(help="Trees of a treebank.")],
    predicted: Annotated[
        Path, Argument(help="Trees of a parser, one per line, blank if there is none. -: standard input.")
    ],
    params: Annotated[Path | None, Option(help="A settings file in EVALB's .prm format. Default: COLLINS.prm.")] = None,
    count_root: Annotated[
        bool,
        Option(
            "--count-root",
            help="Count a root that no DELETE_LABEL names, such as ROOT, as a constituent, as EVALB does.",
        ),
    ] = False,
    verbose: Annotated[bool, Option("--verbose", help="Show every sentence.")] = False,
    as_json: JSON = False,
) -> None:
    """Compute labelled recall, precision and F1 by EVALB's rules, for all sentences and for those of up to 40 words."""
    from dataclasses import replace

    from heed.data.reading.lines import read_lines
    from heed.parsing.evalb import Params, read_pairs_of_trees, read_params
    from heed.parsing.evalb import evalb as scored

    name, lines = str(predicted), read_lines(predicted)
    if name == "-":
        name, lines = "standard input", standard_input()
    pairs, numbers = read_pairs_of_trees(gold, lines, name=name, report=say)
    result = scored(pairs, replace(read_params(params) if params else Params(), count_root=count_root))
    errors = [
        f"{why}; the pair is left out." if counts.left_out else f"{name}, line {number}: {why}."
        for number, (_, counts, why) in zip(numbers, result.each, strict=True)
        if why
    ]
    for error in errors if verbose else errors[:SHOWN_ERRORS]:
        say(error)
    if result.all.left_out:
        say(f"Left out: {result.all.left_out:,} of {result.all.sentences:,} pairs, whose gold trees cannot be used.")
    if len(errors) > SHOWN_ERRORS and not verbose:
        say(f"{len(errors) - SHOWN_ERRORS:,} more errors: --verbose shows all.")
    if as_json:
        _print_scores_as_json(result, verbose)
        return
    if verbose:
        _print_sentences(result)
    _print_scores(result)


def _print_scores_as_json(result: "ParseScore", verbose: bool) -> None:
    # len40 whatever the cutoff, so that scripts find it.
    scores = {"all": result.all.numbers(), "len40": result.short.numbers(), "cutoff": result.params.cutoff}
    scores |= {"signature": result.params.signature(), "f1_of_all_gold": result.strict_f1}
    scores["roots_left_out"] = dict(result.roots_left_out)
    if verbose:
        scores["each"] = [{"length": n_words, "error": why, **counts.numbers()} for n_words, counts, why in result.each]
    print_json(scores)


def _print_sentences(result: "ParseScore") -> None:
    print("sentence  length  recall  precision  matched  gold  predicted  crossing  words  right tags")
    for number, (length, counts, why) in enumerate(result.each, start=1):
        scores = counts.numbers()
        numbers = (
            f"{scores['recall']:6.2f}  {scores['precision']:9.2f}  {counts.matched:7}  {counts.gold:4}  "
            f"{counts.predicted:9}  {counts.crossing:8}  {counts.words:5}  {counts.right_tags:10}"
        )
        kind = "left out" if counts.left_out else "error"
        state = f"  {kind}: {why}" if why else "  skipped" if counts.skipped else ""
        show(f"{number:8}  {length:6}  {numbers}{state}")


def _print_scores(result: "ParseScore") -> None:
    titles = {
        "sentences": "Sentences", "errors": "  errors", "skipped": "  skipped", "left_out": "  left out",
        "recall": "Recall", "precision": "Precision", "f1": "F1", "complete_match": "Complete match",
        "average_crossing": "Average crossing", "no_crossing": "No crossing",
        "two_or_less_crossing": "Two or less crossing", "tagging_accuracy": "Tagging accuracy",
    }  # fmt: skip
    print(f"{'':22}{'all':>8}{f'≤ {result.params.cutoff}':>8}")
    short = result.short.numbers()
    for key, value in result.all.numbers().items():
        if key == "left_out" and not value:
            continue
        columns = (f"{number:8}" if isinstance(number, int) else f"{number:8.2f}" for number in (value, short[key]))
        print(f"{titles[key]:22}" + "".join(columns))
    if result.all.errors + result.all.skipped:
        print(f"F1 if the gold brackets of errors and skipped sentences count as missed: {result.strict_f1:.2f}")
    show(result.params.signature())
    if result.roots_left_out:
        labels = " and ".join(label or "without a label" for label in sorted(result.roots_left_out))
        print(
            f"Not counted: {result.roots_left_out.total():,} roots ({labels}) of gold and predicted trees, which no "
            "DELETE_LABEL names. EVALB counts them; so does --count-root."
        )
