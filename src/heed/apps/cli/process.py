"""The command as a process: its streams, its signals, and in one line why it ends."""

import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import typer

from heed.apps.cli.guesses import option_meant, refuse_misplaced_files, verb_meant
from heed.apps.cli.progress_bar import StandardErrorProgress
from heed.apps.cli.terminal import drop, message, say
from heed.errors import HeedError, Stopped, is_out_of_memory
from heed.runtime.process_tuning import VARIABLES, import_torch, tune_process
from heed.runtime.progress import displayed_on
from heed.runtime.signals import end_signals
from heed.text.printable import printable

COMPLETION = "_HEED_COMPLETE"  # set by what --install-completion gives the shell


class Interrupted(BaseException):
    """A signal; not a KeyboardInterrupt, which typer would turn into the single word "Aborted!"."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = number


def _interrupt(number: int, _: object) -> None:
    raise Interrupted(number)


def run_and_exit(app: typer.Typer) -> None:
    """Runs the verb of the command line. Its faults are one line: a user's status 1, a bug of Heed's 70."""
    if COMPLETION in os.environ:  # a shell asks how a word may go on
        app(prog_name="heed")
    _open_standard_streams()
    _on_signals(_interrupt)
    _say_misspelled_variables()
    status = 0
    try:
        try:
            tune_process()
            status = _run(app, sys.argv[1:])
        except (Interrupted, SystemExit):
            raise
        except BaseException as error:  # a panic of the tokenizers library is not an Exception
            status = _report(error)
        sys.stdout.flush()
    except Interrupted as stop:
        _on_signals(signal.SIG_IGN)
        drop(sys.stdout)  # whose reader may be stuck
        say("heed: interrupted.")
        status = 128 + stop.signal
    except OSError as error:
        drop(sys.stdout)
        status = status or _report(error)
    _on_signals(signal.SIG_IGN)  # all that is left is to end
    sys.exit(status)


def _say_misspelled_variables() -> None:
    for name in os.environ:
        if name.startswith("HEED_") and name not in VARIABLES and (near := get_close_matches(name, VARIABLES, 1, 0.85)):
            say(f"heed: the environment's {printable(name)} has no effect; did you mean {near[0]}?")


def _on_signals(handler: Any) -> None:
    for number in end_signals():
        signal.signal(number, handler)


def _open_standard_streams() -> None:
    """Sets how they encode. Those that are closed lead nowhere, else the next file that is opened would be one of them.

    Nothing could be printed to a closed standard output, so that Heed ends. Verbs that read find sys.stdin None.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    for descriptor in (number for number, stream in enumerate(streams) if stream is None):
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, descriptor)
        if opened != descriptor:
            os.close(opened)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if sys.stdout is None:
        say("heed: standard output is closed; give it somewhere to go, such as > FILE.")
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")  # type: ignore[union-attr]


def import_torch_if_needed(device: str | None) -> None:
    """Imports torch, faster than a plain import, where a search may run on another device than the CPU."""
    from heed.runtime.device import may_need_torch

    if may_need_torch(device):
        import_torch()


FILES = {"--src", "--tgt", "--hyp", "--ref", "--train", "--out", "--run", "--folder", "--html", "--params"}


class Verb(typer.core.TyperCommand):
    """A verb that refuses a file or folder given twice, of which only the last would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, extra, given = self.make_parser(ctx).parse_args(args=list(args))
        if not ctx.resilient_parsing:  # as when a shell completes the line
            arguments = [values[each.name] for each in self.params if each.param_type_name == "argument"]
            lists = (each if isinstance(each, Sequence) and not isinstance(each, str) else [each] for each in arguments)
            refuse_misplaced_files(self.name or "", [each for part in lists for each in part if each] + list(extra))
        for parameter, times in Counter(given).items():
            if times > 1 and not getattr(parameter, "multiple", True) and FILES & set(parameter.opts):
                raise HeedError(f"{parameter.opts[0]} is given {times} times, and only one counts; leave out the rest.")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Begins with the example."""
        formatter.write(f"{self.epilog}\n\n" if self.epilog else "")  # in one line, to be copied
        super().format_help(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes nothing: the example stands at the top."""


class VerbGroup(typer.core.TyperGroup):
    """Verbs whose help gives the whole first sentence of each."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Names the verb that was meant by another one's name."""
        verbs, group = self.list_commands(ctx), "" if ctx.parent is None else f"{ctx.info_name} "
        if args[0] not in verbs and (meant := verb_meant(args[0], group, verbs)):
            ctx.fail(f"No such command {args[0]!r}; {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(command)) for name, command in self.commands.items()])


def verb_group(help: str) -> typer.Typer:
    return typer.Typer(cls=VerbGroup, help=help, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def first_sentence(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


# click's; typer may have its own copy of click, which has no public name for it.
UsageError: Any = typer.BadParameter.__mro__[1]


def _run(app: typer.Typer, arguments: list[str]) -> int:
    """Runs the verb; returns the exit status of help and of a wrong command line."""
    # Not app(): it prints what it finds wrong as it is, and takes a closed pipe for a failure.
    command = typer.main.get_command(app)
    try:
        with displayed_on(StandardErrorProgress()), command.make_context("heed", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except UsageError as error:
        if error.ctx is None or error.message != error.ctx.get_help():  # without a verb the help is the message
            error.message = printable(error.message)
        verb = error.ctx.command if error.ctx is not None else None
        if verb is not None and (option := getattr(error, "option_name", None)):
            # Of -src, as OpenNMT has it, the parser names -s.
            word = next((each for each in arguments if each[:2] == option and each[2:]), option)
            meant = option_meant(word, verb)
            error.message = error.message.replace(option, printable(word)) + f"; {meant}" * bool(meant)
        error.possibilities = []  # click's: options that merely look alike
        with suppress(OSError):
            error.show(sys.stderr)
        if isinstance(verb, Verb) and verb.epilog:
            message(f"{verb.epilog}\n")
        return int(error.exit_code)
    return 0


def _report(error: BaseException) -> int:
    """Says in one line why Heed ends; returns the exit status."""
    first_line = str(error).partition("\n")[0]
    if isinstance(error, BrokenPipeError):
        return 0  # the reader has had enough, as `head` does
    if isinstance(error, Stopped):
        return 128 + error.signal
    if isinstance(error, HeedError):
        say(f"heed: {error}")
    elif is_out_of_memory(error):
        say(f"heed: not enough memory ({first_line or 'MemoryError'}); take a smaller batch, beam or model.")
    elif isinstance(error, ModuleNotFoundError) and error.name in ("torch", "jaxtyping"):
        say("heed: this needs PyTorch, which is not installed: pip install 'heed-mt[train]'.")
    elif isinstance(error, RecursionError):
        say(f"heed: the input is nested too deeply ({first_line}).")
    elif isinstance(error, OSError) and error.strerror:
        say(f"heed: {error.filename or 'output'}: {error.strerror}.")
    else:
        say(
            f"heed: internal error: {type(error).__name__}: {first_line}; this is a bug of Heed's: report it to the "
            "issue tracker with the traceback that HEED_DEBUG=1 shows."
        )
        if os.environ.get("HEED_DEBUG", "0") not in ("", "0"):
            for line in "".join(traceback.format_exception(error)).splitlines():
                say(line)
        return 70  # EX_SOFTWARE of sysexits.h
    return 1
