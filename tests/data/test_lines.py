"""Lines as they are read, ahead and with bounds."""

import gzip
import io
import threading
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.reading.lines import CHUNK_BYTES, MAX_LINE_BYTES, decode_lines, lines_of_pieces, read_lines
from heed.data.reading.stream import MAX_AHEAD, MAX_CHARACTERS, PrefetchedLines, wait_for_more, windows
from heed.errors import HeedError


@given(st.binary(max_size=50), st.integers(1, 10))
def test_lines_are_those_of_a_file_however_the_bytes_come(content, step):
    content = content.replace(b"0", b"\n")
    stream = io.BytesIO(content)
    expected = [line.removesuffix(b"\n") for line in io.BytesIO(content)]
    assert list(lines_of_pieces(iter(lambda: stream.read(step), b""))) == expected


def test_a_line_without_end_is_refused_by_its_number_before_it_fills_the_memory():
    n_read = 0

    def read(n: int) -> bytes:
        nonlocal n_read
        n_read += n
        return b"good\n" + b"\0" * (n - 5) if n_read == n else b"\0" * n

    lines = decode_lines(iter(lambda: read(CHUNK_BYTES), b""), name="x")
    assert next(lines) == "good"
    with pytest.raises(HeedError, match=r"^x, line 2: longer than 1,048,576 bytes; "):
        next(lines)
    assert n_read <= MAX_LINE_BYTES + 2 * CHUNK_BYTES


def test_the_longest_line_is_read_and_the_next_longer_one_is_not(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a" * MAX_LINE_BYTES + b"\n" + b"b" * MAX_LINE_BYTES)
    assert [len(line) for line in read_lines(path)] == [MAX_LINE_BYTES] * 2
    path.write_bytes(b"\n" + b"a" * (MAX_LINE_BYTES + 1) + b"\n")
    with pytest.raises(HeedError, match="x, line 2: longer"):
        list(read_lines(path))


def test_a_bomb_of_gzip_is_a_line_that_is_too_long(tmp_path):
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(100):
            file.write(b"a" * 2**20)
    with pytest.raises(HeedError, match=r"bomb.gz, line 1: longer than 1,048,576 bytes"):
        list(read_lines(path))


def test_arriving_items_are_given_at_once_waited_for_and_ended():
    given_items: SimpleQueue = SimpleQueue()
    arriving = PrefetchedLines(iter(given_items.get, "end"), size=len)
    assert next(arriving) is None
    given_items.put("a")
    arriving.wait()
    assert next(arriving) == "a" and next(arriving) is None
    given_items.put("end")
    arriving.wait()
    assert list(arriving) == [] and next(arriving, "over") == "over"


def test_what_reading_raises_is_raised_behind_the_items_before_it():
    def items():
        yield "a"
        raise ValueError("broken")

    arriving = PrefetchedLines(items(), size=len)
    found = []
    with pytest.raises(ValueError, match="broken"):
        while True:
            arriving.wait()
            found.append(next(arriving))
    assert found == ["a"]


@pytest.mark.parametrize(("item", "most"), [("", MAX_AHEAD), ("x" * (MAX_CHARACTERS // 4), 4)])
def test_only_so_much_is_read_ahead(item, most):
    n_read = 0
    full = threading.Event()

    def items():
        nonlocal n_read
        while True:
            n_read += 1
            if n_read > most:
                full.set()
            yield item

    arriving = PrefetchedLines(items(), size=len)
    assert full.wait(60)
    assert n_read == most + 1  # one is at hand, and there is no room for it
    assert next(arriving) == item


def test_a_window_of_long_lines_is_short():
    long, short = "x" * (MAX_CHARACTERS // 2), "y"
    found = list(windows([short, long, long, *[short] * 5], first=100, last=100, size=len))
    assert [len(window) for window in found] == [3, 5]


def test_a_stream_that_can_wait_is_not_polled():
    class Waiting(list):
        def wait(self) -> str:
            return "waited"

    assert wait_for_more(Waiting())() == "waited"
    assert wait_for_more(iter([]))() is None  # a short sleep
