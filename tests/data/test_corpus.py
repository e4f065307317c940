"""What lies in a corpus folder is checked before it is used, even where the manifest fits it."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.data.corpus import shard as corpus
from heed.data.corpus.shard import STORE_FILES, ParallelCorpus, write_corpus
from heed.errors import HeedError
from heed.runtime.manifest import MANIFEST, seal

VOCAB_SIZE = 60
PAIRS = [([3, 4, 5], [6]), ([], [7, 8]), ([59], [9] * 20), ([10] * 30, [])]


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path / "c", PAIRS, vocab_size=VOCAB_SIZE).folder


def resealed(folder):
    """The folder, with a manifest of what is there now: whoever changes a file can change that too."""
    (folder / MANIFEST).unlink()
    seal(folder)
    return folder


def set_fact(name, value):
    def tamper(folder):
        facts = json.loads((folder / "corpus.json").read_text()) | {name: value}
        (folder / "corpus.json").write_text(json.dumps(facts))

    return tamper


def set_array(name, change):
    def tamper(folder):
        np.save(folder / name, change(np.load(folder / name)), allow_pickle=True)

    return tamper


def set_bytes(name, change):
    def tamper(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return tamper


def changed(place, value):
    def change(array):
        array[place] = value
        return array

    return change


HUGE_HEADER = np.lib.format.magic(1, 0) + b"\xf0\xff" + b"(" * 0xFFF0
TAMPERED = {
    "objects": (set_fact("dtype", "object"), "corpus.json: dtype is 'object', expected uint16 or uint32"),
    "signed ids": (set_fact("dtype", "int64"), "dtype is 'int64'"),
    "ids of another size": (set_fact("dtype", "uint32"), "src.bin has the id 3,866,629"),
    "no type": (set_fact("dtype", None), "dtype is None"),
    "a list of types": (set_fact("dtype", [["a", "O"]]), "dtype is"),
    "more pairs": (set_fact("n_pairs", 5), "corpus.json is .*expected {'dtype': 'uint16', 'n_pairs': 4"),
    "text for pairs": (set_fact("n_pairs", "4"), "corpus.json is"),
    "more tokens": (set_fact("n_src_tokens", 2**62), "corpus.json is"),
    "no tokens": (set_fact("n_tgt_tokens", 0), "corpus.json is"),
    "half an id": (set_bytes("src.bin", lambda ids: ids + b"\0"), "src.bin: 69 bytes are no whole number"),
    "ids without a sentence": (set_bytes("tgt.bin", lambda ids: ids + b"\3\0"), "goes from 0 to 23, expected 0 to 24"),
    "fewer ids": (set_bytes("src.bin", lambda ids: ids[:-2]), "src.offsets.npy goes from 0 to 34, expected 0 to 33"),
    "no ids": (set_bytes("src.bin", lambda ids: b""), "expected 0 to 0"),
    "an id of no token": (set_bytes("src.bin", lambda ids: b"\x3c\0" + ids[2:]), "src.bin has the id 60; the vocab"),
    "the largest id": (set_bytes("tgt.bin", lambda ids: ids[:-2] + b"\xff\xff"), "tgt.bin has the id 65,535; the"),
    "offsets that run backwards": (set_array("src.offsets.npy", changed(2, 1)), "src.offsets.npy runs backwards"),
    "offsets beyond the ids": (set_array("src.offsets.npy", changed(-1, 10**15)), "to 1,000,000,000,000,000, expected"),
    "a large offset within": (set_array("tgt.offsets.npy", changed(2, 10**15)), "tgt.offsets.npy runs backwards"),
    "offsets below zero": (set_array("tgt.offsets.npy", changed(0, -5)), "tgt.offsets.npy goes from -5"),
    "offsets of floats": (set_array("src.offsets.npy", lambda a: a.astype(float)), "float64 of shape"),
    "offsets of other bytes": (set_array("src.offsets.npy", lambda a: a.astype(">i8")), ">i8 of shape"),
    "offsets of objects": (set_array("src.offsets.npy", lambda a: a.astype(object)), "src.offsets.npy: damaged"),
    "offsets in a table": (set_array("src.offsets.npy", lambda a: a[None]), r"int64 of shape \(1, 5\)"),
    "offsets of nothing": (set_array("src.offsets.npy", lambda a: a[:0]), r"int64 of shape \(0,\)"),
    "a number as offsets": (set_array("src.offsets.npy", lambda a: a[0]), r"int64 of shape \(\)"),
    "a target less": (set_array("tgt.offsets.npy", lambda a: np.delete(a, 1)), "3 targets, 4 sources"),
    "fewer lines": (set_array("lines.npy", lambda a: a[:-1]), r"lines.npy: uint32 of shape \(3,\), expected"),
    "signed lines": (set_array("lines.npy", lambda a: a.astype(np.int32)), "lines.npy: int32"),
    "offsets cut short": (set_bytes("src.offsets.npy", lambda data: data[:-8]), "src.offsets.npy: damaged"),
    "an archive": (set_bytes("lines.npy", lambda data: b"PK\3\4" + data), "lines.npy: damaged"),
    "brackets for a header": (set_bytes("lines.npy", lambda data: HUGE_HEADER), "lines.npy: damaged"),
    "nothing": (set_bytes("lines.npy", lambda data: b""), "lines.npy: damaged"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_folder_that_was_tampered_with_and_sealed_again_is_refused(folder, case):
    tamper, part = TAMPERED[case]
    tamper(folder)
    with pytest.raises(HeedError, match=part) as caught:
        ParallelCorpus(resealed(folder), vocab_size=VOCAB_SIZE)
    message = str(caught.value)
    assert message.startswith(f"{folder}: not a prepared corpus (") and message.endswith(
        "Delete it to prepare it again."
    )
    assert "\n" not in message and len(message) < 500


def test_a_vocabulary_that_has_shrunk_is_named(folder):
    assert len(ParallelCorpus(folder, vocab_size=VOCAB_SIZE)) == 4
    with pytest.raises(HeedError, match=r"src.bin has the id 59; the vocabulary has 59\.\) Delete it"):
        ParallelCorpus(folder, vocab_size=59)


@pytest.mark.parametrize("n_bytes", [0, 2, 60])
def test_a_file_that_is_cut_short_while_it_is_open_is_an_error_and_no_signal(folder, n_bytes):
    corpus, before = ParallelCorpus(folder, vocab_size=VOCAB_SIZE), (folder / "src.bin").stat()
    os.truncate(folder / "src.bin", n_bytes)
    with pytest.raises(HeedError, match="was changed while it was in use; delete it"):
        corpus.end_to_end("src", np.array([3, 0]))
    os.utime(folder / "src.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(HeedError, match="was changed while it was in use"):
        corpus.end_to_end("src", np.array([3, 0]))


def test_a_corpus_of_no_pairs_and_one_of_blank_sides_can_be_read(tmp_path):
    assert len(write_corpus(tmp_path / "none", [], vocab_size=5)) == 0
    blank = write_corpus(tmp_path / "blank", [([], []), ([], [])], vocab_size=70_000)
    assert [(len(src), len(tgt)) for src, tgt in (blank[0], blank[1])] == [(0, 0), (0, 0)]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(STORE_FILES), st.integers(0, 2**31), st.binary(min_size=0, max_size=3), st.integers(0, 2)
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=n_examples(50))
@given(CHANGES)
def test_bytes_at_random_give_an_error_or_a_corpus_with_ids_of_the_vocabulary(tmp_path_factory, changes):
    folder = write_corpus(tmp_path_factory.mktemp("random") / "c", PAIRS, vocab_size=VOCAB_SIZE).folder
    for name, place, new, n_replaced in changes:
        data = (folder / name).read_bytes()
        at = place % (len(data) + 1)
        (folder / name).write_bytes(data[:at] + new + data[at + n_replaced :])
    try:
        corpus = ParallelCorpus(resealed(folder), vocab_size=VOCAB_SIZE)
    except HeedError as error:
        assert "Delete it to prepare it again." in str(error)
        return
    for i in range(len(corpus)):
        for side, ids in zip(("src", "tgt"), corpus[i], strict=True):
            assert all(0 <= int(each) < VOCAB_SIZE for each in ids)
            assert corpus.end_to_end(side, np.array([i]))[0].tolist() == ids.tolist()
    assert len(corpus.lines) == len(corpus) == len(corpus.lengths[0]) == len(corpus.lengths[1])


def test_ids_are_counted_a_piece_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CHUNK_NUMBERS", 2)
    written = write_corpus(tmp_path / "c", [([5, 6], [7]), ([8], [9, 7, 7])], vocab_size=10)
    assert written.counts("tgt", vocab_size=10).tolist() == [0, 0, 0, 0, 0, 0, 0, 3, 0, 1]
    assert written.counts("src", vocab_size=10).tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 1, 0]
