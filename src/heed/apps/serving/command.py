"""heed serve: a translation server."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.apps.cli.options import Device, PrecisionOption, decoding_precision
from heed.apps.cli.process import import_torch_if_needed
from heed.apps.cli.terminal import say
from heed.errors import HeedError
from heed.runtime.process_tuning import forget_shapes, share_freed_memory

if TYPE_CHECKING:
    from heed.apps.serving.service import Service
    from heed.decoding.translator import Translator

_ORIGIN = r"https?://[^\s/?#@*]+|[a-z]+(?:-web)?-extension://(?:\*|[^\s/?#@*]+)"
MAX_SHOWN = 12  # pairs of languages
LANGUAGE_HINT = "--pair en-de=MODEL names them"


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help="Model folders, one for each pair of languages, or of many."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any free one.")] = 5000,
    precision: PrecisionOption = "auto",
    device: Device = None,
    max_chars: Annotated[int, typer.Option(min=1, help="Maximum number of characters in a request.")] = 10_000,
    max_texts: Annotated[int, typer.Option(min=1, help="Maximum number of texts in a request.")] = 128,
    max_alternatives: Annotated[
        int, typer.Option(min=0, help="Maximum number of alternatives that a request may ask for.")
    ] = 4,
    queue: Annotated[int, typer.Option(min=2, help="Maximum number of sentences waiting for a model.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Maximum number of seconds that a request may take.")] = 60.0,
    api_keys: Annotated[
        Path | None, typer.Option(help="File with the SHA-256 of each client's key, in hexadecimal, one per line.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC-TGT=MODEL", help="A model folder and the codes of its languages; repeatable."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="An origin whose pages may use this server, or * for any; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A name, besides localhost, under which clients may address this server; repeatable."
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="A proxy, or a network of them, whose X-Forwarded headers count; repeatable."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path under which a proxy shows this server, such as /heed.")
    ] = "",
    glossaries: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File that keeps the glossaries of DeepL's clients. Default: only memory."),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not serve the page at /.")] = False,
    no_metrics: Annotated[bool, typer.Option("--no-metrics", help="Do not serve /metrics.")] = False,
) -> None:
    """Serve translations over HTTP, to clients of LibreTranslate and DeepL and as a stream.

    Prints its address once it is listening. On SIGTERM or SIGHUP it finishes the requests that it has accepted, and
    exits.
    """
    _check_packages()
    folders = _folders_by_pair(models or [], pair or [])
    forget_shapes()
    import_torch_if_needed(device)
    from heed.apps.serving.doors import LOOPBACK, AccessPolicy, host_name, is_loopback, network
    from heed.apps.serving.doors import root_path as checked_root_path
    from heed.apps.serving.engine import Engine
    from heed.apps.serving.glossaries import GlossaryStore
    from heed.apps.serving.metrics import Metrics
    from heed.apps.serving.server import address_of, bind, run
    from heed.apps.serving.service import ApiKeys, Limits, Service
    from heed.decoding.translator import Translator

    keys = None if api_keys is None else ApiKeys.read(api_keys)
    limits = Limits(
        max_chars=max_chars,
        max_texts=max_texts,
        max_alternatives=max_alternatives,
        queue=queue,
        timeout_seconds=timeout,
    )
    store = GlossaryStore(glossaries)
    origins = frozenset(map(_check_origin, cors or []))
    names = frozenset(map(host_name, allow_host or []))
    proxies = (*LOOPBACK, *map(network, trusted_proxy or []))
    prefix = checked_root_path(root_path)
    with bind(host, port) as listener:  # before models are loaded, which takes seconds
        is_private = is_loopback(listener.getsockname()[0])
        doors = AccessPolicy(names if is_private or names else None, origins, proxies, prefix)
        share_freed_memory()
        metrics = Metrics()
        engines: dict[tuple[str, str], Engine] = {}
        named = {_named_pair(text)[0] for text in pair or []}
        for languages, folder in folders.items():
            translator = Translator.load(folder, device=device, precision=decoding_precision(precision), report=say)
            engine = Engine(translator, max_waiting=queue, metrics=metrics)
            pairs = _pairs(translator, folder, languages if languages in named else None)
            engines = {**dict.fromkeys(pairs, engine), **engines} if len(pairs) > 1 else engines | {pairs[0]: engine}
        service = Service(
            engines,
            limits,
            keys,
            metrics,
            show_metrics=not no_metrics,
            show_page=not no_page,
            doors=doors,
            glossaries=store,
        )
        if doors.hosts is None:
            say("Requests are answered whatever their Host header names; --allow-host NAME restricts it.")
        listener.listen()
        say(f"Serving {_shown(service)} at {address_of(listener)}.")
        run(service, listener, say)


def _check_packages() -> None:
    """HeedError unless the server's packages are there: an installation may have left some out."""
    from importlib.util import find_spec

    server = ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client")
    for name in (*server, "sentencex", "py3langid", "markdown_it"):
        if find_spec(name) is None:
            raise HeedError(f"heed serve needs {name}, which is not installed: pip install heed-mt.")


def _folders_by_pair(models: list[Path], pairs: list[str]) -> dict[tuple[str, str], Path]:
    """The model folder of each language pair. HeedError if one is not known, or if two folders have the same."""
    from heed.model_folder import UNKNOWN_LANGUAGES, read_config

    named = [_named_pair(text) for text in pairs]
    for folder in models:
        card = read_config(folder).card
        if not card.src or not card.tgt or (card.src, card.tgt) == UNKNOWN_LANGUAGES:
            raise HeedError(f"{folder}: does not say its languages; {LANGUAGE_HINT}.")
        named.append(((card.src, card.tgt), folder))
    folders: dict[tuple[str, str], Path] = {}
    for languages, folder in named:
        if languages in folders:
            raise HeedError(f"{folders[languages]} and {folder} both translate {'-'.join(languages)}; {LANGUAGE_HINT}.")
        folders[languages] = folder
    if not folders:
        raise HeedError("no model; expected: heed serve MODEL...")
    return folders


def _check_origin(origin: str) -> str:
    """The origin as browsers send it. HeedError for anything else, which would never match."""
    if origin != "*" and not re.fullmatch(_ORIGIN, origin, re.IGNORECASE):
        raise HeedError(
            f"--cors {origin}: expected an origin such as https://example.org without a path, chrome-extension://ID, "
            "moz-extension://*, or *."
        )
    return origin.lower()


def _named_pair(text: str) -> tuple[tuple[str, str], Path]:
    languages, equals, folder = text.partition("=")
    src, dash, tgt = languages.partition("-")
    if not (equals and dash and src and tgt and folder):
        raise HeedError(f"--pair {text}: expected SRC-TGT=MODEL, such as en-de=runs/demo/model.")
    if "-" in tgt:
        raise HeedError(f"--pair {text}: more than one hyphen; language codes here have none: write zh, not zh-Hans.")
    return (src.lower(), tgt.lower()), Path(folder)


def _pairs(translator: "Translator", folder: Path, named: tuple[str, str] | None) -> list[tuple[str, str]]:
    """The pairs that a model is to translate: the one that is named, or all that it can. HeedError for a parser."""
    if translator.tokenizer.symbols:
        raise HeedError(f"{folder}: a parser; heed serve takes models that translate.")
    if named is None:
        return translator.pairs
    return [named if translator.direction.of_several is None else translator.between(*named).languages]


def _shown(service: "Service") -> str:
    """What a server translates, in a few words."""
    if len(service.engines) > MAX_SHOWN:
        return f"{len(service.engines):,} pairs of {len(service.codes)} languages"
    return ", ".join(f"{src}-{tgt}" for src, tgt in service.engines)
