"""heed export, import: models that leave for other programs, and other programs' models."""

import os
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from heed.apps.cli.guesses import one_of
from heed.apps.cli.terminal import say, show
from heed.errors import HeedError


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="huggingface, ctranslate2, marian, or a format that a package adds.",
            autocompletion=one_of("huggingface", "ctranslate2", "marian"),
        ),
    ],
    int8: Annotated[bool, typer.Option("--int8", help="Weights in 8 bits, for ctranslate2.")] = False,
) -> None:
    """Write a model in another program's format, and check it with that program where it is installed."""
    from heed.apps.exchange.convert import export as write_as

    write_as(model, out, to, int8=int8, report=say)
    show(out)


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="The other program's model folder; for Marian also its decoder.yml or .npz. Or a model of the Hugging "
            "Face hub, which is downloaded: opus-mt-en-de, nllb-200-distilled-600M, OWNER/MODEL, with "
            "@REVISION if not the newest.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Argument(help="Model folder to write. Default for a model of the hub: models/ and its name.")
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            help="huggingface (OPUS-MT, M2M100, NLLB, SMaLL-100, mBART-50) or marian.",
            autocompletion=one_of("huggingface", "marian"),
        ),
    ] = "huggingface",
    src: Annotated[str | None, typer.Option(help="Source language, such as en, if the model does not name it.")] = None,
    tgt: Annotated[str | None, typer.Option(help="Target language.")] = None,
) -> None:
    """Make a model folder from another program's model. Nothing in that model is executed."""
    from heed.apps.exchange.convert import ImportFormat
    from heed.apps.exchange.convert import import_ as read_as
    from heed.apps.exchange.hub import fetch, hub_model
    from heed.model_folder import MODEL_FOLDER_NAMES
    from heed.runtime.files import check_replaceable

    on_hub = hub_model(str(path)) if kind == "huggingface" and not os.path.exists(path) else None
    if on_hub is not None:
        out = out or Path("models", on_hub.repository.split("/")[1])
        check_replaceable(out, MODEL_FOLDER_NAMES)  # before minutes of download
        path = fetch(on_hub, report=say)
    elif out is None and kind in get_args(ImportFormat):
        missing = "" if os.path.lexists(path) else "no such file or folder, and not the name of a model of the hub; "
        raise HeedError(f"{path}: {missing}name the folder to write as well: heed import {path} OUT.")
    read_as(path, out or Path(), cast(ImportFormat, kind), src=src, tgt=tgt, report=say)
    show(out)
