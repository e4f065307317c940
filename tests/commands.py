"""The command line in processes that need not load PyTorch or Heed: forks of one process that has loaded them.

Loading the libraries takes a second and a half of a core, and Heed's own modules up to half a second, several times
what most commands then compute; the suite runs hundreds of commands, most of them in one environment. A fork runs
`python -m heed` from its first line, with its own streams, folder, environment and exit status. It does not show what
only a new process does: how modules are loaded, that strings hash otherwise in every process, and that the interpreter
can be taken down. The tests that start a process themselves, to install or measure it, or to close its streams, show
that; that no modules import each other in a circle, so that every verb may be the first to load them, import-linter
shows.
"""

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import BufferedReader
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

TIMEOUT_SECONDS = 600
LIBRARIES = (
    *("typer", "rich.console", "rich.table", "pydantic.main", "pydantic.fields", "tomli_w", "numpy", "torch"),
    *("safetensors.torch", "tokenizers", "sacrebleu", "jaxtyping", "cffi.cparser"),
)
OPTIONAL_LIBRARIES = ("torch.utils.tensorboard",)
LOADED_LATE = ("heed.__main__", "heed.backends.gpu")  # what runs, and what needs a GPU's libraries
FEW_COMMANDS = 4  # load Heed's modules themselves: loading all takes as long as four of them
# Variables that are read whenever they are needed. Any other may have been read when a library was loaded.
READ_LATE = (
    "HEED_",
    "XDG_",
    "PATH",
    "CXX",
    "WORLD_SIZE",
    "PYTEST_CURRENT_TEST",
    "TMPDIR",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
)


class Commands:
    """Runs `python -m heed` in forks, by a server for each environment in which the libraries load in their own way."""

    def __init__(self) -> None:
        self._servers: dict[frozenset[tuple[str, str]], CommandServer] = {}

    def server(self, environment: Mapping[str, str]) -> "CommandServer":
        """The server whose forks are as new processes in this environment."""
        read_early = frozenset(
            (name, value) for name, value in environment.items() if name == "HEED_ISA" or not name.startswith(READ_LATE)
        )
        if read_early not in self._servers:
            self._servers[read_early] = CommandServer(environment)
        return self._servers[read_early]

    def close(self) -> None:
        """Ends all servers and what hangs."""
        for server in self._servers.values():
            server.close()


class CommandServer:
    """Runs `python -m heed` in forks of a process that has loaded the libraries."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            # Torch reads its limits when it is loaded, and only the forks run what sets them.
            from heed.runtime.instruction_sets import processor_features, sets_of

            limits = {each.name: dict(each.limits) for each in sets_of(processor_features())}
            environment = limits.get(environment.get("HEED_ISA", ""), {}) | dict(environment)
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], start_new_session=True, env=environment, **pipes
            )

    def run(
        self, arguments: Sequence[str], data: bytes, *, cwd: Path | None, environment: Mapping[str, str], code: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        running = self.start(arguments, cwd=cwd, environment=environment, code=code)
        try:
            stdout, stderr = running.communicate(data)
        except EOFError:
            self._process.kill()
            raise RuntimeError(self._process.communicate()[1].decode()) from None
        return subprocess.CompletedProcess(list(arguments), running.returncode, stdout, stderr)

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str],
        code: str = "",
        stdout: int = -1,
    ) -> "RunningCommand":
        """Starts a command. code: what runs instead of Heed, as by `python -c`; stdout: instead of a pipe."""
        request = {"arguments": arguments, "code": code, "environment": dict(environment)}
        request["cwd"] = str(cwd or os.getcwd())
        (stdin, to_stdin), (from_stderr, stderr), (status, to_status) = (os.pipe() for _ in range(3))
        from_stdout, stdout = os.pipe() if stdout < 0 else (os.open(os.devnull, os.O_RDONLY), os.dup(stdout))
        given = [stdin, stdout, stderr, to_status]
        socket.send_fds(self._requests, [json.dumps(request).encode()], given)
        for descriptor in given:
            os.close(descriptor)
        return RunningCommand(list(arguments), to_stdin, from_stdout, from_stderr, status)

    def close(self) -> None:
        """Ends the server and what hangs."""
        self._requests.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class RunningCommand:
    """A fork that runs a command, with what the tests use of a subprocess.Popen; its streams are of bytes."""

    returncode: int | None = None

    def __init__(self, arguments: list[str], stdin: int, stdout: int, stderr: int, status: int):
        self.args = arguments
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")
        self._status = os.fdopen(status, "r", encoding="ascii")
        first_line = self._status.readline()
        self.pid = int(first_line) if first_line else 0  # 0: the server has failed

    def __enter__(self) -> "RunningCommand":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            with suppress(BrokenPipeError):
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit status, as subprocess has it; None while the command runs."""
        return self._wait(0)

    def wait(self, timeout: float = TIMEOUT_SECONDS) -> int:
        """The exit status, when the command has ended."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def _wait(self, seconds: float) -> int | None:
        if self.returncode is None and not self._status.closed and select.select([self._status], [], [], seconds)[0]:
            with self._status:
                line = self._status.readline()
            if not line:
                raise EOFError("the server has ended")
            self.returncode = int(line)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the command alone. Nothing happens if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, data: bytes = b"", timeout: float = TIMEOUT_SECONDS) -> tuple[str, str]:
        """Sends `data`, waits for the end; returns standard output and standard error, as UTF-8."""
        read: dict[BufferedReader, bytes] = {}

        def write() -> None:
            with suppress(BrokenPipeError), self.stdin:
                self.stdin.write(data)

        def read_all(stream: BufferedReader) -> None:
            with stream:
                read[stream] = stream.read()

        works = [Thread(target=write, daemon=True)]
        works += [Thread(target=read_all, args=[stream], daemon=True) for stream in (self.stdout, self.stderr)]
        for work in works:
            work.start()
        self.wait(timeout)
        for work in works:
            work.join(timeout)
            if work.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        return read[self.stdout].decode("utf-8"), read[self.stderr].decode("utf-8")


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Loads the libraries, then forks a process per request. Returns the request in the process that is to run it.

    None where there are no more requests.
    """
    for name in LIBRARIES:
        import_module(name)
    for name in OPTIONAL_LIBRARIES:
        with suppress(ImportError):
            import_module(name)
    for number in count():
        message, descriptors, _, _ = socket.recv_fds(requests, 2**20, 4)
        if not message:
            return None
        if number == FEW_COMMANDS:
            for module in pkgutil.walk_packages(import_module("heed").__path__, "heed."):
                if not module.name.startswith(LOADED_LATE):
                    import_module(module.name)
        gc.collect()
        gc.freeze()  # a collection in a fork would copy their pages
        assert threading.active_count() == 1  # a fork would lack the other threads
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):  # those that have waited for a command
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    requests.close()
    *streams, status = descriptors
    if child := os.fork():
        for descriptor in (0, 1, 2, *streams):
            os.close(descriptor)
        os.write(status, f"{child}\n".encode())
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(status, f"{ended}\n".encode())
        os._exit(0)
    os.close(status)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request = json.loads(message)
    tempfile.tempdir = None  # found anew
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[0] = os.getcwd()  # as python -m
    return request


def _run(request: dict[str, Any]) -> NoReturn:
    """Runs `python -m heed`, or code, to its end, without taking down what the process shares with the others."""
    sys.argv[1:] = request["arguments"]
    status = 0
    try:
        if request["code"]:
            exec(request["code"], {"__name__": "__main__"})
        else:
            runpy.run_module("heed", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        status = end.code
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # the interpreter would write to every object of every library, and so copy all their pages


if __name__ == "__main__":
    to_run = _serve(socket.socket(fileno=int(sys.argv[1])))
    if to_run is not None:
        _run(to_run)
