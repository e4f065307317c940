"""A run's log survives whatever became of its file."""

import json
import math
import os
import resource
import subprocess
import sys
import time
from contextlib import closing

import pytest

from heed.data.reading.lines import MAX_LINE_BYTES
from heed.errors import HeedError
from heed.training.logbook import Logbook, read_entries, short


def silent(line: str) -> None:
    """Says nothing."""


def entry(step: int, kind: str = "train", **numbers: object) -> bytes:
    return json.dumps({"kind": kind, "step": step, **numbers}).encode() + b"\n"


def test_damaged_lines_are_dropped_and_all_entries_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = [entry(1, loss=float("nan")), entry(2, name="a\u2028b"), entry(3, kind="test")]
    bad = [
        b"\x00\xff\xfe\n",
        b'{"kind": "train", "step": 1e400}\n',
        b'{"kind": "train", "step": true}\n',
        b'{"kind": "train", "step": ' + b"1" * 100_000 + b"}\n",
        b'{"kind": "train", "step": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b"[1]\n",
        b'{"kind": "fault"}\n',
        b"\n",
        entry(1, x="x" * 2 * MAX_LINE_BYTES),
        b" " * MAX_LINE_BYTES + entry(1),
        entry(9),  # past the checkpoint
        b'{"kind": "train", "st',
    ]
    path.write_bytes(
        b"".join(line for pair in zip(bad, [*good, b"", *[b""] * len(bad)], strict=False) for line in pair)
    )
    logbook = Logbook(tmp_path, resumed_step=8, report=silent)
    assert path.read_bytes() == b"".join(good)
    logbook.record("train", 9, loss=1.5)
    logbook.close()
    assert json.loads(path.read_bytes().splitlines()[-1])["loss"] == 1.5


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(entry(1) + entry(2).rstrip())
    Logbook(tmp_path, resumed_step=8, report=silent).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == entry(1) + entry(2)


def test_faults_are_kept_where_training_went_back(tmp_path):
    before, again = entry(7, kind="fault", rollbacks=0), entry(8, kind="fault", rollbacks=1)
    (tmp_path / "metrics.jsonl").write_bytes(entry(1) + before + entry(7) + again)
    Logbook(tmp_path, resumed_step=5, report=silent, rollbacks=1).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == entry(1) + before
    Logbook(tmp_path, resumed_step=5, report=silent).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == entry(1)


def test_each_test_set_has_curves_of_its_own(tmp_path):
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logbook = Logbook(tmp_path, resumed_step=0, report=silent)
    logbook.record("validation", 5, loss=2.0)
    for name in ("dev (average)", "test (average)"):
        logbook.record("test", 5, name=name, bleu=30.0)
    logbook.close()
    curves = event_files.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tags()["scalars"]
    assert sorted(curves) == ["test/dev (average)/bleu", "test/test (average)/bleu", "validation/loss"]


@pytest.mark.slow
def test_a_long_line_takes_no_memory(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(2**28)  # zeros, no end of line; nothing on the disk
    with path.open("ab") as file:
        file.write(b"\n" + entry(1))
    import tracemalloc

    tracemalloc.start()
    Logbook(tmp_path, resumed_step=5, report=silent).close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**25
    assert path.read_bytes() == entry(1)


@pytest.mark.parametrize("when", ["before", "while training"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_nothing_but_a_file_of_the_run_is_written_to(tmp_path, when, kind):
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.write_text("precious\n")
    path = run / "metrics.jsonl"

    def attack() -> None:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(victim if kind == "link" else tmp_path / "missing")

    if when == "before":
        attack()
        with pytest.raises(HeedError) as error:
            Logbook(run, resumed_step=0, report=silent)
    else:
        logbook = Logbook(run, resumed_step=0, report=silent)
        attack()
        with pytest.raises(HeedError) as error:
            logbook.record("train", 1, loss=1.0)
        logbook.close()
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert victim.read_text() == "precious\n" and not (tmp_path / "missing").exists()


def test_a_tensorboard_folder_on_another_disk_is_used_and_a_file_is_one_line(tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "disk").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "disk")
    Logbook(run, resumed_step=0, report=silent).close()
    assert os.listdir(tmp_path / "disk")
    (run / "tensorboard").unlink()
    (run / "tensorboard").write_text("mine")
    with pytest.raises(HeedError, match="tensorboard"):
        Logbook(run, resumed_step=0, report=silent)


@pytest.mark.slow
def test_a_tensorboard_that_cannot_be_imported_is_said_and_done_without(tmp_path):
    broken = tmp_path / "tensorboard"
    broken.mkdir()
    (tmp_path / "run").mkdir()
    (broken / "__init__.py").write_text("raise AttributeError('np.bool8\\nis gone')")
    code = "import sys; from heed.training.logbook import Logbook; from pathlib import Path\n"
    code += "log = Logbook(Path('run'), resumed_step=0, report=print); log.record('train', 1, loss=1.0); log.close()"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "TensorBoard does not work here (np.bool8 is gone); its curves are not written.\n", (
        done.stderr
    )
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_entries_are_read_past_damaged_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_entries(path)) == []
    path.write_bytes(entry(1) + b"\x00\xff\n" + b'{"kind": "train"}\n' + entry(2, loss=1.5) + b'{"kind": "train", "st')
    assert list(read_entries(path)) == [{"kind": "train", "step": 1}, {"kind": "train", "step": 2, "loss": 1.5}]


def test_only_a_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("fifo", "folder", "dangling"):
        with pytest.raises(HeedError, match=f"{name}: cannot be read"):
            list(read_entries(tmp_path / name))


def test_what_is_recorded_again_replaces_what_was_recorded_before(tmp_path):
    for _ in range(2):
        for kind in ("average", "test"):
            with closing(Logbook(tmp_path, resumed_step=100, repeated=kind, report=print)) as logbook:
                logbook.record(kind, 100, bleu=1.0)
                logbook.record(kind, 100, bleu=2.0)
    with closing(Logbook(tmp_path, resumed_step=200, repeated="test", report=print)) as logbook:
        logbook.record("test", 200, bleu=3.0)
    found = [(entry["kind"], entry["step"], entry["bleu"]) for entry in read_entries(tmp_path / "metrics.jsonl")]
    assert found == [("average", 100, 1), ("average", 100, 2), ("test", 100, 1), ("test", 100, 2), ("test", 200, 3)]


@pytest.mark.filterwarnings("ignore:Exception in thread")  # TensorBoard's own
def test_a_run_goes_on_without_tensorboards_curves_if_they_cannot_be_written(tmp_path):
    pytest.importorskip("tensorboard")
    said: list[str] = []
    logbook = Logbook(tmp_path, resumed_step=0, report=said.append)
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, most))  # bytes of a file; TensorBoard's is the larger one
    try:
        for step in range(1, 12):
            logbook.record("train", step, **{f"x{i}": 1.0 for i in range(9)})
            time.sleep(0.01)  # another thread writes it
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    logbook.record("train", 12, x=1.0)
    logbook.close()
    assert said == ["TensorBoard's curves cannot be written (File too large); the run continues without them."]
    assert [entry["step"] for entry in read_entries(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_numbers_are_short_and_the_log_is_json(tmp_path):
    assert [short(value) for value in (41.25, 999_999.0, 12_345_678.0, 5e145, math.inf, math.nan)] == [
        *("41.250", "999999.000", "1.23e+07", "5.00e+145", "inf", "nan")
    ]
    with closing(Logbook(tmp_path, resumed_step=0, report=silent)) as logbook:
        logbook.record("validation", 1, loss=800.0, perplexity=math.inf)
    written = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert (written["loss"], written["perplexity"]) == (800.0, None)
