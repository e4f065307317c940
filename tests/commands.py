"""The command line in processes that need not load PyTorch: forks of one process that has loaded it.

Loading its libraries takes a second and a half of a core, several times what most commands then compute, and the suite
runs hundreds of commands. A fork runs all of Heed's own code, from the first line of `python -m heed`, with its own
streams, folder, environment and exit status. It does not show what only a new process does: how libraries are loaded,
that strings hash otherwise in every process, and that the interpreter can be taken down. The tests that start a process
themselves, to stop, kill or install it, show that.
"""

import atexit
import gc
import json
import os
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
from pathlib import Path
from typing import NoReturn

TIMEOUT_SECONDS = 600
LIBRARIES = (
    *("typer", "rich.console", "rich.table", "pydantic.main", "pydantic.fields", "tomli_w", "numpy", "torch"),
    *("safetensors.torch", "tokenizers", "sacrebleu", "jaxtyping", "cffi.cparser"),
)
OPTIONAL_LIBRARIES = ("torch.utils.tensorboard",)
# Variables that are read whenever they are needed. Any other may have been read when a library was loaded.
READ_LATE = ("HEED_", "XDG_", "PATH", "CXX", "WORLD_SIZE", "PYTEST_CURRENT_TEST")


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
        self, arguments: Sequence[str], data: bytes, *, cwd: Path | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        running = self.start(arguments, data, cwd=cwd, environment=environment)
        try:
            stdout, stderr = running.communicate(TIMEOUT_SECONDS)
        except EOFError:
            self._process.kill()
            raise RuntimeError(self._process.communicate()[1].decode()) from None
        return subprocess.CompletedProcess(list(arguments), running.returncode, stdout, stderr)

    def start(
        self, arguments: Sequence[str], data: bytes = b"", *, cwd: Path | None, environment: Mapping[str, str]
    ) -> "RunningCommand":
        """Starts a command."""
        request = {"arguments": arguments, "cwd": str(cwd or os.getcwd()), "environment": dict(environment)}
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr), (status, to_status) = (
            os.pipe() for _ in range(4)
        )
        given = [stdin, stdout, stderr, to_status]
        socket.send_fds(self._requests, [json.dumps(request).encode()], given)
        for descriptor in given:
            os.close(descriptor)
        return RunningCommand(list(arguments), data, to_stdin, from_stdout, from_stderr, status)

    def close(self) -> None:
        """Ends the server and what hangs."""
        self._requests.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class RunningCommand:
    """A fork that runs a command, with what the tests use of a subprocess.Popen."""

    returncode: int | None = None

    def __init__(self, arguments: list[str], data: bytes, to_stdin: int, stdout: int, stderr: int, status: int):
        self.args, self._data, self._outputs = arguments, data, [b"", b""]
        self._status = os.fdopen(status, "r", encoding="ascii")
        first_line = self._status.readline()
        self.pid = int(first_line) if first_line else 0  # 0: the server has failed
        works = [(self._write, (to_stdin,)), (self._read, (0, stdout)), (self._read, (1, stderr))]
        self._threads = [threading.Thread(target=work, args=given, daemon=True) for work, given in works]
        for thread in self._threads:
            thread.start()

    def _write(self, descriptor: int) -> None:
        with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
            stream.write(self._data)

    def _read(self, place: int, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as stream:
            self._outputs[place] = stream.read()

    def poll(self) -> int | None:
        """The exit status, as subprocess has it; None while the command runs."""
        return self._wait(0)

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

    def communicate(self, timeout: float = TIMEOUT_SECONDS) -> tuple[str, str]:
        """Waits for the end; returns standard output and standard error, as UTF-8."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        for thread in self._threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        return self._outputs[0].decode("utf-8"), self._outputs[1].decode("utf-8")


def _serve(requests: socket.socket) -> list[str] | None:
    """Loads the libraries, then forks a process per request. Returns the command's arguments in the process to run it.

    None where there are no more requests.
    """
    for name in LIBRARIES:
        import_module(name)
    for name in OPTIONAL_LIBRARIES:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy their pages
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 2**20, 4)
        if not message:
            return None
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
    return request["arguments"]


def _run_heed(arguments: list[str]) -> NoReturn:
    """Runs `python -m heed` to its end, without taking down what the process shares with the others."""
    sys.argv[1:] = arguments
    status = 0
    try:
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
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        _run_heed(found)
