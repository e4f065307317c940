"""heed translate-shards and score-shards: the same parts whoever makes them, whatever is killed; faults in one line.

HEED_KILLS: how often a worker and the driver are killed, instead of once.
"""

import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.apps.cluster.places import MODEL, Run, command, digest, lines, n_parts
from tests.end_to_end.test_nothing_is_lost import children_of

from heed.apps.cluster.plan import Model, Work, make_plan, manifest_hash, read_plan, write_plan
from heed.apps.cluster.plan import sidecar as read_sidecar_of
from heed.apps.cluster.worker import Worker
from heed.data.reading.columns import Columns
from heed.errors import HeedError

N_KILLS = int(os.environ.get("HEED_KILLS", "1"))
EXACT = ("--precision", "fp32")


@pytest.fixture
def shards(heed, tmp_path):
    """Runs translate-shards in this process on lines.txt, 30 rows a part."""
    (tmp_path / "lines.txt").write_text("\n".join(lines(100)) + "\n")

    def run(*words, task="translate", model=MODEL, out="out", part_lines=30, inputs="lines.txt"):
        options = ["--in", inputs, "--out", out, "--part-lines", part_lines, *EXACT, *words]
        return heed(f"{task}-shards", model, *options, cwd=tmp_path)

    return run


def records(out: Path) -> list[dict]:
    parts = sorted(out.glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]


def test_rows_are_those_of_heed_translate_and_heed_score(shards, heed, tmp_path):
    texts = [line.partition(" .")[0] for line in lines(100)]  # one sentence each
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    assert shards(inputs="rows.jsonl").returncode == 0
    rows = records(tmp_path / "out")
    direct = heed("translate", MODEL, "--json", *EXACT, stdin="\n".join(texts) + "\n")
    best = [json.loads(line)["translations"][0] for line in direct.stdout.splitlines()]
    assert [row["id"] for row in rows] == list(range(100)) and [row["text"] for row in rows] == texts
    assert [row["translation"] for row in rows] == [one["text"] for one in best]
    assert [(row["score"], row["ended"]) for row in rows] == [(one["score"], one["ended"]) for one in best]

    assert shards(inputs="out/part-*.jsonl", task="score", out="scored").returncode == 1  # there is a score
    scoring = shards("--prefix", "forced_", inputs="out/part-*.jsonl", task="score", out="scored")
    assert scoring.returncode == 0, scoring.stderr
    (tmp_path / "src").write_text("\n".join(texts) + "\n")
    (tmp_path / "tgt").write_text("".join(f"{row['translation']}\n" for row in rows))
    direct = heed("score", MODEL, "--src", "src", "--tgt", "tgt", "--json", *EXACT, cwd=tmp_path)
    scores = [json.loads(line) for line in direct.stdout.splitlines()]
    found = [(row["forced_log_prob"], row["forced_score"]) for row in records(tmp_path / "scored")]
    assert found == [(one["log_prob"], one["score"]) for one in scores]
    assert records(tmp_path / "scored")[7] == rows[7] | {"forced_log_prob": found[7][0], "forced_score": found[7][1]}


def test_cells_keep_what_files_keep_and_a_folder_begun_before_its_split(shards, heed, tmp_path):
    text = "seven {count} hundred\nand <b>nine</b> https://example.org/x"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}) + "\n")
    assert shards(inputs="rows.jsonl").returncode == 0
    [row] = records(tmp_path / "out")
    direct = heed("translate", MODEL, "--format", "text", *EXACT, stdin=text)
    assert row["translation"] == direct.stdout
    assert all(row["translation"].count(kept) == 1 for kept in ("{count}", "\n", "<b>", "https://example.org/x"))

    # The plan of an earlier version has no such key.
    plan = read_plan(str(tmp_path / "out"))
    earlier = replace(plan, work=plan.work.model_copy(update={"split": "lines"}))
    assert plan.identity() == earlier.identity() | {"split": "items"}
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    write_plan(str(tmp_path / "out"), earlier)
    assert shards(inputs="rows.jsonl").returncode == 0
    direct = heed("translate", MODEL, *EXACT, stdin=text + "\n")
    [row] = records(tmp_path / "out")
    assert row["translation"] == direct.stdout.removesuffix("\n")


def test_a_second_run_makes_only_what_is_missing_or_damaged(shards, tmp_path):
    assert shards().returncode == 0
    first, times = digest(tmp_path / "out"), {}
    for path in (tmp_path / "out").glob("part-*.txt"):
        times[path.name] = path.stat().st_mtime_ns
    (tmp_path / "out" / "part-00001.txt").unlink()
    damaged = tmp_path / "out" / "part-00002.txt"
    damaged.write_bytes(damaged.read_bytes().replace(b"a", b"e", 1))
    again = shards()
    assert again.returncode == 0 and "2 of 4 parts are already there" in again.stderr
    assert digest(tmp_path / "out") == first
    assert {p for p, t in times.items() if (tmp_path / "out" / p).stat().st_mtime_ns == t} == {
        "part-00000.txt",
        "part-00003.txt",
    }

    sidecar = tmp_path / "out" / "part-00003.txt.json"
    sidecar.write_text(sidecar.read_text().replace('"instruction_set": "', '"instruction_set": "Z80 '))
    assert "Machines of several kinds worked (" in shards().stderr


def test_shares_of_a_slurm_array_make_the_same(shards, tmp_path):
    assert shards().returncode == 0
    for share in ("2/3", "3/3"):
        assert "still missing" in shards("--part", share, out="shares").stderr
    assert not (tmp_path / "shares" / "_SUCCESS").exists()
    assert shards("--part", "1/3", out="shares").returncode == 0
    assert digest(tmp_path / "shares") == digest(tmp_path / "out")


def test_processes_make_the_same_also_by_their_former_option(shards, tmp_path):
    assert shards().returncode == 0
    for out, words, who in (
        ("two", ["--workers", 2], "Translating 4 parts, by 2 processes of 1 thread.\n"),
        (
            "former",
            ["--cluster", "local", "--workers", 1],
            "--cluster local is --workers 1 now; its former name",
        ),
    ):
        made = shards(*words, out=out)
        assert made.returncode == 0 and made.stderr.count(who) == 1, made.stderr
        assert digest(tmp_path / out) == digest(tmp_path / "out")


def test_another_input_model_or_setting_is_refused(shards, tmp_path):
    assert shards().returncode == 0
    first = digest(tmp_path / "out")
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    manifest = model / "manifest.json"
    assert "already there" in shards(model=model).stderr  # the same one, elsewhere
    for words, named in (
        (["--beam", "2"], "settings.beam_size (3, now 2)"),
        (["--format", "jsonl"], "output ('text', now 'jsonl')"),
    ):
        assert named in shards(*words).stderr
    assert "part_lines (30, now 31)" in shards(part_lines=31).stderr
    manifest.write_text(manifest.read_text() + "\n")
    assert "model ('" in shards(model=model).stderr
    (tmp_path / "lines.txt").touch()
    assert "already there" in shards().stderr
    text = (tmp_path / "lines.txt").read_text()
    (tmp_path / "lines.txt").write_text(text.replace("a", "o", 1))
    refused = shards()
    assert refused.returncode == 1 and "lines.txt.hash" in refused.stderr and refused.stderr.count("\n") <= 2
    assert digest(tmp_path / "out") == first


def edited(path: Path, edit, *, checksum: bool = True) -> None:
    """Writes a plan or a sidecar with an edit."""
    content = json.loads(path.read_text())
    edit(content)
    if not checksum:
        del content["checksum"]  # as in the first plans
    path.write_text(json.dumps(content))


PLAN_EDITS = {
    "a part less": lambda plan: plan["parts"].pop(),
    "no part": lambda plan: plan["parts"].clear(),
    "a row less": lambda plan: plan["parts"][0][0].__setitem__(2, 29),
    "a count below zero": lambda plan: plan["parts"][1][0].__setitem__(2, -30),
    "a part twice": lambda plan: plan["parts"].__setitem__(2, plan["parts"][1]),
    "parts in another order": lambda plan: plan["parts"].reverse(),
    "an input that is not there": lambda plan: plan["parts"][3][0].__setitem__(0, 1),
    "a byte of another part": lambda plan: plan["parts"][2][0].__setitem__(3, plan["parts"][1][0][3]),
    "a byte below zero": lambda plan: plan["parts"][0][0].__setitem__(3, -1),
    "a number too many": lambda plan: plan["parts"][1][0].append(0),
    "text for a number": lambda plan: plan["parts"][1][0].__setitem__(1, "30"),
    "a fraction": lambda plan: plan["parts"][1][0].__setitem__(1, 30.0),
    "true for a number": lambda plan: plan["parts"][0][0].__setitem__(0, False),
    "parts of no row": lambda plan: plan.update(part_lines=0),
    "rows beyond all parts": lambda plan: plan["inputs"][0].update(rows=10**18),
    "an unknown task": lambda plan: plan.update(task="delete"),
    "an unknown precision": lambda plan: plan.update(precision="int1"),
    "no inputs": lambda plan: plan.pop("inputs"),
    "settings that are a list": lambda plan: plan.update(settings=[]),
}


def test_a_plan_whose_parts_are_not_all_rows_once_is_refused_as_damaged(shards, tmp_path):
    assert shards().returncode == 0
    plan = tmp_path / "out" / "plan.json"
    good = plan.read_text()
    for name, edit in PLAN_EDITS.items():
        plan.write_text(good)
        edited(plan, edit, checksum=False)
        with pytest.raises(HeedError, match=r"plan\.json: damaged \("):
            read_plan(str(tmp_path / "out"))
            pytest.fail(name)
    plan.write_text(good)
    edited(plan, lambda plan: plan["parts"][1][0].__setitem__(3, plan["parts"][1][0][3] + 1))
    refused = shards()
    assert refused.returncode == 1 and "it was changed since it was written" in refused.stderr
    plan.write_text(good)
    edited(plan, lambda plan: None, checksum=False)
    assert shards().returncode == 0


def test_a_damaged_sidecar_means_that_its_part_is_made_again(shards, tmp_path):
    assert shards().returncode == 0
    first, out = digest(tmp_path / "out"), tmp_path / "out"
    sidecar = out / "part-00001.txt.json"
    good = sidecar.read_text()
    edits = [lambda said, key=key: said.pop(key) for key in json.loads(good)]
    wrong = {"seconds": "x", "tokens": -1, "rows": 30.0, "threads": 0, "instruction_set": None, "cpu_seconds": 1e999}
    edits += [lambda said, key=key, value=value: said.update({key: value}) for key, value in wrong.items()]
    plan = read_plan(str(out))
    for edit in edits:
        sidecar.write_text(good)
        edited(sidecar, edit)
        assert read_sidecar_of(str(out), plan, 1) is None
    for content in ("", "[]", "{", '{"plan": 1}', "null"):
        sidecar.write_text(content)
        assert read_sidecar_of(str(out), plan, 1) is None
    again = shards()
    assert again.returncode == 0 and "3 of 4 parts are already there" in again.stderr
    assert digest(out) == first


def test_an_input_that_is_replaced_while_it_is_read_is_refused_by_name(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("a dog runs .\n" * 4)
    model, columns = Model(str(MODEL), manifest_hash(MODEL)), Columns(("text",))
    work = Work(
        task="translate",
        model=model,
        settings={},
        precision="fp32",
        columns=columns,
        output="text",
        part_lines=2,
    )
    write_plan(str(tmp_path), make_plan([str(path)], work))
    worker = Worker(str(tmp_path), 1, model=str(MODEL), max_errors=0)
    worker.open()
    assert "done" in worker.attempt(0)
    state = path.stat()
    (tmp_path / "other").write_text("a cat runs .\n" * 4)
    os.utime(tmp_path / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(tmp_path / "other", path)
    assert "lines.txt: is not what it was when it was planned" in worker.attempt(1)["stop"]
    path.write_text("a dog runs .\n" * 4)  # the planned text, written anew
    assert "done" in worker.attempt(1)
    worker.close()


def test_a_complete_folder_on_a_disk_that_is_read_only_is_complete(shards, tmp_path):
    read_only = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount --bind out out && mount -o remount,bind,ro out && exec "$@"',
        "sh",
    ]
    assert shards().returncode == 0
    if subprocess.run([*read_only, "sh", "-c", "! touch out/x"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("no mounts of one's own here")
    words = ["translate-shards", MODEL, "--in", "lines.txt", "--out", "out", "--part-lines", 30, *EXACT]
    done = subprocess.run([*read_only, *command(*words)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.endswith("out: 4 parts, complete.\n"), done.stderr


def test_bad_rows_are_listed_up_to_a_number(shards, tmp_path):
    rows = ['{"text": "a dog", "id": 1}', "nope", '{"text": null}', '{"text": "", "id": 4}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    refused = shards("--max-errors", "1", inputs="rows.jsonl")
    assert refused.returncode == 1 and "rows.jsonl, row 3: 'text' is not text; more than" in refused.stderr
    assert shards("--max-errors", "2", inputs="rows.jsonl").returncode == 0
    assert [row["id"] for row in records(tmp_path / "out")] == [1, 4]
    listed = (tmp_path / "out" / "errors" / "part-00000.jsonl").read_text().splitlines()
    assert [(json.loads(line)["row"], json.loads(line)["fault"]) for line in listed] == [
        (2, "not JSON"),
        (3, "'text' is not text"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--in", "none-*.txt"], "none-*.txt: no such file"),
        (["--in", "."], ".: is a folder; name its files"),
        (["--in", "rows.jsonl", "--column", "src"], "has no column 'src'; it has 'id', 'text'"),
        (["--in", "rows.jsonl", "--in", "lines.txt"], "give the files of one format at a time"),
        (["--in", "rows.jsonl", "--format", "text"], "--format text has no place for 'id'"),
        (["--in", "rows.jsonl", "--format", "csv"], "--format 'csv': expected parquet, jsonl, text."),
        (["--in", "cut.txt.gz"], "cut.txt.gz: damaged gzip file"),
        (["--in", "empty.txt"], "empty.txt: no row to translate"),
        (["--in", "lines.txt", "--part", "0/3"], "--part 0/3: expected I/N, from 1/N to N/N"),
        (["--in", "lines.txt", "--cluster", "here"], "--cluster here: expected none, auto or a Ray"),
        (["--in", "lines.txt", "--cluster", "127.0.0.1:1"], "--cluster 127.0.0.1:1: nothing answers there"),
    ],
)
def test_faults_are_one_line_and_nothing_is_written(heed, tmp_path, words, message):
    (tmp_path / "lines.txt").write_text("one\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "text": "one"}\n')
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"seven hundred\n" * 99)[:-6])
    before = sorted(os.listdir(tmp_path))
    done = heed("translate-shards", MODEL, "--out", "out/inner", *EXACT, *words, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_is_no_model_and_one_in_use_are_refused(shards, tmp_path):
    assert "not a model folder" in shards(model=tmp_path).stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert "holds 'thesis.txt' and no plan.json" in shards().stderr
    assert os.listdir(tmp_path / "out") == ["thesis.txt"]


def test_a_dry_run_says_what_the_whole_takes_and_writes_nothing(shards, tmp_path):
    done = shards("--dry-run", "--price", "0.05")
    assert done.returncode == 0 and "100 rows in 4 parts. part-00002.txt, 30 rows, took" in done.stderr
    assert "at 0.05 per core-hour" in done.stderr and os.listdir(tmp_path) == ["lines.txt"]


def test_all_columns_of_parquet_are_kept_with_their_types(shards, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as parquet

    table = arrow.table(
        {"id": arrow.array(range(100), arrow.int16()), "text": lines(100), "tags": [["a", str(i)] for i in range(100)]}
    )
    parquet.write_table(table.slice(0, 40), tmp_path / "a.parquet", row_group_size=7)
    parquet.write_table(table.slice(40), tmp_path / "b.parquet")
    done = shards(inputs="?.parquet")
    assert done.returncode == 0, done.stderr
    found = arrow.concat_tables([parquet.read_table(p) for p in sorted((tmp_path / "out").glob("part-*.parquet"))])
    assert found.select(table.column_names).equals(table)
    assert found.schema.names[3:] == ["translation", "score", "ended"]
    assert shards(inputs="?.parquet", out="again").returncode == 0
    assert digest(tmp_path / "again") == digest(tmp_path / "out")
    parquet.write_table(table.drop_columns("tags"), tmp_path / "b.parquet")
    assert "has other columns than" in shards(inputs="?.parquet", out="mixed").stderr
    assert not (tmp_path / "mixed").exists()


@pytest.mark.slow
def test_a_full_disk_is_waited_for_then_the_part_is_named(tmp_path):
    """A limit on the size of files stands for the disk. It is lifted while the worker waits."""
    (tmp_path / "lines.txt").write_text("\n".join(lines(60)) + "\n")
    words = ["translate-shards", MODEL, "--in", tmp_path / "lines.txt", "--part-lines", 30, *EXACT]
    assert subprocess.run(command(*words, "--out", tmp_path / "whole"), capture_output=True).returncode == 0
    log = tmp_path / "log"
    limited = (2500, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    with log.open("wb") as file:
        process = subprocess.Popen(
            command(*words, "--out", tmp_path / "out"),
            stderr=file,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limited),
        )
    while b"Next attempt" not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    assert "File too large" in log.read_text()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limited[1], limited[1]))
    assert process.wait(300) == 0, log.read_text()
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


@pytest.mark.soak
def test_a_killed_worker_and_a_killed_driver_change_nothing(tmp_path):
    draw = random.Random(3)
    (tmp_path / "lines.txt").write_text("\n".join(lines(900)) + "\n")
    words = ["translate-shards", MODEL, "--in", tmp_path / "lines.txt", "--part-lines", 30, *EXACT]
    assert subprocess.run(command(*words, "--out", tmp_path / "whole"), capture_output=True).returncode == 0
    out, log = tmp_path / "out", tmp_path / "log"
    for kill in range(N_KILLS):
        shutil.rmtree(out, ignore_errors=True)
        run = Run(*words, "--out", out, "--workers", 2, log=log, out=out)
        run.wait_for(draw.randrange(1, 10))
        os.kill(draw.choice(children_of(run.process)), signal.SIGKILL)
        run.wait_for(n_parts(out) + draw.randrange(1, 10))
        workers = children_of(run.process)
        run.kill()
        deadline = time.monotonic() + 120
        while any(Path("/proc", str(pid), "status").exists() for pid in workers):
            assert time.monotonic() < deadline, "workers outlive their driver"
            time.sleep(0.05)
        assert not (out / "_SUCCESS").exists(), kill
        run = Run(*words, "--out", out, "--workers", 2, log=log, out=out)
        run.end()
        assert "are already there" in log.read_text() and "A worker is lost (its process ended" in log.read_text()
        assert digest(out) == digest(tmp_path / "whole")
