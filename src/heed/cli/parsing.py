"""heed parse and heed evalb: sentences → trees, and their score."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from heed.cli.terminal import (
    JSON,
    Alpha,
    Beam,
    Device,
    PrecisionOption,
    decoding_precision,
    print_json,
    print_text,
    say,
    show,
    standard_input,
)
from heed.errors import HeedError
from heed.runtime.process import release_library_pages

SHOWN_ERRORS = 10


def parse(
    model: Annotated[Path, Argument(help="A model folder that was trained on trees.")],
    beam: Beam = None,
    length_penalty: Alpha = None,
    tags: Annotated[bool, Option("--tags", help="The input is word/TAG; the trees have these tags.")] = False,
    unconstrained: Annotated[
        bool, Option("--unconstrained", help="Let the model write what it will; a blank line where that is no tree.")
    ] = False,
    min_confidence: Annotated[
        float,
        Option(
            min=0,
            max=1,
            help="Leave out what scores less: the mean (geometric) probability of a symbol. For self-training.",
        ),
    ] = 0.0,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object a line.")] = False,
    precision: PrecisionOption = "fp32",
    device: Device = None,
) -> None:
    """Parse tokenised sentences of standard input, a line each: one tree a line, always over exactly the words."""
    from heed.data.lines import Arriving, UntilError
    from heed.parsing.parser import Parser, n_characters, read_tagged
    from heed.parsing.trees import split_words

    lines = standard_input()
    release_library_pages()
    parser = Parser.load(
        model,
        device=device,
        precision=decoding_precision(precision),
        constrained=not unconstrained,
        report=say,
        beam_size=beam,
        length_penalty=length_penalty,
    )

    def read() -> Iterator[tuple[list[str], list[str] | None]]:
        for number, line in enumerate(lines, start=1):
            yield read_tagged(line, number) if tags else (split_words(line), None)

    n_sentences = n_broken = n_left_out = 0
    sentences = UntilError(read())
    for found in parser.stream(Arriving(sentences, size=n_characters)):
        n_sentences += len(found.words) > 0
        n_broken += found.tree is None and len(found.words) > 0
        if found.confidence < min_confidence:
            n_left_out += len(found.words) > 0
        elif as_json:
            tree = None if found.tree is None else str(found.tree)
            facts = {"score": found.score, "log_prob": found.log_prob, "confidence": found.confidence}
            print_json({"words": found.words, "tree": tree, **facts}, indent=None)
        else:
            print_text(str(found.tree or ""))
        sys.stdout.flush()
    if unconstrained or n_broken:
        say(f"{n_broken:,} of {n_sentences:,} outputs are no tree over their words.")
    if min_confidence:
        say(f"{n_sentences - n_left_out:,} of {n_sentences:,} trees have a confidence of {min_confidence:g} or more.")
    sentences.raise_error()


def evalb(
    gold: Annotated[Path, Argument(help="Treebank's trees.")],
    predicted: Annotated[Path, Argument(help="A parser's, a line each; blank where there is none. -: standard input.")],
    params: Annotated[
        Path | None, Option(help="Settings in the form of EVALB's .prm files. Default: those of COLLINS.prm.")
    ] = None,
    verbose: Annotated[bool, Option("--verbose", help="A line a sentence as well.")] = False,
    as_json: JSON = False,
) -> None:
    """Labelled recall, precision and F1 by EVALB's rules: of all sentences, and of those up to 40 words."""
    from heed.parsing.evalb import Params, read_pairs_of_trees, read_params
    from heed.parsing.evalb import evalb as scored

    if str(predicted) == "-" and sys.stdin is None:
        raise HeedError("standard input is closed; give it trees, such as < FILE.")
    pairs = read_pairs_of_trees(gold, Path("/dev/stdin") if str(predicted) == "-" else predicted)
    found = scored(pairs, read_params(params) if params else Params())
    cutoff = found.params.cutoff
    errors = [(number, why) for number, (_, _, why) in enumerate(found.each, start=1) if why]
    for number, why in errors if verbose else errors[:SHOWN_ERRORS]:
        say(f"{predicted}, line {number}: {why}.")
    if len(errors) > SHOWN_ERRORS and not verbose:
        say(f"{len(errors) - SHOWN_ERRORS:,} more errors: --verbose shows all.")
    if as_json:
        # len40 whatever the cutoff, so that scripts find it.
        summary = {"all": found.all.numbers(), "len40": found.short.numbers(), "cutoff": cutoff}
        each = [{"length": length, "error": why, **counts.numbers()} for length, counts, why in found.each]
        facts = {"signature": found.params.signature(), "f1_of_all_gold": found.strict_f1}
        print_json({**summary, **facts, **({"each": each} if verbose else {})})
        return
    if verbose:
        print("sentence  length  recall  precision  matched  gold  predicted  crossing  words  right tags")
        for number, (length, counts, why) in enumerate(found.each, start=1):
            shown = counts.numbers()
            numbers = (
                f"{shown['recall']:6.2f}  {shown['precision']:9.2f}  {counts.matched:7}  {counts.gold:4}  "
                f"{counts.predicted:9}  {counts.crossing:8}  {counts.words:5}  {counts.right_tags:10}"
            )
            state = f"  error: {why}" if why else "  skipped" if counts.skipped else ""
            show(f"{number:8}  {length:6}  {numbers}{state}")
    names = {
        "sentences": "Sentences", "errors": "of them errors", "skipped": "and skipped", "recall": "Recall",
        "precision": "Precision", "f1": "F1", "complete_match": "Complete match",
        "average_crossing": "Average crossing", "no_crossing": "No crossing",
        "two_or_less_crossing": "Two or less crossing", "tagging_accuracy": "Tagging accuracy",
    }  # fmt: skip
    print(f"{'':22}{'all':>8}{f'≤ {cutoff}':>8}")
    short = found.short.numbers()
    for key, value in found.all.numbers().items():
        columns = (f"{number:8}" if isinstance(number, int) else f"{number:8.2f}" for number in (value, short[key]))
        print(f"{names[key]:22}" + "".join(columns))
    if found.all.errors + found.all.skipped:
        print(f"F1 if the gold brackets of errors and skipped sentences count as missed: {found.strict_f1:.2f}")
    show(found.params.signature())
