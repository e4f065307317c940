"""Dev pairs split off the training text by a hash."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.data.corpora.download import Corpora
from heed.data.preparation.job import prepare
from heed.data.reading.dev_split import DevSplit, pair_hash
from heed.data.reading.pairs import read_pairs
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.runs.recipe import read_recipe
from heed.runs.tasks.translation_task import TranslationTask
from heed.text.tokenizer import TokenizerSettings

CORPUS = st.lists(st.integers(0, 80).map(lambda n: (f"a{n // 3}", f"b{n}")), min_size=60, max_size=90)  # with copies


def write(folder: Path, pairs, name: str = "train") -> tuple[Path, Path]:
    files = folder / f"{name}.en", folder / f"{name}.de"
    for side, file in enumerate(files):
        file.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    return files


def split(size, **changed) -> DevSplit:
    return DevSplit(size=size, **{"max_tokens": 256, "max_ratio": 9.0} | changed)


def chosen(size, files) -> list[tuple[str, str]]:
    return [pair for _, pair in split(size).pairs(lambda: enumerate(read_pairs(files)), name=str(files[0]))]


@settings(max_examples=n_examples(25))
@given(CORPUS, CORPUS, st.floats(0.02, 0.3))
def test_appended_text_moves_no_pair_where_dev_is_a_share(tmp_path_factory, first, more, share):
    folder = tmp_path_factory.mktemp("share")
    try:
        before = chosen(share, write(folder, first))
        after = chosen(share, write(folder, first + more))
    except HeedError:  # none, or more than half
        return
    assert set(before) == set(after) & set(first)
    assert len(set(before)) == len(before)


@settings(max_examples=n_examples(25))
@given(CORPUS, CORPUS, st.integers(1, 5))
def test_text_appended_to_a_number_of_pairs_moves_none_from_training_to_dev(tmp_path_factory, first, more, size):
    folder = tmp_path_factory.mktemp("number")
    try:
        before = chosen(size, write(folder, first))
        after = chosen(size, write(folder, first + more))
    except HeedError:
        return
    assert len(set(before)) == len(set(after)) == size
    assert set(after) & set(first) <= set(before)
    assert sorted(before, key=lambda pair: pair_hash(*pair)) == sorted(set(first), key=lambda p: pair_hash(*p))[:size]


def test_the_order_of_the_lines_does_not_matter_and_dev_comes_from_everywhere(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(4000)]
    found = [pair for pair in chosen(200, write(tmp_path, pairs))]
    assert set(found) == set(chosen(200, write(tmp_path, pairs[::-1])))
    in_quarters = [len(set(found) & set(pairs[i : i + 1000])) for i in range(0, 4000, 1000)]
    assert sum(in_quarters) == 200 and min(in_quarters) > 25  # 50 expected, standard deviation 6
    assert 20 < len(chosen(0.01, write(tmp_path, pairs))) < 65  # 40, 6


def test_the_hash_is_that_of_every_machine():
    # printf 'a\nb' | b2sum --length 64
    assert f"{pair_hash('a', 'b'):016x}" == "a76de9f2d561975f"


def test_pairs_that_training_would_leave_out_are_not_chosen(tmp_path):
    good = [(f"source {i}", f"target {i}") for i in range(30)]
    odd = [
        ("", "x"),
        ("x", " \t"),
        ("long " * 300, "long " * 300),
        ("x", "much longer"),
        ("x\r\r", "x"),
    ]
    files = write(tmp_path, [pair for i in range(30) for pair in (good[i], *odd)])
    with pytest.raises(HeedError, match=r"data.dev = 40, but only 30 different pairs of .*train.en are suitable"):
        chosen(40, files)
    assert set(chosen(30, files)) <= set(good)


@pytest.mark.parametrize(
    ("size", "pairs", "message"),
    [
        (6, 10, "data.dev = 6 is more than half of the 10 pairs of .*train.en"),
        (0.001, 10, "data.dev = 0.001 chooses none of the 10 pairs"),
    ],
)
def test_a_text_that_is_too_small_is_refused(tmp_path, size, pairs, message):
    with pytest.raises(HeedError, match=message):
        chosen(size, write(tmp_path, [(f"a{i}", f"b{i}") for i in range(pairs)]))


def test_copies_of_dev_that_are_most_of_the_text_are_refused(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(20)]
    (first,) = chosen(1, write(tmp_path, pairs))
    with pytest.raises(HeedError, match="data.dev = 1 chooses 31 of the 50 pairs .* copies included"):
        chosen(1, write(tmp_path, pairs + [first] * 30))


def prepared(folder: Path, files: TextFiles, dev, report=lambda line: None, data: str = "data"):
    data_settings = DataSettings(src="en", tgt="de", train=["s", "t"], dev=dev)
    return prepare(files, data_settings, TokenizerSettings(vocab_size=600), folder=folder / data, report=report)


def test_training_leaves_out_dev_and_its_copies_and_every_other_line_keeps_its_place(tmp_path):
    pairs = [(f"source {i}", f"target {i}") for i in range(200)] * 2
    lines: list[str] = []
    more = write(tmp_path, [("source again", "target 7"), *(pairs[i] for i in range(200))], "more")
    # The second pair of files is a teacher's: other translations of the same sources.
    taught = write(tmp_path, [(src, f"taught {i}") for i, (src, _) in enumerate(pairs)], "taught")
    files = TextFiles(
        train=(write(tmp_path, pairs), taught, more),
        dev=(tmp_path / "data" / "dev.src", tmp_path / "data" / "dev.tgt"),
        dev_split=split(20),
    )
    found = prepared(tmp_path, files, 20, lines.append)
    dev = list(zip(*(side.read_text().splitlines() for side in files.dev), strict=True))
    assert len(found.dev) == len(dev) == 20 and set(dev) < set(pairs)

    decode = found.tokenizer.decode
    train = [tuple(decode(ids.tolist()) for ids in found.train[row]) for row in range(len(found.train))]
    assert not {src for src, _ in train} & {src for src, _ in dev}
    sides = {str(src): (src.read_text().splitlines(), tgt.read_text().splitlines()) for src, tgt in files.train}
    for pair, line in zip(train, found.train.lines, strict=True):
        file, number = found.train.place(int(line))
        assert pair == (sides[file][0][number - 1], sides[file][1][number - 1])
    report = json.loads((tmp_path / "data" / "train.report.json").read_text())
    n_left_out = 40 + 40 + 20 + ("target 7" in {tgt for _, tgt in dev})
    assert report["dropped"] == {"held out for dev (data.dev)": n_left_out}
    assert report["kept"] == len(train) == 400 + 400 + 201 - n_left_out
    rows = [row.split("\t") for row in (tmp_path / "data" / "train.dropped.tsv").read_text().splitlines()]
    assert {(file, sides[file][0][int(line) - 1]) for line, _, file in rows if file == str(files.train[0][0])} == {
        (str(files.train[0][0]), src) for src, _ in dev
    }
    assert any(line.startswith("Splitting 20 pairs off") for line in lines)

    lines.clear()
    prepared(tmp_path, files, 20, lines.append)  # all is there
    assert not lines
    for side in files.dev:
        side.unlink()
    prepared(tmp_path, files, 20, lines.append)
    assert dev == list(zip(*(side.read_text().splitlines() for side in files.dev), strict=True))


def test_the_text_may_be_corrected_until_it_is_prepared(tmp_path):
    files = TextFiles(
        train=(write(tmp_path, [(f"x {i}", f"{i}") for i in range(40)]),),
        dev=(tmp_path / "data" / "dev.src", tmp_path / "data" / "dev.tgt"),
        dev_split=split(0.4),
        tests={"none": (tmp_path / "no.en", tmp_path / "no.de")},
    )
    (tmp_path / "no.en").write_text("one\n")
    (tmp_path / "no.de").write_text("")
    with pytest.raises(HeedError, match="both sides"):
        prepared(tmp_path, files, 0.4)
    (tmp_path / "no.de").write_text("eins\n")
    write(tmp_path, [(f"y {i}", f"{i}") for i in range(40)])
    prepared(tmp_path, files, 0.4)
    assert {line[0] for line in files.dev[0].read_text().splitlines()} == {"y"}


@pytest.mark.parametrize("dev", [0, -1, 0.0, -0.1, 0.5, 1.0, 500.0, True, "dev.en", {"a": 1}, float("nan")])
def test_what_is_no_size_of_dev_is_refused_with_what_would_be(dev):
    with pytest.raises(
        HeedError, match="expected two files, .*, a number of pairs .* 500, or their share, such as 0.01"
    ):
        DataSettings(src="en", tgt="de", train=["a", "b"], dev=dev)


def test_dev_is_drawn_from_all_files_and_shares_no_side_with_training_whatever_the_shards(tmp_path):
    pairs = [(f"source {i}", f"target {i // 2}") for i in range(200)]  # each target twice
    train = tuple(write(tmp_path, pairs[begin:end], f"{begin}") for begin, end in ((0, 10), (10, 110), (110, 200)))
    added = write(tmp_path, [(src, f"added {i}") for i, (src, _) in enumerate(pairs)], "added")
    found = {}
    for shard_pairs in (None, 30):
        folder = tmp_path / f"{shard_pairs}"
        files = TextFiles(
            train=(*train, added), dev=(folder / "dev.src", folder / "dev.tgt"), dev_split=split(40), n_given=3
        )
        data = DataSettings(src="en", tgt="de", train=["s", "t"], dev=40, shard_pairs=shard_pairs)
        made = prepare(files, data, TokenizerSettings(vocab_size=600), folder=folder, report=lambda line: None)
        dev = list(zip(*(side.read_text().splitlines() for side in files.dev), strict=True))
        rows = np.arange(len(made.train))
        ids, lengths = made.train.end_to_end("src", rows)
        sources = [made.tokenizer.decode(of.tolist()) for of in np.split(ids, np.cumsum(lengths)[:-1])]
        assert not set(sources) & {src for src, _ in dev} and len(dev) == 40
        lines = made.train.lines_of(rows)
        assert not {pairs[line - 1][1] for line in lines if line <= 200} & {tgt for _, tgt in dev}
        assert max(pairs.index(pair) for pair in dev) >= 110
        found[shard_pairs] = dev, sources, lines.tolist(), (folder / "tokenizer.json").read_bytes()
    assert found[None] == found[30]


def test_runs_begun_before_keep_their_rule(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in "ab":
        write(tmp_path / "texts", [(f"{name} {i}", f"{i}") for i in range(50)], name)
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[data]\nsrc = "en"\ntgt = "de"\ntrain = ["{tmp_path}/texts"]\ndev = 10\n')
    task = TranslationTask(read_recipe(str(recipe)))

    def rule(run):
        files = task.given_files(run, Corpora(tmp_path, None, str))
        return files.n_given, files.holds_out_sides

    assert rule(tmp_path / "new") == (2, True)
    (tmp_path / "old" / "data").mkdir(parents=True)
    (tmp_path / "old" / "data" / "tokenizer.json").write_text("{}")  # and no plan
    assert rule(tmp_path / "old") == (1, False)
