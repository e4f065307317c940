"""From text files to ids: what is kept, what is dropped, what is refused."""

import gzip
import json
from collections import Counter

import pytest

from heed.config import validated
from heed.data.corpus.shard import ParallelCorpus, write_corpus
from heed.data.mix import Mix, MixPart
from heed.data.preparation.encoding import Encoder, Tally
from heed.data.preparation.job import Prepared, prepare
from heed.data.preparation.tags import in_shares
from heed.data.reading.lines import read_lines
from heed.data.reading.pairs import read_pairs
from heed.data.reading.stream import MAX_CHARACTERS
from heed.data.reading.text_files import TextFiles, TextPart
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.runtime.manifest import seal
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.tokenizer import SpecialIds, TokenizerSettings


def write(path, lines):
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def prepared_of(folder, files: TextFiles, *, vocab_size=600, report=lambda line: None, **settings) -> Prepared:
    """The data of these files, in a folder `data`; settings: of the data."""
    values = {"src": "en", "tgt": "de", "train": ["s", "t"], "dev": ["s", "t"]} | settings
    tokenizer = TokenizerSettings(vocab_size=vocab_size)
    return prepare(files, DataSettings(**values), tokenizer, folder=folder / "data", report=report)


def test_ids_on_disk_are_those_written(tmp_path):
    pairs = [([3, 4, 5], [6]), ([], [7, 8]), ([70_000], [9])]
    corpus = write_corpus(tmp_path / "c", pairs, vocab_size=80_000)
    reopened = ParallelCorpus(tmp_path / "c", vocab_size=80_000)
    assert [(src.tolist(), tgt.tolist()) for src, tgt in (reopened[i] for i in range(3))] == pairs
    assert [lengths.tolist() for lengths in corpus.lengths] == [[3, 0, 1], [1, 2, 1]]
    assert reopened.fingerprint == corpus.fingerprint
    changed = write_corpus(tmp_path / "d", [*pairs[:2], ([70_000], [10])], vocab_size=80_000)
    assert changed.fingerprint != corpus.fingerprint


@pytest.mark.slow
def test_long_lines_are_encoded_a_few_at_a_time(tmp_path, number_tokenizer):
    long, short = "one " * 50_000, "one"  # characters: 200,000 a line
    pairs = [(long, short)] * 13 + [(short, long)]
    n_read, read_before = 0, []

    def numbered():
        nonlocal n_read
        for n_read, pair in enumerate(pairs, start=1):
            yield n_read, 0, pair

    tally = Tally([("src", 14)], None)
    encoder = Encoder(number_tokenizer, max_tokens=10**6, max_ratio=10.0**6, threads=1)
    encoded = []
    for ids in encoder.encode(numbered(), tally):
        encoded.append(ids)
        read_before.append(n_read)
    assert read_before == [6] * 6 + [12] * 6 + [14] * 2  # a chunk ends with the line that brings it to 2**20 characters
    assert tally.lines.tolist() == list(range(1, 15)) and 5 * 200_003 < MAX_CHARACTERS < 6 * 200_003
    assert [list(side) for side in zip(*encoded, strict=True)] == [
        number_tokenizer.encode_lines(list(side)) for side in zip(*pairs, strict=True)
    ]


def test_line_ends_marks_and_gzip_make_no_difference(tmp_path):
    (tmp_path / "unix").write_bytes("eins\n\nzw\u2028ei".encode())
    (tmp_path / "windows").write_bytes("\ufeffeins\r\n\r\nzw\u2028ei\r\n".encode())
    (tmp_path / "zipped.gz").write_bytes(gzip.compress("eins\n\nzw\u2028ei\n".encode()))
    for name in ("unix", "windows", "zipped.gz"):
        assert list(read_lines(tmp_path / name)) == ["eins", "", "zw\u2028ei"]


def test_faulty_files_are_refused_with_file_and_line(tmp_path):
    (tmp_path / "latin1").write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(HeedError, match=r"latin1, line 2: byte 4 \(0xf6\) is not UTF-8"):
        list(read_lines(tmp_path / "latin1"))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a line\n" * 1000)[:-20])
    with pytest.raises(HeedError, match="cut.gz: damaged gzip"):
        list(read_lines(tmp_path / "cut.gz"))
    (tmp_path / "plain.gz").write_bytes(b"not zipped\n")
    with pytest.raises(HeedError, match="plain.gz: damaged gzip"):
        list(read_lines(tmp_path / "plain.gz"))


def test_sides_of_different_length_are_refused_with_both_counts(tmp_path):
    short, long = write(tmp_path / "val.de", ["x"] * 1013), write(tmp_path / "val.en", ["x"] * 1016)
    for pair, counts in (((short, long), "1,013 lines.*1,016"), ((long, short), "1,016 lines.*1,013")):
        with pytest.raises(HeedError, match=counts):
            list(read_pairs(pair))
    with pytest.raises(HeedError, match=r"short has 2 lines, .*long 4: .* \(What .*long has more is blank\.\)"):
        list(read_pairs((write(tmp_path / "short", ["x"] * 2), write(tmp_path / "long", ["x", "x", "", " "]))))
    with pytest.raises(HeedError, match="empty"):
        list(read_pairs((write(tmp_path / "e", []), write(tmp_path / "f", []))))


def test_filters_drop_for_the_reasons_that_the_report_gives(tmp_path):
    words = [f"word{i}" for i in range(50)]
    pairs = [(f"{a} {b}", f"{b} {a}") for a in words for b in words[:4]]
    odd = [("", "x"), ("x", "  "), ("word1 " * 300, "word1 " * 300), ("word1", "word2 " * 100)]
    src, tgt = zip(*[*pairs, *odd], strict=True)
    files = write(tmp_path / "s", src), write(tmp_path / "t", tgt)
    lines: list[str] = []
    texts = TextFiles(train=(files,), dev=files)
    prepared = prepared_of(tmp_path, texts, max_tokens=256, vocab_size=5000, report=lines.append)
    report = json.loads((tmp_path / "data" / "train.report.json").read_text())
    assert len(prepared.train) == report["kept"] == len(pairs)
    assert sorted(report["dropped"].values()) == [1, 1, 2]
    assert len(prepared.dev) == len(pairs) + 1  # the loss of dev leaves out what is blank or longer than in training
    assert any("not tokenizer.vocab_size=5,000" in line for line in lines)
    src_ids, tgt_ids = prepared.train[5]
    assert prepared.tokenizer.decode(src_ids.tolist()) == src[5]
    assert prepared.tokenizer.decode(tgt_ids.tolist()) == tgt[5]
    # What is there is not made again.
    lines.clear()
    prepared_of(tmp_path, texts, report=lines.append)
    assert not lines


def test_a_pair_left_out_is_named_by_its_file_and_its_line_there(tmp_path):
    text = [("one two", "eins zwei"), ("three", ""), ("four five", "vier"), ("six", "sechs")]
    files = [
        (write(tmp_path / f"{name}.en", [s for s, _ in pairs]), write(tmp_path / f"{name}.de", [t for _, t in pairs]))
        for name, pairs in (("first", text), ("second", text[:1]), ("third", text[1:]))
    ]
    prepared = prepared_of(tmp_path, TextFiles(train=tuple(files), dev=files[0]))
    dropped = (tmp_path / "data" / "train.dropped.tsv").read_text().splitlines()
    empty = [(2, "first"), (1, "third")]
    assert dropped == [f"{line}\twith a blank side\t{tmp_path / name}.en" for line, name in empty]
    places = [prepared.train.place(int(line)) for line in prepared.train.lines]
    names = ["first"] * 3 + ["second"] + ["third"] * 2
    assert places == list(zip([str(tmp_path / f"{n}.en") for n in names], [1, 3, 4, 1, 2, 3], strict=True))
    assert prepared.dev.place(4) == (str(tmp_path / "first.en"), 4)
    facts = json.loads((tmp_path / "data" / "train" / "corpus.json").read_text())
    for texts in ([["a", -1]], [["a"]], "a", [[1, 2]], {"a": 1}):
        (tmp_path / "data" / "train" / "corpus.json").write_text(json.dumps(facts | {"texts": texts}))
        seal(tmp_path / "data" / "train")
        with pytest.raises(HeedError, match="corpus.json: texts holds .*, expected a name and a number of lines"):
            ParallelCorpus(tmp_path / "data" / "train", vocab_size=600)


def test_symbols_that_the_training_set_lacks_are_left_out_and_listed(tmp_path):
    train = write(tmp_path / "s", ["a dog", "a cat"]), write(tmp_path / "t", ["(NP DT NN )NP", "(NP DT NN )NP"])
    dev = write(tmp_path / "u", ["a dog", "dogs run"]), write(tmp_path / "v", ["(NP DT NN )NP", "(S NNS VB )S"])
    said: list[str] = []
    texts = TextFiles(train=(train,), dev=dev)
    prepared = prepared_of(tmp_path, texts, tgt="trees", tgt_symbols=True, report=said.append)
    assert set(prepared.tokenizer.symbols) == {"(NP", ")NP", "DT", "NN"}
    # A sentence of dev that is learned from is said; that trees have the same form is nothing to say.
    assert [line for line in said if line.startswith("Remark")] == [
        "Remark: dev: 1 of its 2 pairs are training pairs too; scores on them will be too high."
    ]
    assert (len(prepared.train), len(prepared.dev)) == (2, 1)
    assert "symbol that the training set lacks" in (tmp_path / "data" / "dev.dropped.tsv").read_text()
    assert prepared.tokenizer.decode(prepared.train[0][1].tolist()) == "(NP DT NN )NP"


def test_more_symbols_than_the_vocabulary_has_room_for_are_refused_with_the_least_size(tmp_path):
    train = write(tmp_path / "s", ["a dog"]), write(tmp_path / "t", [" ".join(f"s{n}" for n in range(500))])
    texts = TextFiles(train=(train,), dev=train)
    data = {"tgt": "symbols", "tgt_symbols": True, "max_tokens": 1000, "max_ratio": 1000.0}
    message = "no room for 500 target symbols, 256 bytes and 3 special ids: 759 is the least"
    with pytest.raises(HeedError, match=message):
        prepared_of(tmp_path, texts, vocab_size=758, **data)
    assert len(prepared_of(tmp_path, texts, vocab_size=759, **data).tokenizer) == 759


def test_a_test_set_is_called_by_a_plain_name():
    ways_out = ["../../../escaped", "/escaped", "a/b", "a\\b", ".hidden", "..", "", " ", "a ", " a", "a\nb", "a\0b"]
    for name in (*ways_out, "\x1b[31m", "a\u202eb", "train", "dev", "Train", "DEV", "x" * 65, "x" * 10**6):
        with pytest.raises(HeedError, match="a test set cannot be called") as caught:
            validated(DataSettings, {"src": "a", "tgt": "b", "tests": {name: ["x", "y"]}}, where="r.toml")
        assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["test2016", "flickr 2016", "section23", "a", "-x", "0.5+1_2", "Prüfung", "x" * 64])
def test_plain_names_of_test_sets_are_free(name):
    settings = {"src": "a", "tgt": "b", "train": ["s", "t"], "dev": ["s", "t"], "tests": {name: ["x", "y"]}}
    assert list(validated(DataSettings, settings, where="r.toml").tests) == [name]


def test_a_dev_set_without_a_usable_pair_is_refused(tmp_path):
    """Its loss would be 0, the lowest of all."""
    train = write(tmp_path / "s", ["a dog", "a cat"]), write(tmp_path / "t", ["(NP DT NN )NP", "(NP DT NN )NP"])
    dev = write(tmp_path / "u", ["dogs run"]), write(tmp_path / "v", ["(S NNS VB )S"])
    with pytest.raises(HeedError, match=r"no dev pair is left, all are with a symbol that the training set lacks: "):
        prepared_of(tmp_path, TextFiles(train=(train,), dev=dev), tgt="trees", tgt_symbols=True)


def mixed(tmp_path, *, tag, given=None, report=lambda line: None, folder="data", **values):
    """Prepares a mix of two parts, the second with a tag and short lines."""
    own = write(tmp_path / "s", ["a dog", "a cat"] * 30), write(tmp_path / "t", ["ein hund", "eine katze"] * 30)
    short = write(tmp_path / "u", ["one two three four"] * 6), write(tmp_path / "v", ["x"] * 6)
    parts = [{"name": "own", "weight": 1.0}, {"name": "b", "train": ["u", "v"], "weight": 1.0, "tag": tag}]
    data = {"src": "en", "tgt": "de", "train": ["s", "t"], "dev": ["s", "t"], "mix": parts}
    return prepare(
        TextFiles(train=(own, short), dev=own, parts=(TextPart(1), TextPart(1, tag))),
        validated(DataSettings, data | values, where="test"),
        TokenizerSettings(vocab_size=600),
        folder=tmp_path / folder,
        report=report,
        given=given,
    )


@pytest.mark.parametrize("tag", ["<2de>", "<~>", "«français»"])
def test_a_tag_is_one_id_and_counts_for_no_limit(tmp_path, tag):
    """Limits that a source with its tag would break, and without does not."""
    n_tokens = len(mixed(tmp_path, tag=tag).tokenizer.encode("one two three four"))
    prepared = mixed(tmp_path, tag=tag, folder="limits", max_tokens=max(n_tokens, 20), max_ratio=float(n_tokens))
    assert len(prepared.train) == 66
    (i,) = prepared.tokenizer.encode(tag)
    assert prepared.train[60][0].tolist() == [i, *prepared.tokenizer.encode("one two three four")]
    assert prepared.train[0][0].tolist() == prepared.tokenizer.encode("a dog")


def test_a_tag_that_a_given_vocabulary_lacks_is_named_and_one_of_several_ids_is_remarked_on(tmp_path, number_tokenizer):
    said: list[str] = []
    mixed(tmp_path, tag="<2de>", given=number_tokenizer, report=said.append, max_ratio=100.0)
    assert any("the vocabulary was not learned with the tag <2de>, which is" in line for line in said)
    words = Vocabulary(pieces=["</s>", "<unk>", ">>deu<<", ">>fra<<", *"a dog cat one two three four".split()])
    targets = Vocabulary(pieces=["</s>", "<unk>", *"ein hund eine katze x".split()])
    imported = SentencePieceTokenizer(words, targets, SpecialIds(0, 0, 0, 1))
    with pytest.raises(HeedError, match=r"lacks the tag <~> of data\.mix; take one of its codes \(>>deu<<, >>fra<<\)"):
        mixed(tmp_path, tag="<~>", given=imported, folder="lacking")
    known = mixed(tmp_path, tag=">>deu<<", given=imported, folder="known")
    assert known.train[60][0].tolist()[0] == 2


def test_a_vocabulary_is_learned_from_the_parts_of_a_mix_by_their_shares():
    pairs = [(0, ("a", "b"))] * 300 + [(1, ("c", "d"))] * 20
    parts = (MixPart(name="own", weight=[1.0, 1.0]), MixPart(name="more", train=["u", "v"], weight=[0.0, 1.0]))
    found = Counter(in_shares(lambda: pairs, Mix(parts, (10,), None)))
    assert found == {("a", "b"): 240, ("c", "d"): 80}  # of 320: means of 1 and 1/2, of 0 and 1/2
    by_size = (MixPart(name="own"), MixPart(name="more", train=["u", "v"]))
    assert list(in_shares(lambda: pairs, Mix(by_size, (), None))) == [pair for _, pair in pairs]
