"""Ranges of rows: whatever the lines and the packing, parts hold every row once, in order."""

import gzip
import json
import subprocess
import sys
import time
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.apps.cluster.plan import Model, Work, make_plan
from heed.apps.cluster.writers import writer_of
from heed.data.reading.columns import examine
from heed.data.reading.json_lines import MAX_KEYS, infer_schema, schema_of
from heed.data.reading.lines import MAX_LINE_BYTES, lines_of_pieces
from heed.data.reading.pairs import Sources
from heed.data.reading.rows import Columns
from heed.errors import HeedError
from heed.leases.plan import Range
from heed.leases.storage import open_file, unpacked

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff"), max_size=12)


def packed(content: bytes, ending: str) -> bytes:
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        # Two frames, as of files that were put together.
        return zstandard.compress(content[:7]) + zstandard.compress(content[7:])
    return gzip.compress(content) if ending == ".gz" else content


def work_of(part_lines):
    model, columns = Model("model", "hash"), Columns(("text",))
    return Work(
        task="translate",
        model=model,
        settings={},
        precision="fp32",
        columns=columns,
        output="jsonl",
        part_lines=part_lines,
    )


def rows_by_part(names, part_lines):
    work = work_of(part_lines)
    plan = make_plan(names, work)
    sources = Sources([[name] for name in names], work.columns, output="jsonl")
    parts = [list(chain.from_iterable(rows.content for rows in sources.read(part))) for part in plan.parts]
    sources.close()
    return parts


def only_batch(path):
    work = work_of(10)
    sources = Sources([[str(path)]], work.columns, output="jsonl")
    (rows,) = sources.read(make_plan([str(path)], work).parts[0])
    sources.close()
    return rows


def test_rows_are_written_by_the_columns_that_are_read_and_whatever_else_they_hold(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "a", "translation": "b"}\n{"translation": "d", "lang": null, "text": "c"}\n'
        '{"text": "e", "translation": "f", "user": "\\ud83d"}\n'
    )
    columns = ("text", "translation")
    written = {}
    for output in ("text", "jsonl"):
        sources = Sources([[str(tmp_path / "rows.jsonl")]], Columns(columns), output=output)
        writer = writer_of(tmp_path / output, output)
        (rows,) = sources.read([Range(0, 0, 3)])
        writer.add(rows, [0, 1, 2], {"score": [0.5, 0.25, 1.0]})
        writer.close()
        sources.close()
        written[output] = (tmp_path / output).read_text().splitlines()
    assert written["text"] == ["a\tb\t0.5000", "c\td\t0.2500", "e\tf\t1.0000"]
    rows = list(map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()))
    assert [json.loads(line) for line in written["jsonl"]] == [
        row | {"score": score} for row, score in zip(rows, (0.5, 0.25, 1.0), strict=True)
    ]


def test_lines_that_end_in_two_carriage_returns_are_no_old_macs(tmp_path):
    (tmp_path / "twice.txt").write_bytes(b"Hello\r\r\nWorld\r\r\n")
    assert examine(str(tmp_path / "twice.txt"), ("text",), every=10, before=0).rows == 2
    (tmp_path / "mac.txt").write_bytes(b"Hello\rWorld\r")
    with pytest.raises(HeedError, match="2 carriage returns and no line feed"):
        examine(str(tmp_path / "mac.txt"), ("text",), every=10, before=0)


def test_parquet_without_the_columns_or_with_damaged_pages_is_one_line(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pairs.parquet"
    rows = {"en": [f"sentence {n}" for n in range(2_000)], "n": list(range(2_000))}
    parquet.write_table(arrow.table(rows), path, compression="zstd", use_dictionary=False)
    for columns, message in (
        (("en", "de"), "no column 'de'; it has 'en', 'n'"),
        (("en", "n"), "column 'n' holds int64, not"),
    ):
        with pytest.raises(HeedError, match=rf"pairs\.parquet: .*{message}"):
            examine(str(path), columns, every=10, before=0)
    content = bytearray(path.read_bytes())
    content[40:400] = b"\xff" * 360
    path.write_bytes(content)
    sources = Sources([[str(path)]], Columns(("en",)), output="jsonl")
    with pytest.raises(HeedError, match=r"pairs\.parquet: damaged or not a Parquet file \("):
        list(sources.read([Range(0, 0, 2_000)]))
    sources.close()


def test_of_parquet_only_the_columns_that_are_needed_are_decoded(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = arrow.array([1], arrow.timestamp("ns"))  # which Python's datetime does not hold
    parquet.write_table(arrow.table({"text": ["a"], "at": times}), tmp_path / "rows.parquet")
    sources = Sources([[str(tmp_path / "rows.parquet")]], Columns(("text",)), output="text")
    (rows,) = sources.read([Range(0, 0, 1)])
    sources.close()
    assert (rows.texts, rows.content) == ([("a",)], [{"text": "a"}])


def test_a_schema_has_the_columns_of_all_first_rows(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b", "domain": "news"}\n')
    assert schema_of(infer_schema(str(tmp_path / "rows.jsonl"))).names == ["text", "domain"]
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "id": 1000000000000000000000000000000}\n')
    with pytest.raises(HeedError, match=r"rows\.jsonl: its rows do not fit into columns"):
        infer_schema(str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@given(files=st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=3), part_lines=st.integers(1, 9))
def test_parts_hold_every_row_once(tmp_path_factory, ending, files, part_lines):
    folder = tmp_path_factory.mktemp("rows")
    if not any(map(any, files)):
        files = [*files, ["one"]]
    names = []
    for number, lines in enumerate(files):
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / f"{number}.txt{ending}").write_bytes(packed(content, ending))
        names.append(str(folder / f"{number}.txt{ending}"))
    parts = rows_by_part(names, part_lines)
    assert [row["text"] for row in chain.from_iterable(parts)] == [line for lines in files for line in lines]
    assert all(len(part) == part_lines for part in parts[:-1]) and 0 < len(parts[-1]) <= part_lines


@given(content=st.binary(max_size=60).map(lambda x: x.replace(b"\0", b"\n")), at=st.lists(st.integers(0, 60)))
def test_lines_do_not_depend_on_where_the_pieces_end(content, at):
    cuts = [0, *sorted(min(one, len(content)) for one in at), len(content)]
    pieces = [content[a:b] for a, b in pairwise(cuts)]
    expected = content.split(b"\n")
    assert list(lines_of_pieces(pieces)) == (expected if expected[-1] else expected[:-1])


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\nbad \xff\ntwo")
    rows = only_batch(path)
    assert [text for (text,) in rows.texts] == ["one", "", "", "two"]
    assert rows.faults == {
        1: "longer than 1,048,576 bytes",
        2: "byte 5 (0xff) is not UTF-8",
    }


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("nope", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"id": 1}', "'text' is missing"),
        ('{"text": null}', "'text' is not text"),
        ('{"text": "\\ud800"}', "'text' holds half a surrogate pair, which is no text"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_json_is_a_bad_row(tmp_path, line, fault):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "one"}) + "\n" + line + "\n")
    assert only_batch(path).faults == {1: fault}


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_truncated_file_is_refused(tmp_path, ending):
    path = tmp_path / f"lines.txt{ending}"
    path.write_bytes(packed(b"seven hundred\n" * 1000, ending)[:-5])
    with pytest.raises(HeedError, match="damaged"):
        examine(str(path), ["text"], every=10, before=0)


def test_another_kind_of_file_is_named(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(HeedError, match="compressed with gzip"):
        examine(str(path), ["text"], every=10, before=0)


def test_rows_of_json_with_thousands_of_keys_are_bad_rows_and_no_columns(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.jsonl"
    many = {f"k{n}": n for n in range(MAX_KEYS + 1)}
    inside = [{"text": "b", "of": many}, {"text": "c", "of": [{key: 1} for key in many]}, {"text": "d", **many}]
    alike = {"text": "e", "of": [{"key": n} for n in range(MAX_KEYS + 1)]}
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"text": "a"}, *inside, alike)))
    assert only_batch(path).faults == dict.fromkeys((1, 2, 3), "has more than 4,096 keys")
    path.write_text("".join(json.dumps({"text": "a", f"k{n}": {f"l{n}": 1}}) + "\n" for n in range(900)))
    infer_schema(str(path))
    rows = [{"text": "a", "of": {f"k{n}-{m}": 1 for m in range(9)}} for n in range(900)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(HeedError, match=r"rows\.jsonl: its first rows have more than 4,096 different keys"):
        infer_schema(str(path))


# Reads a file; writes how many rows were bad, one fault, and the most bytes that Arrow and Python took.
READING = """
import sys, tracemalloc
import pyarrow
from heed.data.reading.columns import examine
from heed.data.reading.pairs import Sources
from heed.data.reading.rows import Columns
from heed.leases.plan import Range
name, output = sys.argv[1:]
sources = Sources([[name]], Columns(("text",)), output=output)
n_rows = examine(name, ("text",), every=10, before=0).rows
tracemalloc.start()
faults = [fault for rows in sources.read([Range(0, 0, n_rows)]) for fault in rows.faults.values()]
sources.close()
print(len(faults), (pyarrow.default_memory_pool().max_memory() + tracemalloc.get_traced_memory()[1]) // 2**20)
print((faults or [None])[0])
"""


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """Files of Parquet that unpack to much: large rows, rows that share a large one, a long list beside the text."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("bombs")
    rows = arrow.table({"text": ["a" * 10_000_000] * 10})
    parquet.write_table(rows, folder / "rows.parquet", compression="zstd", use_dictionary=False)
    text = arrow.DictionaryArray.from_arrays(arrow.array([0] * 60 + [1], arrow.int32()), ["a" * 5_000_000, "b"])
    table = arrow.table({"text": text})
    parquet.write_table(table, folder / "shared.parquet", compression="zstd", dictionary_pagesize_limit=2**30)
    lists = arrow.ListArray.from_arrays([0, 10_000_000, 10_000_001], np.zeros(10_000_001, np.int64))
    table = arrow.table({"text": ["a", "b"], "numbers": lists})
    parquet.write_table(table, folder / "lists.parquet", compression="zstd")
    assert all(path.stat().st_size < 50_000 for path in folder.iterdir())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("output", ["text", "jsonl", pytest.param("parquet", marks=pytest.mark.soak)])
def test_parquet_of_few_bytes_that_unpacks_to_gigabytes_takes_little_memory(bombs, output):
    too_large = "in a row group that unpacks to more than 100 times its size"
    expected = {
        "rows": (10, too_large),
        "shared": (60, "longer than 1,048,576 bytes"),
        "lists": (0, "None") if output == "text" else (2, too_large),  # text has no place for them
    }
    for name, fault in expected.items():
        command = [sys.executable, "-c", READING, bombs / f"{name}.parquet", output]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        numbers, found = done.stdout.splitlines()
        n_bad, megabytes = map(int, numbers.split())
        assert (n_bad, found) == fault and megabytes < 256, (name, done.stdout)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_bomb_of_blank_lines_is_counted_about_as_fast_as_it_is_unpacked(tmp_path, ending):
    path = tmp_path / f"lines.txt{ending}"
    path.write_bytes(packed(b"one\n" + b"\n" * 2**24, ending))
    begun = time.process_time()
    with open_file(str(path)) as file:
        assert sum(map(len, unpacked(file, str(path)))) == 2**24 + 4
    unpacking = time.process_time() - begun
    begun = time.process_time()
    assert examine(str(path), ("text",), every=1000, before=0).rows == 2**24 + 1
    assert time.process_time() - begun < 10 * unpacking + 0.5
