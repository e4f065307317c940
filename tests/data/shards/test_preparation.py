"""Preparation in shards: what whole preparation gives, the same bytes by whomever, and errors that say what to do."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.shards.made import digest, preparation, prepared, sentences, settings, write_lines

from heed.data.corpus.shard import ParallelCorpus
from heed.data.inspection import repetitions
from heed.data.preparation import job
from heed.data.preparation import plan as plans
from heed.data.preparation import rules as filters
from heed.data.preparation.shard import ShardWorker
from heed.data.reading.files import refuse_both_sides, training_files
from heed.errors import HeedError
from heed.leases.workforce import Workforce
from heed.runtime.locks import Busy, locked
from heed.text.tokenizer import TokenizerSettings, train_tokenizer

SETTINGS = TokenizerSettings(vocab_size=600)


@pytest.fixture(scope="module")
def pairs():
    """Good pairs, and some of every kind that is left out."""
    good = sentences(240, seed=1)
    good[20] = ("", "leer")
    good[60] = ("abc " * 200, "cba " * 200)
    good[61] = ("ab", "ba " * 40)
    good[100] = ("same same", "same same")
    for copy, original in ((5, 3), (130, 3), (131, 100), (200, 150)):
        good[copy] = good[original]
    return good


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return train_tokenizer([line for pair in pairs for line in pair], SETTINGS)


@pytest.fixture
def text(tmp_path, pairs):
    """The corpus as two files, and dev."""
    sets = {"train": pairs, "dev": sentences(30, seed=2) + pairs[:3]}
    train, dev = (
        [write_lines(tmp_path / f"{name}.{code}", [pair[i] for pair in of_set]) for i, code in enumerate(("en", "de"))]
        for name, of_set in sets.items()
    )
    return train, dev


def read(corpus, n_shards):
    """All pairs of a corpus in shards, with their lines."""
    found = []
    for number in range(n_shards):
        shard = corpus.shard(number)
        found += [(*(ids.tolist() for ids in shard[row]), int(shard.lines[row])) for row in range(len(shard))]
    return found


FILTERS = [
    {},
    {"drop_duplicates": True},
    {"drop_identical": True, "max_tokens": 20, "max_ratio": 3.0},
    {"drop_duplicates": True, "dev": 15},
]


@pytest.mark.parametrize("changes", FILTERS, ids=["none", "copies", "lengths", "dev split off"])
def test_shards_hold_what_whole_preparation_holds(tmp_path, text, tokenizer, changes, monkeypatch):
    monkeypatch.setattr(plans, "HASHES_AT_A_TIME", 64)  # several ranges of hashes
    monkeypatch.setattr(repetitions, "COPIED_SHARE", 0.01)
    train, dev = text
    data = settings(train, dev).model_copy(update=changes)
    lines: list[str] = []
    corpus = prepared(data, tmp_path / "shards", given=tokenizer, lines=lines).train

    whole_data, whole_folder = data.model_copy(update={"shard_pairs": None}), tmp_path / "whole" / "data"
    of_whole: list[str] = []
    whole = prepared(whole_data, tmp_path / "whole", given=tokenizer, lines=of_whole).train
    assert isinstance(whole, ParallelCorpus)
    remarks, other_remarks = ([line for line in of if line.startswith("Remark")] for of in (lines, of_whole))
    assert remarks == other_remarks
    assert ("are copies of others" in " ".join(remarks)) == ("drop_duplicates" not in changes)
    expected = [(*(ids.tolist() for ids in whole[row]), int(whole.lines[row])) for row in range(len(whole))]
    assert read(corpus, corpus.n_shards) == expected and len(corpus) == len(whole)
    assert (corpus.counts("tgt", vocab_size=len(tokenizer)) == whole.counts("tgt", vocab_size=len(tokenizer))).all()
    assert corpus.length_counts().tolist() == whole.length_counts().tolist() and corpus.longest == whole.longest
    assert [corpus.place(line) for line in (1, 77)] == [whole.place(line) for line in (1, 77)]
    reports = [json.loads((f / "train.report.json").read_text()) for f in (tmp_path / "shards/data", whole_folder)]
    assert reports[0] == reports[1]
    lists = [
        gzip.decompress(path.read_bytes()).decode()
        for path in sorted((tmp_path / "shards/data/shards").glob("*.dropped.tsv.gz"))
    ]
    assert "".join(lists) == (whole_folder / "train.dropped.tsv").read_text()


def test_one_shard_is_the_same_by_however_many_workers_it_is_made(tmp_path, text, tokenizer, monkeypatch):
    """Several make it in parts, which are joined."""
    data = settings(*text, shard_pairs=None, drop_duplicates=True)
    files, lines = {}, {}
    for name, pairs, workforce in (
        ("one", 10**6, Workforce()),
        ("parts", 70, Workforce(threads=1)),
        ("processes", 70, Workforce(n_workers=2, threads=1)),
    ):
        monkeypatch.setattr(job, "SHARD_PAIRS", pairs)
        lines[name] = list[str]()
        prepared(data, tmp_path / name, given=tokenizer, workforce=workforce, lines=lines[name])
        folder = tmp_path / name / "data"
        files[name] = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        plan = files[name].pop("shards/plan.json")
        assert json.loads(plan)["joined"] and "train/src.bin" in files[name]
        assert not [path for path in files[name] if path.startswith("shards/shard")]
    assert files["one"] == files["parts"] == files["processes"]
    assert [line.replace("parts", "one") for line in lines["parts"]] == lines["one"]


def test_formats_folders_and_patterns_give_the_same_shards(tmp_path, pairs, text, tokenizer):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zstandard = pytest.importorskip("zstandard")
    train, dev = text
    plain = prepared(settings(train, dev), tmp_path / "plain", given=tokenizer).train
    expected = read(plain, plain.n_shards)
    halves = [pairs[:90], pairs[90:]]

    def check(names, name, **changes):
        corpus = prepared(settings(names, dev, **changes), tmp_path / name, given=tokenizer).train
        assert read(corpus, corpus.n_shards) == expected, name

    folder = tmp_path / "texts"
    folder.mkdir()
    for number, half in enumerate(halves):
        for code, side in zip(("en", "de"), zip(*half, strict=True), strict=True):
            packed = "".join(f"{line}\n" for line in side).encode()
            content = gzip.compress(packed) if number else zstandard.ZstdCompressor().compress(packed)
            (folder / f"part-{number}.{code}{'.gz' if number else '.zst'}").write_bytes(content)
    (folder / "README.txt").write_text("not a corpus\n")
    check([str(folder)], "folder")
    check([str(folder / "*.en.*"), str(folder / "*.de.*")], "patterns")

    records = tmp_path / "records"
    records.mkdir()
    for number, half in enumerate(halves):
        rows = [{"source": src, "target": tgt, "id": row} for row, (src, tgt) in enumerate(half)]
        if number:
            parquet.write_table(arrow.Table.from_pylist(rows), records / "b.parquet", row_group_size=40)
        else:
            text_of_rows = "".join(json.dumps(row) + "\n" for row in rows)
            (records / "a.jsonl.gz").write_bytes(gzip.compress(text_of_rows.encode()))
    check([str(records)], "records", columns=["source", "target"])
    (tmp_path / "pairs.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    check([str(tmp_path / "pairs.tsv")], "tabs")


def test_who_works_and_how_the_work_is_shared_changes_no_byte(tmp_path, text, tokenizer):
    data = settings(*text, drop_duplicates=True)
    prepared(data, tmp_path / "one", given=tokenizer)
    prepared(data, tmp_path / "threads", given=tokenizer, workforce=Workforce(threads=2))
    expected = digest(tmp_path / "one")
    assert digest(tmp_path / "threads") == expected

    # Two shares, whose commands are given again until all stages are there.
    lines: list[str] = []
    shares = [preparation(data, tmp_path / "shares", given=tokenizer, lines=lines) for _ in range(2)]
    rounds = 0
    while True:
        done = []
        for number, share in enumerate(shares, start=1):
            share.begin()
            done.append(share.work(Workforce(threads=1, share=(number, 2))))
        rounds += 1
        if done[-1]:
            break
    assert rounds >= 2 and sum("Parts of other shares are still missing" in line for line in lines) >= 1
    shares[0].finish()
    assert digest(tmp_path / "shares") == expected


def test_shards_are_made_by_one_preparation_or_by_shares_that_end_before_anyone_finishes(tmp_path, text, tokenizer):
    made = preparation(settings(*text), tmp_path / "run", given=tokenizer)
    made.begin()
    shards = tmp_path / "run/data/shards"
    with locked(shards, shared=True):  # as a share holds it
        with pytest.raises(Busy, match=f"process {os.getpid()} is at work there"):
            made.work(Workforce())
        assert not list(shards.glob("shard-*"))
        assert not made.work(Workforce(threads=1, share=(1, 2)))
    assert made.work(Workforce(threads=1, share=(2, 2)))
    made.finish()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads as Linux does")
def test_the_command_has_as_many_threads_as_it_is_given(tmp_path, text):
    (tmp_path / "small.toml").write_text(
        '[data]\nsrc = "en"\ntgt = "de"\ntrain = ["train.en", "train.de"]\ndev = ["dev.en", "dev.de"]\n'
        "[tokenizer]\nvocab_size = 600\n"
    )
    code = (
        "import os, heed.apps.commands\ntry:\n    heed.apps.commands.main()\n"
        "except SystemExit as end:\n    print(end.code, len(os.listdir('/proc/self/task')))"
    )

    def n_threads(given):
        options = ["prepare", "small.toml", "--run", f"run-{given}", "--threads", str(given)]
        done = subprocess.run([sys.executable, "-c", code, *options], cwd=tmp_path, capture_output=True, text=True)
        status, found = map(int, done.stdout.splitlines()[-1].split())
        assert status == 0, done.stderr
        return found

    assert n_threads(4) - n_threads(1) == 3


def test_lines_that_cannot_be_read_are_left_out_and_listed(tmp_path, text, tokenizer):
    (src, tgt), dev = text
    lines = Path(src).read_bytes().split(b"\n")
    lines[7] = b"sch\xf6n"
    Path(src).write_bytes(b"\n".join(lines))
    said: list[str] = []
    corpus = prepared(settings([src, tgt], dev), tmp_path / "run", given=tokenizer, lines=said).train
    assert "1 that cannot be read" in " ".join(said) and 8 not in corpus.shard(0).lines
    listed = gzip.decompress((tmp_path / "run/data/shards/shard-00000.dropped.tsv.gz").read_bytes()).decode()
    assert f"8\tthat cannot be read: byte 4 (0xf6) is not UTF-8\t{src}" in listed
    one = prepared(settings([src, tgt], dev, shard_pairs=None), tmp_path / "one", given=tokenizer).train
    assert one.lines.tolist() == [line for n in range(corpus.n_shards) for line in corpus.shard(n).lines]

    for place in range(0, 30):
        lines[place] = b"sch\xf6n"
    Path(src).write_bytes(b"\n".join(lines))
    for shard_pairs in (50, None):
        changed = settings([src, tgt], dev, shard_pairs=shard_pairs)
        message = r"train\.en and .*train\.de: 30 of 240 lines cannot be read, .* \(first: line 1: byte 4"
        with pytest.raises(HeedError, match=message):
            prepared(changed, tmp_path / f"bad-{shard_pairs}")
    with pytest.raises(HeedError, match=r"\(first: line 1: target: byte 4"):
        prepared(settings([tgt, src], dev), tmp_path / "exchanged")


def test_a_damaged_shard_is_made_again_alone(tmp_path, text, tokenizer):
    data = settings(*text)
    corpus = prepared(data, tmp_path / "run", given=tokenizer).train
    before, shards = digest(tmp_path / "run"), tmp_path / "run/data/shards"
    (shards / "shard-00002" / "src.bin").write_bytes(b"")
    with pytest.raises(HeedError, match=r"delete it and .*index, and run heed prepare again"):
        corpus.shard(2)
    dates = {path.name: path.stat().st_mtime_ns for path in shards.glob("shard-*.json")}
    prepared(data, tmp_path / "run", given=tokenizer)
    assert digest(tmp_path / "run") == before
    assert [name for name, date in dates.items() if (shards / name).stat().st_mtime_ns != date] == ["shard-00002.json"]


def test_what_is_lost_of_a_complete_corpus_is_made_again_and_damaged_plans_are_refused(tmp_path, text, tokenizer):
    data = settings(*text, drop_duplicates=True)
    prepared(data, tmp_path / "run", given=tokenizer)
    before, shards = digest(tmp_path / "run"), tmp_path / "run/data/shards"
    lost, cut = shards / "shard-00001", shards / "shard-00003"
    shutil.rmtree(lost)
    (cut / "tgt.bin").write_bytes((cut / "tgt.bin").read_bytes()[:-2])
    sidecar = shards / "shard-00002.json"
    sidecar.write_text(sidecar.read_text().replace('"kept": ', '"kept": -'))
    said: list[str] = []
    prepared(data, tmp_path / "run", given=tokenizer, lines=said)
    assert any("shard-00001: missing or damaged, with 1 others" in line for line in said)
    assert digest(tmp_path / "run") == before

    plan = shards / "plan.json"
    good = json.loads(plan.read_text())
    edits = [
        lambda plan: plan["shards"].pop(),
        lambda plan: plan["shards"][1][0].__setitem__(2, -50),
        lambda plan: plan["shards"][1][0].__setitem__(1, 0),
        lambda plan: plan["shards"][1][0][3].__setitem__(1, 0),
        lambda plan: plan["shards"][1][0][3].pop(),
        lambda plan: plan["shards"][1][0].__setitem__(0, 7),
        lambda plan: plan["sources"][0][1].update(rows=239),
        lambda plan: plan["settings"].update(max_tokens="long"),
        lambda plan: plan["settings"].pop("columns"),
        lambda plan: plan.update(given=-1),
    ]
    for edit in edits:
        changed = json.loads(json.dumps(good))
        edit(changed)
        for content in (changed, {key: value for key, value in changed.items() if key != "checksum"}):
            plan.write_text(json.dumps(content))
            with pytest.raises(HeedError, match=r"plan\.json: damaged \(.*choose another --run"):
                plans.read_plan(shards)


@pytest.mark.parametrize("kind", ["hashes", "shard"])
def test_text_that_is_replaced_while_it_is_prepared_is_refused_by_name(tmp_path, text, tokenizer, kind):
    (src, _), _ = text
    made = preparation(settings(*text, drop_duplicates=kind == "hashes"), tmp_path / "run", given=tokenizer)
    made.begin()
    worker = ShardWorker(str(tmp_path / "run/data/shards"), 1)
    worker.open()
    assert "done" in worker.attempt(0)
    state = os.stat(src)
    (tmp_path / "other").write_text(Path(src).read_text().replace("a", "o", 1))
    os.utime(tmp_path / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(tmp_path / "other", src)
    assert "train.en: is not what it was when it was planned" in worker.attempt(1)["stop"]
    worker.close()


def test_text_that_has_changed_is_refused_and_text_that_was_moved_is_not(tmp_path, text, tokenizer):
    (src, tgt), dev = text
    prepared(settings([src, tgt], dev), tmp_path / "run", given=tokenizer)
    moved = tmp_path / "elsewhere.en"
    moved.write_bytes(Path(src).read_bytes())
    prepared(settings([str(moved), tgt], dev), tmp_path / "run", given=tokenizer)
    moved.write_text(moved.read_text().replace("a", "b"))
    with pytest.raises(HeedError, match=r"elsewhere.en: changed since this run prepared it"):
        prepared(settings([str(moved), tgt], dev), tmp_path / "run", given=tokenizer)
    with pytest.raises(HeedError, match="stands for 2 sources now; it was 1"):
        both = [str(tmp_path / "train*.en"), str(tmp_path / "train*.de")]
        write_lines(tmp_path / "train-2.en", ["x"])
        write_lines(tmp_path / "train-2.de", ["x"])
        prepared(settings(both, dev), tmp_path / "run", given=tokenizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (["one", "two"], "train.en has 240 lines, .*short.de 2: both sides of a corpus must have the same number"),
        (None, "missing.de: no such file"),
    ],
)
def test_sides_that_do_not_fit_are_refused(tmp_path, text, content, message):
    (src, _), dev = text
    tgt = str(tmp_path / "missing.de") if content is None else write_lines(tmp_path / "short.de", content)
    with pytest.raises(HeedError, match=message):
        prepared(settings([src, tgt], dev), tmp_path / "run")


def test_files_of_a_folder_or_a_pattern_that_do_not_fit_are_named(tmp_path):
    (tmp_path / "a.en").write_text("x\n")
    (tmp_path / "b.en").write_text("x\n")
    for names, message in (
        ([str(tmp_path)], r"a\.en has no partner beside it, a\.de"),
        ([str(tmp_path / "*.fr")], r"no file matches .*\*\.fr"),
        ([str(tmp_path / "*.en"), str(tmp_path / "a.en")], "the wildcards of both sides must stand for the same"),
        ([str(tmp_path / "a.en")], r"a\.en holds sources, and no targets follow"),
    ):
        with pytest.raises(HeedError, match=message):
            training_files(names, src="en", tgt="de")
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in ("a.en", "a.de", "a.en.gz"):
        (twice / name).write_bytes(b"")
    with pytest.raises(HeedError, match=r"a\.en and .*a\.en\.gz are one text"):
        training_files([str(twice)], src="en", tgt="de")
    (twice / "a.en.gz").unlink()
    (twice / os.fsdecode(b"caf\xe9.tsv")).write_bytes(b"a\tb\n")
    for names in ([str(twice)], [str(twice / "*.tsv")]):
        with pytest.raises(HeedError, match=r"caf\\udce9\.tsv' in .*: its name is not UTF-8; rename it"):
            training_files(names, src="en", tgt="de")
    (tmp_path / "none").mkdir()
    with pytest.raises(HeedError, match=r"has no files NAME\.en and NAME\.de"):
        training_files([str(tmp_path / "none")], src="en", tgt="de")


def test_files_of_two_patterns_are_paired_by_what_their_wildcards_stand_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "web/a.en web/b.en web/a.de web/c.de one/a.en one/b.de p/x.en.gz p/y.en p/x.de p/y.de.GZ".split():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    within = ("m/en/en-1.en.txt", "m/en/1.en.txt", "m/de/de-1.de.txt", "m/de/1.de.txt")
    nested = ("n/1/t.en", "n/1/t.de", "n/t.en", "n/t.de")
    for name in ("en/news.en", "en/1_en.txt", "de/news.de", "de/1_de.txt", *within, *nested):
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).touch()

    def paired(*names):
        return [f"{src} {tgt}" for src, tgt in training_files(names, src="en", tgt="de")]

    assert paired("p/*.en*", "p/*.de*") == ["p/x.en.gz p/x.de", "p/y.en p/y.de.GZ"]
    assert paired("m/en/*", "m/de/*") == ["m/en/1.en.txt m/de/1.de.txt", "m/en/en-1.en.txt m/de/de-1.de.txt"]
    assert paired("en/*", "de/*") == ["en/1_en.txt de/1_de.txt", "en/news.en de/news.de"]
    assert paired("n/**/?.en", "n/**/[!x].de") == ["n/1/t.en n/1/t.de", "n/t.en n/t.de"]
    assert paired("one/*.en", "one/b.de") == ["one/a.en one/b.de"]
    for names, alone in (
        (("web/*.en", "web/*.de"), "web/b.en, web/c.de"),
        (("one/*.en", "one/*.de"), "one/a.en, one/b.de"),
    ):
        with pytest.raises(HeedError, match=f"without a partner: {alone}"):
            paired(*names)


def test_what_a_folder_holds_and_is_not_read_is_named(tmp_path):
    for name in ("a.en", "a.de", "b.EN", "b.en.xz", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    lines: list[str] = []
    assert len(training_files([str(tmp_path)], src="en", tgt="de", report=lines.append)) == 1
    assert lines == [f"data.train: {tmp_path}: not read: 'b.EN', 'b.en.xz', 'sub'/."]
    (tmp_path / "c.de").touch()
    with pytest.raises(HeedError, match=r"c\.de has no partner beside it, c\.en"):
        training_files([str(tmp_path)], src="en", tgt="de")


def test_a_file_of_both_sides_is_no_side_of_others(tmp_path):
    (tmp_path / "a.en").write_text("x\n")
    (tmp_path / "b.jsonl").write_text('{"en": "x", "de": "y"}\n')
    with pytest.raises(HeedError, match=r"b\.jsonl holds both sides, so it is no target of .*a\.en"):
        training_files([str(tmp_path / "a.en"), str(tmp_path / "b.jsonl")], src="en", tgt="de")
    with pytest.raises(HeedError, match=r"b\.jsonl: holds both sides; data\.dev takes it alone"):
        refuse_both_sides((tmp_path / "a.en", tmp_path / "b.jsonl"), "data.dev")
    refuse_both_sides((tmp_path / "b.jsonl", tmp_path / "b.jsonl"), "data.dev")


def test_pairs_of_one_language_have_two_columns(tmp_path, tokenizer):
    data = settings(["pairs.tsv"], ("dev.en", "dev.de"))
    assert data.model_copy(update={"tgt": "en"}).column_names == ("source", "target")
    assert data.column_names == ("en", "de")
    with pytest.raises(HeedError, match=r"data\.columns names one column twice"):
        settings(["pairs.tsv"], ("dev.en", "dev.de"), columns=["a", "a"])


def test_of_equal_numbers_all_but_the_first_are_copies():
    numbers = np.array([5, 2, 5, 2**64 - 1, 2, 5], np.uint64)
    assert filters.later_copies(numbers).tolist() == [False, False, True, False, True, True]
    assert filters.later_copies(numbers[:0]).tolist() == []


def test_text_in_another_language_is_left_out_if_it_is_long_enough_to_tell():
    pytest.importorskip("py3langid")
    data = settings(["pairs.tsv"], ("dev.en", "dev.de"), check_languages=True)
    checks = filters.PairFilter(data)
    assert filters.PairFilter(data.model_copy(update={"src": "en_US"})).reason("Berlin", "Paris") is None
    english = "The president of the committee opened the meeting in the morning."
    german = "Der Vorsitzende des Ausschusses eröffnete am Morgen die Sitzung."
    assert checks.reason(english, german) is None and checks.reason("Berlin", "Paris") is None
    assert checks.reason(english, english) == "with a target in another language (data.check_languages)"
    assert checks.reason(german, german) == "with a source in another language (data.check_languages)"
    japanese = [
        "今日は朝から雨が降っています。",
        "私は学生です。",
        "新しい店ができました。",
        "東京タワーです",
        "はい。",
    ]
    for src, caught in (("en", 5), ("zho_Hans", 5), ("ja", 0), ("jpn_Jpan", 0)):
        checks = filters.PairFilter(data.model_copy(update={"src": src}))
        assert sum(checks.reason(line, "Ja") is not None for line in japanese) == caught, src
    for code in ("deu_Latn", "ger", "de-AT"):
        checks = filters.PairFilter(data.model_copy(update={"tgt": code}))
        assert checks.reason("He lives in 東京", german) is None and checks.reason(english, english) is not None
    for code in "nb nob_Latn sh iw fil zsm_Latn yue_Hant".split():
        filters.PairFilter(data.model_copy(update={"src": code}))
    with pytest.raises(HeedError, match="does not know xx"):
        filters.PairFilter(data.model_copy(update={"src": "xx"}))
