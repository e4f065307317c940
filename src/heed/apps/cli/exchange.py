"""heed export, import: models that leave for other programs, and other programs' models."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from heed.apps.cli.terminal import say, show
from heed.errors import HeedError


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[str, typer.Option("--to", help="huggingface, ctranslate2, marian, or a format that a package adds.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights in 8 bits, for ctranslate2.")] = False,
) -> None:
    """Write a model in another program's format, and check it with that program where it is installed."""
    from heed.apps.exchange.transfer import export_model

    export_model(model, out, to, int8=int8, report=say)
    show(out)


def import_(
    path: Annotated[
        Path, typer.Argument(help="The other program's model folder; for Marian also its decoder.yml or .npz.")
    ],
    out: Annotated[Path, typer.Argument(help="Model folder to write.")],
    kind: Annotated[str, typer.Option("--from", help="huggingface (MarianMTModel, OPUS-MT) or marian.")],
    src: Annotated[str | None, typer.Option(help="Source language, such as en, if the model does not name it.")] = None,
    tgt: Annotated[str | None, typer.Option(help="Target language.")] = None,
) -> None:
    """Make a model folder from another program's model. Nothing in that model is executed."""
    from heed.apps.exchange.transfer import ImportFormat, import_model

    import_model(path, out, cast(ImportFormat, _known(kind, "--from", get_args(ImportFormat))), src=src, tgt=tgt)
    show(out)


def _known(name: str, option: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise HeedError(f"{option} {name}: expected {', '.join(names[:-1])} or {names[-1]}.")
    return name
