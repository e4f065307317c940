"""heed translate and heed parse between pipes: idle, signalled, cut off, closed, and given bytes that are no UTF-8."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.commands import RunningCommand
from tests.end_to_end.test_command_line import assert_one_clear_line

from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.parsing.trees import LinearisationSettings
from heed.text.tokenizer import TokenizerSettings, train_tokenizer

SYMBOLS = ["(NP", ")NP", "(S", ")S", "DT", "NN"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """By verb, a folder with a model that was never trained."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    arch = Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2)
    for verb, symbols in (("translate", ()), ("parse", SYMBOLS)):
        tokenizer = train_tokenizer(["seven dogs"] * 3, TokenizerSettings(vocab_size=600), symbols)
        parsing = LinearisationSettings().model_dump() if symbols else {}
        card = ModelCard("en", "de", parsing=parsing, decoding={"max_extra_tokens": 5})
        save_model(folder / verb, Transformer(arch, len(tokenizer)), tokenizer, card)
    return {verb: folder / verb for verb in ("translate", "parse")}


@pytest.fixture
def start(commands, models):
    """Starts a verb with its model."""
    server = commands.server(os.environ)
    return lambda verb, **options: server.start(
        [verb, str(models[verb]), "--precision", "fp32"], environment=os.environ, **options
    )


def ask(process: RunningCommand, line: str) -> str:
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()
    return process.stdout.readline().decode()


def processor_seconds(process: RunningCommand) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("verb", "number"), [("translate", signal.SIGTERM), ("parse", signal.SIGINT)])
def test_a_signal_ends_an_idle_process_whose_input_stays_open(start, verb, number):
    with start(verb) as process:
        assert ask(process, "seven").strip() and ask(process, "") == "\n"
        process.send_signal(number)
        errors = process.stderr.read().decode()
        assert process.wait(timeout=300) == 128 + number
    assert errors.startswith("heed: interrupted") and errors.count("\n") == 1


def test_waiting_takes_no_processor_time_and_answers_at_once(start):
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    with start("translate") as process:
        answer = ask(process, "seven")
        for _ in range(30):  # until what the answer leaves to do is done
            before = processor_seconds(process)
            time.sleep(1)
            if processor_seconds(process) - before < 0.025:
                break
        else:
            raise AssertionError("it is never idle")
        assert ask(process, "seven") == answer
        process.stdin.close()
        assert process.wait(timeout=300) == 0


def test_a_reader_that_has_gone_is_a_quiet_end(start):
    with start("parse") as process:
        ask(process, "seven")
        process.stdout.close()
        process.stdin.write(b"seven\n")
        process.stdin.flush()
        assert process.wait(timeout=300) == 0
        assert process.stderr.read() == b""


def test_messages_that_nobody_reads_are_lost_and_the_work_goes_on(start):
    with start("translate") as process:
        process.stderr.close()
        assert ask(process, "seven " * 600).strip()  # in pieces, which is reported
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 128 + signal.SIGTERM


def test_a_line_without_end_is_one_error_and_takes_no_memory(models):
    # A process of its own starts the command: a child's peak counts what its parent had, and that of tests is large.
    program = (
        "import resource, subprocess, sys; "
        "source = subprocess.Popen(['tr', '\\\\0', 'a'], stdin=open('/dev/zero', 'rb'), stdout=subprocess.PIPE); "
        "status = subprocess.run(sys.argv[1:], stdin=source.stdout).returncode; source.kill(); source.wait(); "
        "print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "heed", "translate", str(models["translate"]), "--precision", "fp32"]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=300)
    status, peak = map(int, done.stdout.split())
    assert status == 1 and peak < 900 * 1024  # KiB; torch alone takes 250 MiB
    expected = "heed: standard input, line 1: longer than 1,048,576 bytes; expected text, a sentence a line.\n"
    assert done.stderr == expected


def test_the_lines_before_one_that_is_too_long_are_translated(models, heed):
    done = heed(
        "translate", models["translate"], "--precision", "fp32", stdin="seven\n" + "x" * 2**20 + "y\n" + "dogs\n"
    )
    assert_one_clear_line(done, "standard input, line 2: longer than")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        ("<&-", 1, "heed: standard input is closed"),
        (">&-", 1, "heed: standard output is closed"),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
        (">/dev/full", 1, "heed: output: No space left on device."),
        ("2>/dev/full", 0, ""),
        ("0>/dev/null", 1, "heed: standard input: cannot be read (Bad file descriptor)."),
    ],
)
def test_standard_streams_that_are_closed_or_full_end_in_one_line_at_most(models, redirection, status, message):
    command = f"echo seven | {sys.executable} -m heed translate {models['translate']} --precision fp32 {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == status
    assert done.stderr.startswith(message) and done.stderr.count("\n") == bool(message)
    assert (done.stdout.count("\n") == 1) == (status == 0)


def test_closed_streams_are_not_reused_for_files(models, tmp_path):
    """With 0 to 2 closed the next file that is opened would become one of them, and be written to."""
    opening = "from heed.apps.cli.process import _open_standard_streams as f; f(); print(open('/dev/null').fileno())"
    for what, is_right in (
        (f'-c "{opening}"', lambda told: int(told) > 2),
        (f"-m heed info {models['translate']}", lambda told: "parameters" in told),
    ):
        command = f"exec 0<&- 2>&-; {sys.executable} {what} > {tmp_path / 'out'}"
        assert subprocess.run(["bash", "-c", command], timeout=300).returncode == 0
        assert is_right((tmp_path / "out").read_text())


def test_every_verb_refuses_a_closed_output_at_once(tmp_path):
    for verb in ("train x.toml", "--help"):
        command = f"{sys.executable} -m heed {verb} >&-"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 1 and done.stderr.startswith("heed: standard output is closed")


def test_hidden_characters_are_data_for_a_program_and_are_shown_to_a_person(start):
    sentence = "seven\x1b[2J \u202edogs me\u200cme\n".encode()
    with start("parse") as process:
        raw, _ = process.communicate(sentence)
        assert "\x1b[2J" in raw and "\u202e" in raw
    ours, theirs = pty.openpty()
    with start("parse", stdout=theirs) as process:
        os.close(theirs)
        process.communicate(sentence)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    assert "\x1b" not in shown and "\u202e" not in shown
    assert r"seven\x1b[2J" in shown and r"\u202edogs" in shown and "me\u200cme" in shown
