"""Runs that are killed, stopped or damaged for real end with the same bytes, or with one clear line."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.commands import RunningCommand
from tests.end_to_end.test_command_line import RECIPE, assert_one_clear_line, write_corpus

LONGER = RECIPE.replace("max_steps = 24", "max_steps = 120").replace('"8 steps"', '"5 steps"')


@pytest.fixture(scope="module")
def straight(tmp_path_factory, heed) -> Path:
    """A folder with a corpus, its recipe and an uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight")
    write_corpus(folder)
    (folder / "small.toml").write_text(LONGER)
    done = heed("train", "small.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def begun(straight, tmp_path) -> Path:
    """The same corpus and recipe."""
    for name in ("small.toml", "train.en", "train.de", "dev.en", "dev.de.gz"):
        shutil.copy2(straight / name, tmp_path / name)
    return tmp_path


Start = Callable[..., RunningCommand]


@pytest.fixture
def start(commands) -> Start:
    """Starts a training in a folder, by default of its recipe."""

    def started(folder: Path, *words: object) -> RunningCommand:
        arguments = [*map(str, words or ("train", "small.toml"))]
        return commands.server(os.environ).start(arguments, cwd=folder, environment=os.environ)

    return started


def wait_for_step(process: RunningCommand, folder: Path, step: int) -> None:
    """Until a checkpoint of this step or a later one is there."""
    checkpoints = folder / "runs" / "small" / "checkpoints"

    def is_there() -> bool:
        return max((int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()), default=0) >= step

    wait_until(process, is_there)


def wait_until(process: RunningCommand, condition: Callable[[], object]) -> None:
    """Until it holds, or the process ends."""
    deadline = time.monotonic() + 600
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "not in ten minutes"
        time.sleep(0.005)


def until(step: int) -> list[str]:
    return ["--set", f"training.max_steps={step}"]


def model_bytes(folder: Path) -> bytes:
    return (folder / "runs" / "small" / "model" / "model.safetensors").read_bytes()


def losses(folder: Path) -> list[tuple[int, float]]:
    entries = map(json.loads, (folder / "runs" / "small" / "metrics.jsonl").read_text().splitlines())
    return [(entry["step"], entry["loss"]) for entry in entries if entry["kind"] in ("train", "validation")]


def test_a_run_that_is_killed_three_times_ends_with_the_same_bytes(straight, begun, heed, start):
    draw = random.Random(1)
    for i in range(3):  # the first falls into the preparation, the others anywhere between two checkpoints
        process = start(begun)
        if i == 0:
            wait_until(process, (begun / "runs" / "small" / "data").exists)
        else:
            wait_for_step(process, begun, 30 * i)
            time.sleep(draw.uniform(0, 0.2))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = heed("train", "small.toml", cwd=begun)
    assert done.returncode == 0 and "Resumed from step" in done.stderr, done.stderr
    assert model_bytes(begun) == model_bytes(straight)
    assert losses(begun) == losses(straight)
    assert not [path for path in (begun / "runs").rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in ((signal.SIGINT, 130), (signal.SIGHUP, 129))),
    ],
)
def test_a_signal_saves_and_stops_and_the_same_command_goes_on(straight, begun, heed, number, status, start):
    process = start(begun)
    wait_for_step(process, begun, 10)
    time.sleep(0.1)
    process.send_signal(number)
    _, told = process.communicate(timeout=300)
    assert process.returncode == status, told
    assert "its state is saved. The same command resumes." in told and "Traceback" not in told
    done = heed("train", "small.toml", cwd=begun)
    assert done.returncode == 0 and "Resumed from step" in done.stderr, done.stderr
    assert model_bytes(begun) == model_bytes(straight)
    assert losses(begun) == losses(straight)


def test_a_text_that_was_edited_between_two_runs_is_noticed(begun, heed):
    few = ["--set", "training.max_steps=5"]
    assert heed("train", "small.toml", *few, cwd=begun).returncode == 0
    text = (begun / "train.en").read_text()
    (begun / "train.en").write_text(text.replace("one", "won", 1))
    assert_one_clear_line(heed("train", "small.toml", *few, cwd=begun), "train.en: changed since this run prepared it")
    here = ["--run", begun / "runs" / "small", "--dir", begun]  # also by another name
    changed = heed("train", begun / "small.toml", *few, *here, cwd=begun.parent)
    assert_one_clear_line(changed, "train.en: changed since this run prepared it")


def test_a_text_that_was_edited_is_noticed_where_the_runs_data_were_deleted(begun, heed):
    few = ["--set", "training.max_steps=5"]
    assert heed("train", "small.toml", *few, cwd=begun).returncode == 0
    shutil.rmtree(begun / "runs" / "small" / "data")
    assert heed("train", "small.toml", *few, cwd=begun).returncode == 0
    shutil.rmtree(begun / "runs" / "small" / "data")
    (begun / "train.en").write_text((begun / "train.en").read_text().replace("one", "two", 1))
    changed = heed("train", "small.toml", *few, cwd=begun)
    assert changed.returncode == 1 and "the training text has changed since the run began" in changed.stderr


def test_a_run_goes_on_where_its_project_was_moved_to(straight, begun, heed):
    assert heed("train", "small.toml", "--set", "training.max_steps=5", cwd=begun).returncode == 0
    moved = begun.rename(begun.with_name("moved"))
    tests = f"data.tests.more=['{moved}/dev.en', '{moved}/dev.de.gz']"  # and a test set more
    done = heed("train", "small.toml", "--set", tests, cwd=moved)
    assert done.returncode == 0 and "Resumed from step 5" in done.stderr, done.stderr
    assert model_bytes(moved) == model_bytes(straight)
    (moved / "other.en").write_text((moved / "train.en").read_text().replace("one", "two", 1))
    other = heed("train", "small.toml", "--set", f"data.train=['other.en', '{moved}/train.de']", cwd=moved)
    assert_one_clear_line(other, "this run began with other settings: data.train was")


def test_damaged_ids_are_prepared_again_as_the_error_advises(straight, begun, heed):
    assert heed("train", "small.toml", "--set", "training.max_steps=5", cwd=begun).returncode == 0
    ids = begun / "runs" / "small" / "data" / "train" / "tgt.bin"
    content = bytearray(ids.read_bytes())
    content[len(content) // 2] ^= 1
    ids.write_bytes(content)
    assert_one_clear_line(heed("train", "small.toml", cwd=begun), "data/train: not a prepared corpus")
    shutil.rmtree(ids.parent)
    done = heed("train", "small.toml", cwd=begun)
    assert done.returncode == 0, done.stderr
    assert model_bytes(begun) == model_bytes(straight)


TWO = ("train", "small.toml", "--set", "training.micro_batch_tokens=500")  # two micro-batches a step


def children_of(process: RunningCommand) -> list[int]:
    def parent(pid: int) -> int:
        with contextlib.suppress(OSError):  # it has ended
            return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
        return 0

    return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == process.pid)


@pytest.fixture
def two_threads(monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("HEED_DEVICE", "cpu")


def is_running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


HITS = (
    (10, "the other", signal.SIGKILL, 1),
    (30, "the first", signal.SIGKILL, -signal.SIGKILL),
    (50, "the first", signal.SIGTERM, 143),
    (70, "both", signal.SIGINT, 130),  # as from a terminal
)


@pytest.mark.soak
def test_workers_of_a_cpu_end_together_and_go_on_with_the_same_bytes(begun, heed, two_threads, start):
    command = [*TWO, *until(HITS[-1][0] + 30)]
    assert heed(*command, cwd=begun).returncode == 0
    expected = model_bytes(begun), losses(begun)
    shutil.rmtree(begun / "runs")
    for step, hit, number, status in HITS:
        process = start(begun, *command)
        wait_for_step(process, begun, step)
        (other,) = children_of(process)
        for name, pid in (("the first", process.pid), ("the other", other)):
            if hit in (name, "both"):
                os.kill(pid, number)
        _, told = process.communicate(timeout=300)
        assert process.returncode == status and "Traceback" not in told, told
        if hit == "the other":
            assert told.splitlines()[-1] == "heed: a worker was ended by signal 9; the same command resumes."
        for _ in range(2400):
            if not is_running(other):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("a worker stayed behind")
    done = heed(*command, cwd=begun)
    assert done.returncode == 0 and "Resumed from step" in done.stderr, done.stderr
    assert (model_bytes(begun), losses(begun)) == expected


def test_a_run_whose_worker_hangs_still_hears_sigterm(begun, heed, two_threads, start):
    process = start(begun, *TWO)
    wait_for_step(process, begun, 10)
    (other,) = children_of(process)
    os.kill(other, signal.SIGSTOP)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 143 and "Traceback" not in told, told
    assert told.splitlines()[-1] == "A worker does not answer; the same command resumes from the last checkpoint."
    assert not is_running(other)


TAUGHT = (
    *TWO,
    *("--set", "training.n_teachers=2", "--set", "training.keep_checkpoints=20"),
    *("--set", "decoding.max_extra_tokens=5"),
)


STAGES = ("teachers/1/checkpoints/10", "teachers/2/checkpoints/10", "teachers/2/model", "teachers/translations-1.begun")


@pytest.mark.soak
@pytest.mark.parametrize(("n_teachers", "stages"), [(1, STAGES[-1:]), (2, (*STAGES, "checkpoints/10"))], ids=["1", "2"])
def test_a_run_with_teachers_that_is_killed_at_a_stage_ends_with_the_same_bytes(
    begun, heed, two_threads, start, n_teachers, stages
):
    command = [*TAUGHT, "--set", f"training.n_teachers={n_teachers}", *until(30)]
    done = heed(*command, cwd=begun)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    run = begun / "runs" / "small"
    translations = run / "teachers" / "translations-1"
    expected = model_bytes(begun), losses(begun), translations.read_bytes()
    shutil.rmtree(run)
    for stage in stages:
        process = start(begun, *command)
        wait_until(process, partial(lambda name: list(run.glob(name)), stage))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = heed(*command, cwd=begun)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert ("Resumed from step" in done.stderr) == ("checkpoints/10" in stages)
    assert (model_bytes(begun), losses(begun), translations.read_bytes()) == expected
    assert not [path for path in run.rglob("*") if path.name.endswith(".part")]


def test_a_text_that_was_edited_while_teachers_train_is_noticed(begun, heed, start):
    text = (begun / "train.en").read_text()
    wrong = ["--set", 'data.train=["trian.en", "train.de"]']
    assert_one_clear_line(heed(*TAUGHT, *wrong, cwd=begun), "trian.en: no such file")  # and may still be corrected
    process = start(begun, *TAUGHT, *until(30))
    wait_until(process, (begun / "runs" / "small" / "teachers" / "1" / "checkpoints" / "10").exists)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 143, told
    (begun / "train.en").write_text(text.replace("one", "won", 1))
    done = heed(*TAUGHT, *until(30), cwd=begun)
    assert_one_clear_line(done, "train.en: changed since this run prepared it")


def sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    links = []
    for path in Path("/proc", str(pid), "fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(path))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def seen_by_another_user(pids: list[int]) -> int:
    """How many of these processes' descriptors, memories and environments a user without rights can open."""
    child = os.fork()
    if child == 0:
        n_seen = 0
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for place in (Path("/proc", str(pid), name) for pid in pids for name in ("fd", "map_files", "mem", "environ")):
            with contextlib.suppress(PermissionError):
                _ = list(place.iterdir()) if place.name in ("fd", "map_files") else place.open("rb").close()
                n_seen += 1
        os._exit(n_seen)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_no_other_user_reaches_the_workers(begun, two_threads, start):
    """They have no port, no named socket and no file; what they share only their own user can open."""
    process = start(begun, *TWO)
    wait_for_step(process, begun, 10)
    try:
        (other,) = children_of(process)
        inodes = sockets_of(process.pid) | sockets_of(other)
        assert len(inodes) >= 2  # a pair
        for kind in ("tcp", "tcp6", "udp", "udp6", "raw"):
            table = Path("/proc/net", kind)
            lines = table.read_text().splitlines()[1:] if table.exists() else []
            assert not inodes & {line.split()[9] for line in lines}, kind
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            fields = line.split()
            assert fields[6] not in inodes or len(fields) == 7, line  # an eighth would be its name
        assert not any("/dev/shm/" in Path("/proc", str(pid), "maps").read_text() for pid in (process.pid, other))
        if os.geteuid() == 0:
            assert seen_by_another_user([process.pid, other]) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_user_who_says_how_many_workers_gets_them(straight, begun, heed, two_threads, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    done = heed(*TWO, "--set", "training.max_steps=10", cwd=begun)
    assert done.returncode == 0 and "workers" not in done.stderr, done.stderr


def test_a_number_of_workers_that_nobody_started_is_refused(begun, heed, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    told = heed("train", "small.toml", cwd=begun)
    assert_one_clear_line(told, "WORLD_SIZE is '4'", "start with torchrun, or unset WORLD_SIZE")
    monkeypatch.setenv("WORLD_SIZE", "1")
    told = heed("bench", "train", "--preset", "tiny", "--workers", 2)
    assert_one_clear_line(told, "--workers needs Linux, and neither WORLD_SIZE nor")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own that holds two checkpoints of the recipe."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_stops_the_run_and_the_last_checkpoint_stays(straight, begun, heed, small_disk, start):
    process = start(begun, "train", "small.toml", "--run", small_disk / "run")
    _, told = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in told, told
    assert told.splitlines()[-1].startswith("heed: ") and "No space left on device" in told.splitlines()[-1]
    assert not [path for path in small_disk.rglob("*") if path.name.endswith(".part")]
    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    done = heed("train", "small.toml", "--run", small_disk / "run", cwd=begun)
    assert done.returncode == 0 and "Resumed from step" in done.stderr, done.stderr
    assert (small_disk / "run" / "model" / "model.safetensors").read_bytes() == model_bytes(straight)


def test_a_read_only_run_folder_is_said(begun, heed, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = heed("train", "small.toml", "--run", small_disk / "run", cwd=begun)
    assert_one_clear_line(done, str(small_disk / "run"), "Read-only file system")
