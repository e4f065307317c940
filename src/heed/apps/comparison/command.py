"""heed compare: which of several translations of the same text is better, and where."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.apps.cli.options import JSON, Device, PrecisionOption, Tokenize, decoding_precision
from heed.apps.cli.process import import_torch_if_needed
from heed.apps.cli.terminal import print_json, say, show
from heed.errors import HeedError
from heed.runtime.process_tuning import import_torch

if TYPE_CHECKING:
    from heed.apps.comparison.statistics import Comparison
    from heed.runtime.device import DecodingPrecisionChoice

N_PRINTED = 3  # sentences a system that gain most, and as many that lose most; JSON and page have more


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="HYP",
            help="Translations, or model folders to translate --src with; two or more. Or runs of heed train --seeds, "
            "whose scores are compared by Student's t.",
        ),
    ],
    ref: Annotated[Path | None, typer.Option(help="Reference translations.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source lines: to translate, and to show beside sentences.")] = None,
    training_text: Annotated[
        Path | None,
        typer.Option("--train", help="Target side of the training text, whose words are counted for the breakdown."),
    ] = None,
    tokenize: Tokenize = "auto",
    comet: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also score by COMET (its program comet-score must be in PATH): a model's name or checkpoint.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures to this file.")] = None,
    as_json: JSON = False,
    precision: PrecisionOption = "auto",
    device: Device = None,
) -> None:
    """Compare systems with the first one by BLEU, chrF and TER: significance, lengths, word frequencies, sentences."""
    from heed.apps.comparison.statistics import check_number, check_seed
    from heed.apps.comparison.statistics import compare as compared
    from heed.data.reading.lines import read_lines
    from heed.evaluation.comet import CometFailed, check_comet
    from heed.evaluation.tokenization import check_tokenization, choose_tokenization, language_of_file

    if ref is None:
        _compare_seeds(systems, as_json=as_json)
        return
    # What can be known to be wrong before anything is read.
    choice, decoded_in = check_tokenization(tokenize), decoding_precision(precision)
    check_seed()
    if comet is not None:
        if src is None:
            raise HeedError("--comet needs the source lines: give them by --src.")
        check_comet(comet)
    if len(systems) < 2:
        raise HeedError(f"{systems[0]} alone cannot be compared: give two or more files of translations or models.")
    if not any(path.is_dir() for path in systems) and (precision != "auto" or (device is not None and comet is None)):
        raise HeedError("no model is to translate, so --precision and --device have no effect: leave them out.")
    if html is not None:
        _check_page(html, [path for path in (ref, src, training_text, *systems) if path is not None])
    # Files are read before models translate, which may take hours.
    references = list(read_lines(ref))
    if not references:
        raise HeedError(f"{ref} is empty: a comparison needs at least one line.")
    check_number(len(references))
    language = language_of_file(ref, references)
    tokenization = choose_tokenization(choice, references, language=language, report=say)
    training_lines = None if training_text is None else _begun(training_text)

    def lines_of(path: Path) -> list[str]:
        return _read_lines(path, ref, len(references))

    # Folders are models, which translate the sources.
    sources = None if src is None else lines_of(src)
    if sources is None:
        for path in filter(Path.is_dir, systems):
            raise HeedError(f"{path} is a folder: to translate with a model, give its text by --src.")
    _check_models([path for path in systems if path.is_dir()])
    finished = {path: lines_of(path) for path in systems if not path.is_dir()}
    translations = [
        (str(path), _translate(path, sources or [], decoded_in, device) if path.is_dir() else finished[path])
        for path in systems
    ]
    # COMET may fail after all that: the comparison is then printed without it, and the failure last.
    gpu = None
    if comet is not None:
        gpu = _gpu_of(device)
        say(f"Scoring by COMET with {comet}.")
    compare_by = partial(
        compared, translations, references, tokenize=tokenization, language=language, sources=sources,
        training_text=training_lines, report=say,
    )  # fmt: skip
    try:
        comparison, failed = compare_by(comet=comet, gpu=gpu), None
    except CometFailed as error:  # after all the translations
        comparison, failed = compare_by(), error
    try:
        if html is not None:
            from heed.apps.comparison.page import write_comparison

            write_comparison(html, comparison, reference=str(ref))
            say(f"Wrote {html}")
    finally:  # also if the page cannot be written, after all the work
        if as_json:
            print_json({"reference": str(ref), **asdict(comparison)})
        else:
            _show(comparison)
    if failed is not None:
        raise HeedError(f"{str(failed).rstrip('.')}; the other metrics are complete.")


def _read_lines(path: Path, ref: Path, n: int) -> list[str]:
    """The n lines of a file, read once: the shell's <(...) gives them only then. HeedError for another number."""
    from heed.data.reading.lines import read_lines

    lines = list(read_lines(path))
    if len(lines) != n:
        raise HeedError(f"{path} has {len(lines):,} lines, {ref} {n:,}: both must have the same number.")
    return lines


def _check_page(html: Path, inputs: Sequence[Path]) -> None:
    from heed.runtime.files import check_target

    check_target(html)
    if any(html.exists() and path.exists() and html.samefile(path) for path in inputs):
        raise HeedError(f"--html {html}: is one of the files to read; choose another name.")


def _gpu_of(device: str | None) -> int | None:
    """The number of the GPU to score on; None for a CPU."""
    import_torch()
    from heed.runtime.device import choose_machine

    chosen = choose_machine(device=device).device
    return (chosen.index or 0) if chosen.type == "cuda" else None


def _compare_seeds(runs: Sequence[Path], *, as_json: bool) -> None:
    """Mean scores of groups of runs, and whether they differ from the first group's."""
    import_torch()
    from heed.runs.seeds import differences, is_group, scores_of_seeds, table

    for run in runs:
        if not is_group(run):
            raise HeedError(f"give --ref, the reference translations; {run} is no folder of heed train --seeds.")
    if len(runs) < 2:
        raise HeedError(f"{runs[0]} alone cannot be compared: give two or more folders of heed train --seeds.")
    groups = {str(run): scores_of_seeds(run) for run in runs}
    first = next(iter(groups.values()))
    if as_json:
        print_json(
            [
                {
                    "run": name,
                    "scores": {f"{of}/{metric}": values for (of, metric), values in group.items()},
                    "differences": [] if group is first else [asdict(one) for one in differences(first, group)],
                }
                for name, group in groups.items()
            ]
        )
        return
    for line in table(groups):
        show(line)
    print("\nt and p: Student's t-test, two-sided, of the means over seeds against the first group's.")


def _begun(path: Path) -> Iterator[str]:
    """Its lines, of which the first is read at once. HeedError if there is none, or if a file has a fault."""
    from heed.data.reading.lines import read_lines

    if path.is_file():  # its faults show before models translate; a pipe can be read only once
        for _ in read_lines(path):
            pass
    lines = read_lines(path)
    for first in lines:
        return chain([first], lines)
    raise HeedError(f"{path} is empty: there is no word to count.")


def _check_models(folders: Sequence[Path]) -> None:
    """HeedError for a wrong one, before another's translations are made."""
    from heed.model_folder import read_config

    for folder in folders:
        read_config(folder)


def _translate(
    model: Path, sources: Sequence[str], precision: "DecodingPrecisionChoice", device: str | None
) -> list[str]:
    import_torch_if_needed(device)
    from heed.decoding.translator import Translator

    translator = Translator.load(model, device=device, precision=precision, report=say)
    return [translation.text for translation in translator.translate(sources)]


def _show(comparison: "Comparison") -> None:
    from heed.apps.comparison.statistics import LOWER_IS_BETTER, statements

    systems = comparison.systems
    names = [f"{number} {system.name}" for number, system in enumerate(systems, start=1)]
    titles = {m: f"{m} (lower is better)" if m in LOWER_IS_BETTER else m for m in comparison.signatures}
    width = max(map(len, (*names, *titles.values())))
    print(f"{(n := comparison.n_sentences):,} sentence{'s' * (n != 1)}; systems are compared with the first.")
    # A table for each metric, with significance.
    for metric, title in titles.items():
        print(f"\n{title:{width}}    score   95 % interval  difference  p bootstrap  p randomisation")
        for name, system in zip(names, systems, strict=True):
            score = system.scores[metric]
            line = f"{name:{width}}  {score.score:7.2f}  {score.mean:6.2f} ± {score.half_width:5.2f}"
            if score.difference is not None:
                line += f"  {score.difference:+10.2f}  {score.p_bootstrap:11.4f}  {score.p_randomisation:15.4f}"
            show(line)
    print()
    for line in statements(comparison):
        show(line)
    for system in systems[1:]:
        n_equal = comparison.n_sentences - system.n_better - system.n_worse
        show(
            f"Sentences of {system.name} by chrF2: {system.n_better:,} better, {system.n_worse:,} worse, {n_equal:,} "
            "equal."
        )
    # BLEU by length of the reference; F1 by word frequency.
    numbers = "".join(f"{number:9}" for number in range(1, len(systems) + 1))
    print(f"\nBLEU by length of the reference\nwords       sentences{numbers}")
    for group in comparison.lengths:
        span = f"{group.shortest}–{group.longest}"
        print(f"{span:10}  {group.n_sentences:9,}" + "".join(f"{value:9.2f}" for value in group.bleu))
    print(f"\nF1 (recall) of words, %, by their occurrences in the {comparison.counted}\noccurrences     words", end="")
    print("".join(f"{number:17}" for number in range(1, len(systems) + 1)))
    for words in comparison.frequencies:
        cells = (f"{100 * f1:6.2f} ({100 * recall:.2f})" for f1, recall in zip(words.f1, words.recall, strict=True))
        print(f"{words.span:11}  {words.n_words:8,}" + "".join(f"{cell:>17}" for cell in cells))
    # The sentences that differ most, and the signatures with which all this can be repeated.
    for system, sentences in zip(systems[1:], comparison.sentences, strict=True):
        gains = [sentence for sentence in sentences if sentence.difference > 0][:N_PRINTED]
        losses = [sentence for sentence in sentences if sentence.difference < 0][:N_PRINTED]
        if sentences:
            print()
            show(f"Sentences where {system.name} differs most")
        for sentence in (*gains, *losses):
            first, own = sentence.chrf
            print(f"\nline {sentence.line:,}: {sentence.difference:+.2f} chrF2")
            if sentence.source is not None:
                show(f"  source     {sentence.source}")
            show(f"  reference  {sentence.reference}")
            show(f"  first      {sentence.translations[0]}   ({first:.2f})")
            show(f"  this       {sentence.translations[1]}   ({own:.2f})")
    print()
    for metric, signature in comparison.signatures.items():
        show(f"{metric} {signature}")
