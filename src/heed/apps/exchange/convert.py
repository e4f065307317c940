"""Export and import of whole model folders, by the name of the other program."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from heed.apps.exchange.hub import hub_model
from heed.errors import HeedError
from heed.model_folder import MODEL_FOLDER_NAMES, copy_model, load_model, model_card
from heed.runtime.extensions import extension, installed
from heed.runtime.files import as_path, check_replaceable, whole_folder
from heed.runtime.progress import progress

ExportFormat = Literal["huggingface", "ctranslate2", "marian"]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)
ImportFormat = Literal["huggingface", "marian"]


def export(
    folder: str | Path,
    out: str | Path,
    to: str,
    *,
    int8: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Writes a model folder in another program's form, whole or not at all, and checks it with that program.

    to: one of EXPORT_FORMATS, or a format of an installed package: an entry point of heed.formats, which leads to a
    function that takes a ModelFolder, an empty folder to write into and `report`. int8: with weights in 8 bits, for
    CTranslate2. HeedError if the format cannot express the model, or gives other results.
    """
    folder, out = Path(folder), Path(out)
    # All that can be refused without the model, since loading a large one takes a while.
    if to not in EXPORT_FORMATS and to not in installed("heed.formats"):
        *known, last = [*EXPORT_FORMATS, *installed("heed.formats")]
        raise HeedError(f"--to {to}: expected {', '.join(known)} or {last}.")
    if int8 and to != "ctranslate2":
        raise HeedError(f"--int8 is for --to ctranslate2; {to} keeps weights in fp32.")
    check_replaceable(out, ())

    # Models that no other program could use, however its network is written.
    model = load_model(folder)
    if model.card.parsing:
        raise HeedError(f"{folder}: a parser, whose trees no other program reads; only translators can be exported.")
    if model.tokenizer.symbols:
        raise HeedError(f"{folder}: it writes symbols (data.tgt_symbols), which other programs' tokenizers would drop.")

    # Writers are imported when used: each needs optional packages of its format.
    with progress(f"Writing {out}"), whole_folder(out) as temporary:
        if to == "huggingface":
            from heed.apps.exchange import huggingface

            huggingface.export(model, temporary, report=report)
        elif to == "marian":
            from heed.apps.exchange import marian

            marian.export(model, temporary, report=report)
        elif to == "ctranslate2":
            from heed.apps.exchange import ctranslate2

            ctranslate2.export(model, temporary, name=out.resolve().name, int8=int8, report=report)
        else:
            extension("heed.formats", to)(model, temporary, report=report)


def import_(
    path: str | Path,
    out: str | Path,
    kind: ImportFormat = "huggingface",
    *,
    src: str | None = None,
    tgt: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Writes another program's model as a model folder, whole or not at all. src, tgt: its languages, such as "en".

    report: of settings of its search that change translations and that Heed lacks. HeedError if it is damaged, or of
    another kind than Heed's networks are.
    """
    path, out = as_path(path), as_path(out)
    if kind not in get_args(ImportFormat):
        raise HeedError(f"--from {kind}: expected {' or '.join(get_args(ImportFormat))}.")
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        hint = f"; to download it: heed import {path}" if hub_model(str(path)) else ""
        raise HeedError(f"{path}: no such file or folder{hint}.")
    check_replaceable(out, MODEL_FOLDER_NAMES)
    if kind == "huggingface":
        from heed.apps.exchange.huggingface import load
    else:
        from heed.apps.exchange.marian import load
    with progress(f"Reading {path}"):
        imported = load(path, report=report)
    card = replace(imported.card, src=src or imported.card.src, tgt=tgt or imported.card.tgt)
    config = imported.config._replace(card=model_card(vars(card), where=str(path)))
    with progress(f"Writing {out}"):
        copy_model(out, replace(imported, config=config))
