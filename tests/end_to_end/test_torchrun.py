"""Workers that torchrun starts, by one process of its own or by two, as on two machines: killed, they resume at once.

HEED_KILLS: how often each of them is killed, instead of once.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.end_to_end.test_command_line import RECIPE, write_corpus
from tests.end_to_end.test_nothing_is_lost import TAUGHT, TWO, children_of, losses, model_bytes, until, wait_for_step

ENDED_SECONDS = 400  # torchrun's agents wait up to 300 s for each other at the end
N_KILLS = int(os.environ.get("HEED_KILLS", "1"))
STEPS = 60
EXACT = ("model.dropout=0.0", "training.precision=fp32")
OPTIONS = [*TWO[2:], *until(STEPS)]


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HEED_DEVICE", "cpu")
    # torchrun's own switch, without which no new process of it can join in the place of one that was killed.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


@pytest.fixture
def work(tmp_path) -> Path:
    """A folder with a corpus and its recipe."""
    write_corpus(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE.replace('"8 steps"', '"10 steps"'))
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, heed) -> tuple[bytes, list[tuple[int, float]]]:
    """The weights and losses of a run by two workers that Heed itself has started."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    folder = tmp_path_factory.mktemp("undisturbed")
    write_corpus(folder)
    (folder / "small.toml").write_text(RECIPE.replace('"8 steps"', '"10 steps"'))
    done = heed(*TWO, *until(STEPS), cwd=folder, env={"OMP_NUM_THREADS": "2", "HEED_DEVICE": "cpu"})
    assert done.returncode == 0 and "by 2 workers with 1 thread," in done.stderr, done.stderr
    return model_bytes(folder), losses(folder)


def torchrun(work: Path, log: Path, *words: object) -> subprocess.Popen:
    """Starts it; what it and its workers tell goes to the log."""
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    train = ["-m", "heed", "train", "small.toml", "--run-folder", "runs/small"]
    with log.open("ab") as out:
        return subprocess.Popen(
            [*map(str, command), *train, *OPTIONS], cwd=work, stdout=out, stderr=out, start_new_session=True
        )


class TwoMachines:
    """torchrun's processes, one of which hosts the rendezvous, with a worker each."""

    def __init__(self, work: Path, *folders: Path, max_restarts: int = 1):
        self.work, self.folders, self.max_restarts = work, folders or (work, work), max_restarts
        self.begin()

    def begin(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.agents = [self.agent(0), self.agent(1)]

    def agent(self, number: int) -> subprocess.Popen:
        rendezvous = f"is_host={int(number == 0)},keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=1"
        words = "--nnodes 2 --nproc-per-node 1 --max-restarts 1 --rdzv-backend c10d --rdzv-id job".split()
        words += ["--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-conf", rendezvous]
        return torchrun(self.folders[number], self.work / "log", *words)

    def replace(self, number: int) -> None:
        self.agents[number].wait()
        self.agents[number] = self.agent(number)

    def end(self) -> list[int]:
        """The exit status of each."""
        try:
            return [agent.wait(timeout=ENDED_SECONDS) for agent in self.agents]
        except subprocess.TimeoutExpired:
            raise AssertionError(self.told()) from None
        finally:
            for agent in self.agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()

    def told(self) -> str:
        """What all have said."""
        return (self.work / "log").read_text()


def kill_soon(pids: list[int]) -> None:
    """At a random moment between two checkpoints."""
    time.sleep(random.uniform(0, 0.1))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def assert_undisturbed(work: Path, undisturbed, told: str) -> None:
    assert told.count("Resumed from step") == 1, told
    assert "internal error" not in told
    assert (model_bytes(work), losses(work)) == undisturbed


@pytest.mark.soak
def test_two_workers_train_as_heeds_own_two_and_as_one(work, heed, undisturbed):
    process = torchrun(work, work / "log", "--standalone", "--nproc-per-node", 2)
    assert process.wait(timeout=300) == 0, (work / "log").read_text()
    assert (model_bytes(work), losses(work)) == undisturbed
    exact = [word for change in EXACT for word in ("--set", change)]
    rates = []
    for n_threads in ("1", "2"):
        run = f"runs/{n_threads}"
        done = heed(*TWO, *until(STEPS), *exact, "--run", run, cwd=work, env={"OMP_NUM_THREADS": n_threads})
        assert done.returncode == 0, done.stderr
        shutil.rmtree(work / "runs" / "small")
        (work / run).rename(work / "runs" / "small")
        rates.append(losses(work))
    for (step, one), (same_step, two) in zip(*rates, strict=True):
        assert step == same_step and two == pytest.approx(one, rel=1e-3)


@pytest.mark.parametrize("repetition", range(N_KILLS))
def test_a_killed_worker_is_resumed_from_at_the_first_restart(work, undisturbed, repetition):
    process = torchrun(work, work / "log", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    wait_for_step(process, work, 20)
    kill_soon([children_of(process)[repetition % 2]])
    assert process.wait(timeout=300) == 0, (work / "log").read_text()
    assert_undisturbed(work, undisturbed, (work / "log").read_text())


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["a worker", "an agent, whose own worker ends too", "both agents"])
@pytest.mark.parametrize("repetition", range(N_KILLS))
def test_on_two_machines_a_run_resumes_once_whatever_is_killed(work, undisturbed, repetition, killed):
    machines = TwoMachines(work)
    wait_for_step(machines.agents[0], work, 20)
    if killed == "a worker":  # the agents restart both
        kill_soon(children_of(machines.agents[repetition % 2]))
    elif killed == "both agents":
        kill_soon([agent.pid for agent in machines.agents])
        for agent in machines.agents:
            agent.wait()
        machines.begin()
    else:
        kill_soon([machines.agents[1].pid])
        machines.replace(1)
    assert machines.end() == [0, 0], machines.told()
    assert_undisturbed(work, undisturbed, machines.told())


@pytest.mark.soak
def test_a_machine_that_does_not_see_the_run_folder_is_refused(work, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(work, other, dirs_exist_ok=True)
    machines = TwoMachines(work, work, other, max_restarts=0)
    assert 0 not in machines.end()
    lines = [line for line in machines.told().splitlines() if line.startswith("heed: ")]
    assert any(f"heed: {other}/runs/small: on this machine" in line and line.endswith("same path.") for line in lines)
    assert not (work / "runs" / "small" / "data").exists() and "Traceback" not in "".join(lines)
    assert not list((work / "runs" / "small").glob("*.part"))


@pytest.mark.soak
def test_teachers_are_those_of_heeds_own_workers(work, heed):
    few = [*TAUGHT, *until(10)]
    assert heed(*few, cwd=work, env={"OMP_NUM_THREADS": "2"}).returncode == 0
    run = work / "runs" / "small"
    expected = model_bytes(work), (run / "teachers" / "translations-1").read_bytes()
    shutil.rmtree(run)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "heed"]
    done = subprocess.run([*command, *few], cwd=work, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (model_bytes(work), (run / "teachers" / "translations-1").read_bytes()) == expected
