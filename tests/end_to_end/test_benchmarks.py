"""The benchmarks still run, and count what they say they count; what they measure is in docs/results.md."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from heed.backends.cpu.build import has_int8, has_tiles

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.soak
def test_a_program_trains_a_batch_of_the_race(data_folder, tmp_path):
    command = [sys.executable, FOLDER / "train_peers.py", "--mirror", data_folder, "--work", tmp_path]
    command += ["--windows", "1", "--n-batches", "1", "--threads", "2", "--only", "heed-bf16", "heed-bf16-workers"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| heed-bf16 | " in done.stdout
    assert "| heed-bf16-workers | " in done.stdout


@pytest.fixture
def decode_peers(monkeypatch):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(FOLDER))
    import decode_peers

    return decode_peers


SOURCES = [[5, 6, 7, 8], [9, 10], [30, 20, 40, 11, 12, 13], [14], [15, 16, 17], [49, 48, 47, 46, 45]]


def job(decode_peers, *, forced, sources=SOURCES):
    return decode_peers.Job(
        sources=sources,
        beam=3,
        batch=8,
        length_penalty=0.6,
        one_by_one=False,
        early_stopping=False,
        forced=forced,
        model=None,
        preset="tiny",
        vocab_size=50,
    )


def translated(decode_peers, name, model, sources, *, forced):
    kind, *how = name.split("-")
    return decode_peers.ENGINES[kind](model, job(decode_peers, forced=forced), *how)(sources)


@pytest.mark.parametrize(
    "name", ["heed-fp32-1x2", "heed-bf16-1x2", "heed-int8-2x1", "ct2-fp32-1x2", "ct2-int8-2x1", "hf-fp32", "hf-bf16"]
)
def test_every_engine_says_a_forced_number_of_tokens_to_each_source_in_order(decode_peers, name, small_model):
    if ("heed-int8" in name and not has_int8()) or ("heed-bf16" in name and not has_tiles()):
        pytest.skip("no 8-bit products here")
    the_job, folder = job(decode_peers, forced=7), decode_peers.with_vocabulary(small_model)
    targets = translated(decode_peers, name, folder, SOURCES, forced=7)
    the_job.check(name, targets)
    assert the_job.n_tokens(targets) == 7 * len(SOURCES)
    assert all(0 <= i < 50 for target in targets for i in target)
    assert len(set(map(tuple, targets))) > 2  # else their order would not show
    if "fp32" in name:
        assert translated(decode_peers, name, folder, SOURCES[::-1], forced=7) == targets[::-1]


def test_special_symbols_that_another_program_says_are_counted(decode_peers):
    """As new weights are, a model repeats what it reads first: bos. Heed never says it, others do."""
    the_job = job(decode_peers, forced=7)
    for name in ("ct2-fp32-1x2", "hf-fp32"):
        targets = translated(decode_peers, name, the_job.load(), SOURCES, forced=7)
        assert any(i in (0, 1) for target in targets for i in target), name
        assert the_job.n_tokens(targets) == 7 * len(SOURCES)


def test_results_that_are_not_what_was_asked_for_end_the_race(decode_peers):
    the_job = job(decode_peers, forced=2)
    for targets, fault in (
        ([[1, 2]] * 5, "expected 6 translations, found 5"),
        ([[1, 2]] * 5 + [[1]], "expected 2 tokens in every output, found 1 in 6"),
    ):
        with pytest.raises(SystemExit, match=fault):
            the_job.check("hf-fp32", targets)
    job(decode_peers, forced=None).check("hf-fp32", [[1, 2]] * 5 + [[]])


def test_the_ratio_is_to_the_fastest_other_program(decode_peers):
    targets = [[3, 4]] * len(SOURCES)
    seconds = {"heed-fp32": 1.0, "heed-int8": 0.25, "ct2-int8-1x2": 0.5, "hf-fp32": 4.0}
    results = {name: decode_peers.Result([s], 0, targets) for name, s in seconds.items()}
    rows = decode_peers.rows_of(results, job(decode_peers, forced=2))
    assert {name: row["ratio_to_best_other"] for name, row in rows.items()} == {
        "heed-fp32": 0.5, "heed-int8": 2.0, "ct2-int8-1x2": 1.0, "hf-fp32": 0.125
    }  # fmt: skip


def test_programs_of_the_decoding_race_report_the_same_number_of_tokens(decode_peers):
    command = [sys.executable, FOLDER / "decode_peers.py", "--preset", "tiny", "--vocab", "50", "--forced", "6"]
    command += ["--sentences", "3", "--windows", "1", "--json", "--only", "heed-fp32-2x1", "ct2-int8-1x2", "hf-fp32"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row["target_tokens"] for row in json.loads(done.stdout).values()] == [3 * 6] * 3


@pytest.mark.soak
def test_same_results_tells_what_a_changed_tree_changes(tmp_path):
    """With dropout in the demo's preset training differs; the translations of one model do not."""
    project = FOLDER.parent
    shutil.copytree(project / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    preset = tmp_path / "src" / "heed" / "runs" / "presets" / "demo.toml"
    preset.write_text(preset.read_text().replace("dropout = 0.0", "dropout = 0.1"))
    command = [sys.executable, FOLDER / "same_results.py", project, tmp_path, "--steps", "2", "--precision", "fp32"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    losses, weights, translations = done.stdout.splitlines()[2:]
    # Two steps and the validation. The first loss differs already.
    assert re.fullmatch(r"\| demo \| losses, fp32 \| DIFFERENT: 3 of 3, by up to 0\.\d+ \|", losses)
    assert weights == "| demo | weights, fp32 | DIFFERENT |"
    assert translations == "| demo | translate, fp32 | equal (100) |"


@pytest.fixture
def wmt14(monkeypatch):
    pytest.importorskip("sacremoses")
    monkeypatch.syspath_prepend(str(FOLDER))
    import wmt14

    return wmt14


def test_the_papers_bleu_splits_compounds_as_its_script_does(wmt14):
    # perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' goes on behind what it has matched, so "b-c" stays.
    assert wmt14.split_compounds("rich-text format - a-b-c") == "rich ##AT##-##AT## text format - a ##AT##-##AT## b-c"
    # Half of a compound is wrong: "Text ##AT##-##AT## Forum" still has two tokens right. Of 6, 5, 4 and 3 n-grams
    # 5, 3, 2 and 1 are right.
    hypothesis, reference = "Das gute Text-Forum .", "Das gute Text-Format ."
    score = wmt14.paper_bleu([hypothesis], [reference])
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert score.value == pytest.approx(expected)
    assert "before:moses-de+split-compounds|sacremoses:" in score.signature
    assert wmt14.paper_bleu([reference], [reference]).value == pytest.approx(100)


def test_energy_is_the_integral_of_the_power_of_all_gpus_while_it_was_sampled(wmt14, tmp_path):
    samples = ["0, 0, 100.0", "0, 1, 300.0", "10, 0, 200.0", "10, 1, 300.0", "10, 2, [N/A]", "900, 0, 200", "905, 0, 2"]
    (tmp_path / "power.csv").write_text("\n".join(samples))
    # 10 s at 150 W and at 300 W; nothing is known of the 890 s until the script ran again; then 5 s at 101 W.
    assert wmt14.energy(tmp_path / "power.csv") == {
        "gpus": 2, "kwh": (1500 + 3000 + 505) / 3.6e6, "mean_watts_per_gpu": 5005 / 25, "hours": 25 / 3600
    }  # fmt: skip
    (tmp_path / "power.csv").write_text("0, 0, [N/A]\n10, 0, [N/A]\n")
    assert wmt14.energy(tmp_path / "power.csv") is None
    assert wmt14.energy(tmp_path / "none.csv") is None


def is_at_work(folder):
    """Whether a process names the folder on its command line."""

    def names_it(process):
        with suppress(OSError):  # it has ended
            return str(folder).encode() in (process / "cmdline").read_bytes()

    return any(map(names_it, Path("/proc").glob("[0-9]*")))


@pytest.mark.soak
def test_the_papers_run_is_rehearsed_killed_and_resumed(wmt14, tmp_path):
    """The whole course of wmt14.sh on a made corpus: by two workers, with a GPU's power from a program in its place."""
    out = tmp_path / "out"
    tells = tmp_path / "bin" / "nvidia-smi"
    tells.parent.mkdir()
    tells.write_text("#!/bin/sh\necho 0, 250.00\n")
    tells.chmod(0o755)
    environment = os.environ | {
        "REHEARSE": "1000",
        "OUT": str(out),
        "PYTHON": sys.executable,
        "PATH": f"{tells.parent}:{os.environ['PATH']}",
        "POWER_SECONDS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "log").open("wb") as log:
        streams = {"stdout": log, "stderr": log}
        killed = subprocess.Popen([FOLDER / "wmt14.sh"], env=environment, start_new_session=True, **streams)
        for _ in range(3000):
            if killed.poll() is not None or (out / "run" / "checkpoints" / "12").exists():
                break
            time.sleep(0.2)
        os.killpg(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
        while is_at_work(out):  # torchrun's workers, each in a session of its own, save the state and end
            time.sleep(0.2)
        done = subprocess.run([FOLDER / "wmt14.sh"], env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    told = (tmp_path / "log").read_text()
    assert done.returncode == 0, told
    assert told.count("Resumed from step") == 1
    record = json.loads((out / "record.json").read_text())
    assert record["rehearsal"] and record["steps"] == 40 and record["processes"] == len(record["starts"]) == 2
    assert record["card"]["pairs"] > 900
    assert record["target_tokens_per_second"] == record["target_tokens"] / record["training_seconds"] > 0
    assert record["energy"]["mean_watts_per_gpu"] == 250
    for name in ("dev", "newstest2014"):
        scores = record["scores"][name]
        assert scores["lines"] == 200 == len((out / f"{name}.hyp").read_text().splitlines())
        assert "split-compounds" in scores["paper_bleu_signature"] and "tok:13a" in scores["bleu_signature"]
    assert "a rehearsal" in done.stdout and (out / "row.md").read_text() in done.stdout
    again = subprocess.run([FOLDER / "wmt14.sh"], env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and (out / "row.md").read_text() == again.stdout


@pytest.mark.soak
def test_the_whole_course_of_gpu_sh_runs_on_a_cpu(tmp_path):
    pytest.importorskip("ctranslate2")
    environment = os.environ | {
        "SMALL": "1",
        "MINUTES": "120",
        "OUT": str(tmp_path),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([FOLDER / "gpu.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "left out" not in done.stderr, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == sorted(done.stdout.split())
    kinds = {part.split("-")[0] for part in results} - {"versions", "losses", "tests", "memory"}
    assert kinds == {"check", "train", "uncompiled", "plain", "r", "profile", "decode", "ctranslate2", "torch"}
    assert not any(part["wrong"] for name, part in results.items() if name.startswith("check-"))
    assert results["losses"]["fp32 on the device against the CPU (bound: 1e-5)"] < 1e-5
    assert not results["tests"]["failed"]
    rows = (tmp_path / "results.md").read_text()
    for part, result in results.items():
        if "target_tokens_per_second" in result:
            assert f"| {part} | {result['target_tokens_per_second']:,.0f} (" in rows
    assert "| torch-base, tiny | " in rows and "| ctranslate2-512-4-base, ct2-fp32-1x2 | " in rows


def test_gpu_sh_names_the_parts_that_it_had_no_time_for(tmp_path):
    environment = os.environ | {"MINUTES": "0", "OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run([FOLDER / "gpu.sh", "train-base", "memory"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "left out, for want of time: train-base memory\n"
    assert json.loads((tmp_path / "results.json").read_text()) == {}
