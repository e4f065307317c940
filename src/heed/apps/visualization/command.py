"""heed attention, plot: what a model attends to, as a page or a picture; learning curves of runs."""

import itertools
import os
import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from heed.apps.cli.terminal import say, show
from heed.errors import HeedError

N_NAME_WORDS, MAX_NAME_BYTES = 5, 100  # of a page that the user did not name


def attention(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    sentence: Annotated[str, typer.Argument(help="A source sentence.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="An interactive page (.html) or a picture (.svg, .png). Default: a page in the current folder, named "
            "after the sentence."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target sentence. Default: the model's translation.")] = None,
    view: Annotated[
        str | None,
        typer.Option(
            help="encoder, decoder or cross. Default: cross for a page; encoder for a picture and with --from-word."
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Counted from 1. Default: the last.")] = None,
    head: Annotated[list[int] | None, typer.Option(min=1, help="Counted from 1; repeatable. Default: all.")] = None,
    from_word: Annotated[
        str | None, typer.Option(help="Draw only the lines of this word, or of the word at this number.")
    ] = None,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Join the pieces of words.")] = False,
) -> None:
    """Draw what a model attends to for a sentence, as in figures 3 to 5 of the paper.

    A page (.html) holds all views; the printed address opens it at the chosen view, layer, heads and word.
    """
    from heed.apps.visualization import render
    from heed.apps.visualization.trace import VIEWS, trace, word_place
    from heed.decoding.translator import Translator
    from heed.model_folder import read_config
    from heed.runtime.files import check_target

    if out is None:
        out = _free_name(sentence)
    if view is None:
        view = "cross" if out.suffix == ".html" and from_word is None else "encoder"
    # Mistakes that show without the model.
    if out.suffix not in (".html", ".svg", ".png"):
        raise HeedError(f"--out {out}: expected a name that ends in .html, .svg or .png.")
    if view not in VIEWS:
        raise HeedError(f"--view {view}: expected {', '.join(VIEWS)}.")
    check_target(out)
    if out.suffix != ".html":
        render.require_matplotlib()
    # A parser's target is a tree, which a search under its grammar finds.
    if read_config(model).card.parsing and sentence.strip():
        from heed.parsing.parser import Parser
        from heed.parsing.trees import split_words

        sentence, tree = Parser.load(model, report=say).as_read(split_words(sentence))
        target = tree if target is None else target
    traced = trace(
        Translator.load(model, precision="fp32", report=say), sentence, target=target, whole_words=whole_words
    )
    # Layers, heads and word as they are counted in the options: from 1.
    shown = traced.view(view)
    n_layers, n_heads = shown.weights.shape[:2]
    for name, number, most in (("--layer", layer, n_layers), *(("--head", h, n_heads) for h in head or ())):
        if number is not None and number > most:
            raise HeedError(f"{name} {number}: the model has {most}.")
    word = None if from_word is None else word_place(shown.queries, from_word)
    heads = [h - 1 for h in head or range(1, n_heads + 1)]
    fragment = ""
    if out.suffix != ".html":
        drawing = partial(render.draw, attention=shown, layer=(layer or n_layers) - 1, heads=heads, word=word)
        render.write_picture(out, drawing)
    else:
        render.write_page(out, traced)
        choice = {"view": view, "layer": layer or n_layers, "heads": ",".join(map(str, head or ()))}
        choice |= {} if word is None else {"word": word + 1}
        fragment = "#" + "&".join(f"{key}={value}" for key, value in choice.items() if value)
    say(f"{traced.source} → {traced.target}")
    say(f"Wrote {out.resolve().as_uri() + fragment if fragment else out}")


def _free_name(sentence: str) -> Path:
    """attention-FIRST-WORDS.html, with a number if a file of this name exists."""
    words = re.findall(r"[^\W_]+", sentence.lower())[:N_NAME_WORDS]
    stem = "-".join(["attention", *words])
    # The longest name that file systems take has 255 bytes.
    stem = stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    names = (Path(f"{stem}{f'-{number}' * (number > 1)}.html") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def plot(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, or LABEL=RUN.")],
    out: Annotated[
        Path | None, typer.Option(help="A picture (.svg, .png; extra plots). Default: text, in the terminal.")
    ] = None,
) -> None:
    """Plot the learning curves of runs: loss, perplexity, score on dev, learning rate, speed."""
    from heed.apps.visualization import render
    from heed.apps.visualization.curves import curves_of, draw_curves, text_of
    from heed.runtime.files import check_target

    named: dict[str, Path] = {}
    for text in runs:
        label, separator, run = text.partition("=")
        if not separator or Path(text).exists():
            label = run = text
        if label in named:
            raise HeedError(f"{text}: two runs would be called {label}; name them, as in first={run}.")
        named[label] = Path(run)
        if not Path(run).exists():
            raise HeedError(f"{run}: no such run folder.")
    if out is not None:
        if out.suffix not in (".svg", ".png"):
            raise HeedError(f"--out {out}: expected a name that ends in .svg or .png; without --out it is text.")
        check_target(out)
        render.require_matplotlib()
    curves = curves_of(named)
    if out is None:
        for line in text_of(curves):
            show(line)
    else:
        render.write_picture(out, partial(draw_curves, curves=curves))
        say(f"Wrote {out}")
