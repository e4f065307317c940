"""heed translate-file, and heed translate --format: whole documents with their layout."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heed.apps.cli.guesses import one_of
from heed.apps.cli.options import Device, From, PrecisionOption, To, decoding_of, decoding_precision, with_options
from heed.apps.cli.process import import_torch_if_needed
from heed.apps.cli.terminal import say
from heed.apps.documents.formats import FORMATS, MAX_BYTES, PACKAGES, SUFFIXES, UPDATED, Format, format_of, most_bytes
from heed.decoding.settings import DecodingOptions
from heed.errors import HeedError
from heed.runtime.files import check_target, whole_file
from heed.runtime.progress import progress
from heed.runtime.reading import read_bounded
from heed.text.printable import KEPT_IN_TEXT, printable

if TYPE_CHECKING:
    from heed.apps.documents.text.translation import DocumentOptions
    from heed.decoding.translator import Translator


@dataclass(frozen=True, kw_only=True)
class DocumentChoices:
    """The options of translate-file, and of translate --format, that say how a document is translated."""

    language: Annotated[
        str | None,
        typer.Option(help="Language code whose rules find the document's sentences. Default: the model's source."),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="What it matches stays as it is, such as a product's name; repeatable."),
    ] = None
    attributes: Annotated[
        Literal["all", "none"],
        typer.Option(
            help="Translate the words that readers see in the markup, such as a picture's description or a page's "
            "title in a search engine, or none of them."
        ),
    ] = "all"
    glossary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Terms and what stands for them in the translation: a line each, with a tab between, or CSV (.csv).",
        ),
    ] = None
    cues: Annotated[
        Literal["joined", "alone"],
        typer.Option(help="Translate a sentence over several subtitles as one (joined), or each subtitle alone."),
    ] = "joined"

    @property
    def given(self) -> dict[str, Any]:
        """The values that are not the default; None in place of the others."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: None if value == field.default else value for field, value in values}

    def checked(self) -> "Callable[..., DocumentOptions]":
        """Makes the options once a model is loaded, of what is checked and read before."""
        from heed.apps.documents.text.atoms import kept_patterns
        from heed.apps.documents.text.translation import DocumentOptions

        keep = tuple(self.keep or ())
        kept_patterns(keep)
        terms = _read_glossary(self.glossary)

        def options(translator: "Translator", **others: Any) -> DocumentOptions:
            return DocumentOptions(
                language=self.language or translator.languages[0],
                target=translator.languages[1],
                keep=keep,
                terms=terms,
                attributes=self.attributes == "all",
                cues=self.cues,
                **others,
            )

        return options


@with_options(choices=DocumentChoices, decoding=decoding_of("beam_size", "length_penalty"))
def translate_file(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[
        Path, typer.Argument(metavar="IN", help=f"A document ({', '.join(SUFFIXES)}), or a folder of them.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, in the same format, or the folder.")],
    source_language: From = None,
    target_language: To = None,
    document_format: Annotated[
        str | None,
        typer.Option(
            "--format", help=f"{', '.join(FORMATS)}. Default: by the suffix of IN.", autocompletion=one_of(*FORMATS)
        ),
    ] = None,
    *,
    choices: DocumentChoices,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Keep the texts that OUT, a file of keys and texts, has, and fill what is missing."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Of a folder: translate these, such as '*.html', and copy nothing."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of a table to translate, by name or number: title,3. Default: all of them."),
    ] = None,
    decoding: DecodingOptions,
    precision: PrecisionOption = "auto",
    device: Device = None,
) -> None:
    """Translate a document and keep its layout: markup, code, addresses and times stay as they are."""
    options_for = choices.checked()
    is_folder = source.is_dir()
    if only and not is_folder:
        raise HeedError("--only is for folders; IN is a file.")
    if is_folder and (document_format is not None or columns is not None):
        raise HeedError("--format and --columns are for one file; IN is a folder.")
    chosen = None if is_folder else _check_file(source, out, document_format, update=update, columns=columns)
    content = b"" if chosen is None else read_bounded(source, most_bytes(chosen))
    earlier = read_bounded(out, MAX_BYTES) if update and not is_folder and out.exists() else None
    import_torch_if_needed(device)
    from heed.apps.documents.formats.jobs import document_job
    from heed.apps.documents.text.translation import run_job
    from heed.decoding.translator import Translator

    translator = Translator.load(
        model,
        device=device,
        precision=decoding_precision(precision),
        report=say,
        source=source_language,
        target=target_language,
        **decoding,
    )
    options = options_for(translator, earlier=earlier, columns=tuple(columns.split(",")) if columns else ())
    if chosen is None:
        made_by = hashlib.sha256(f"{model.resolve()} {decoding} {precision} {options}".encode()).hexdigest()
        _translate_folder(source, out, translator, options, only=only or (), made_by=made_by, update=update)
        return
    translated = run_job(document_job(content, chosen, options, name=str(source)), translator.translate_aligned)
    with whole_file(out) as temporary:
        temporary.write_bytes(translated)
    say(f"Wrote {out}")


def _check_file(source: Path, out: Path, document_format: str | None, *, update: bool, columns: str | None) -> Format:
    """The format of a document. HeedError if it cannot be written to `out`, or an option is for others."""
    chosen = format_of(source) if document_format is None else check_format(document_format)
    named = SUFFIXES.get(source.suffix.lower(), chosen)
    if chosen == "text" and named != "text":
        say(f"{source}: as plain text its keys and markup are translated too; --format {named} keeps them.")
    if update and chosen not in UPDATED:
        raise HeedError(f"--update is for files of keys and texts ({', '.join(UPDATED)}), and this one is {chosen}.")
    if columns is not None and chosen != "table":
        raise HeedError(f"--columns is for tables (.csv, .tsv), and this one is {chosen}.")
    other = SUFFIXES.get(out.suffix.lower())
    if out.suffix and other != chosen and not {chosen, other}.isdisjoint(PACKAGES):
        raise HeedError(f"{out}: the output is {chosen}, but the suffix is {out.suffix}; choose another name.")
    check_target(out)
    if out.exists() and out.samefile(source):
        raise HeedError(f"{out}: is the document itself, which would be replaced; choose another name.")
    return chosen


def _translate_folder(
    source: Path,
    out: Path,
    translator: "Translator",
    options: "DocumentOptions",
    *,
    only: Sequence[str],
    made_by: str,
    update: bool,
) -> None:
    """Translates a folder and says what was done. Status 1 if a document could not be translated."""
    from heed.apps.documents.folders import REPORT, plan_folder, translate_folder

    files = plan_folder(source, out, only=only, languages=(options.language, options.target))
    n_documents = sum(file.format is not None for file in files)
    say(f"{source}: {n_documents:,} documents to translate, {len(files) - n_documents:,} other files to copy.")
    with progress("Translating", total=len(files), unit="files") as task:
        faults = translate_folder(
            files, out, translator.translate_aligned, options, made_by=made_by, update=update, done=task.advance
        )
    for fault in faults.values():
        say(fault)
    say(f"Wrote {out}: {len(files) - len(faults):,} files, {len(faults):,} could not be read; see {out / REPORT}.")
    if faults:
        raise typer.Exit(1)


def _read_glossary(path: Path | None) -> dict[str, str]:
    """The terms of a file, none without one. HeedError names the line of one that is none."""
    if path is None:
        return {}
    from heed.apps.documents.text.terms import read_terms

    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
        return read_terms(text, "csv" if path.suffix.lower() == ".csv" else "tsv")
    except (HeedError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise HeedError(f"--glossary {path}: {reason.rstrip('.')}.") from None


def check_format(name: str, *, known: Sequence[Format] = FORMATS) -> Format:
    """The format of this name. HeedError lists the formats that are known."""
    for one in known:
        if name == one:
            return one
    advice = "; heed translate-file translates such files" if name in FORMATS else ""
    raise HeedError(f"--format {name}: expected {', '.join(known)}{advice}.")


def read_document_from_standard_input() -> bytes:
    """All of it. HeedError if it is closed or too long."""
    if sys.stdin is None:
        raise HeedError("standard input is closed; give it a document, such as < FILE.")
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise HeedError(f"standard input: longer than {MAX_BYTES:,} bytes; split the document.")
    return content


def print_document(content: bytes, translator: "Translator", options: "DocumentOptions", *, format: str) -> None:
    """Prints the translation byte for byte, line ends included; to a terminal without hidden characters."""
    from heed.apps.documents.formats.jobs import document_job
    from heed.apps.documents.text.translation import run_job

    job = document_job(content, check_format(format), options, name="standard input")
    translated = run_job(job, translator.translate_aligned)
    if sys.stdout.isatty():
        translated = printable(translated.decode("utf-8"), kept=KEPT_IN_TEXT + "\r\n").encode("utf-8")
    sys.stdout.buffer.write(translated)
    sys.stdout.buffer.flush()
