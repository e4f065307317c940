"""Tables and records as other programs write them, and what is no text with a sentence a line."""

import csv
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from heed.data.reading.columns import examine
from heed.data.reading.lines import MAX_LINE_BYTES, elements
from heed.data.reading.pairs import Sources, TrainingText, examine_source, read_pairs, read_sides
from heed.data.reading.rows import Columns
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.leases.plan import Range, make_parts

DOG, CAT = ("a dog", "ein Hund"), ("a cat", "eine Katze")


def pairs_of(path: Path, content: str | bytes, columns=("en", "de")):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [pair for *_, pair in TrainingText([(path, path)], columns).pairs()]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.tsv", "a dog\tein Hund\na cat\teine Katze\n"),
        ("head.tsv", "\n\nscore\tDE\tEN\n0.9\tein Hund\ta dog\n\n0.8\teine Katze\ta cat\n"),
        ("pasted.tsv", "a dog\r\tein Hund\r\na cat\r\teine Katze\r\n"),
        ("head.csv", 'id,en,de\r\n1,"a dog","ein Hund"\r\n\r\n2,a cat,"eine\nKatze"\r\n'),
        ("semicolons.csv", '"a dog";ein Hund\na cat;eine Katze\n'),
        ("bars.CSV", "en|de\na dog|ein Hund\na cat|eine Katze\n"),
        ("marked.csv", '\ufeff"a dog","ein\nHund"\na cat,"eine\nKatze"\n'),
        ("quoted.tsv", 'note\ten\tde\n"an ""x"""\ta dog\t"ein Hund"\n"b"\t"a cat"\teine Katze\n'),
        ("excel.csv", "\ufeffsep=;\r\nEnglisch, kurz;English;Deutsch\r\na, b;a dog;ein Hund\r\nc;a cat;eine Katze\r\n"),
        ("tabs.csv", '"sep=\t"\na dog\tein Hund\na cat\teine Katze\n'),
        ("half.csv", "Deutsch;Englisch\nein Hund;a dog\neine Katze;a cat\n"),
        ("regions.tsv", "de-DE\ten-GB\nein Hund\ta dog\neine Katze\ta cat\n"),
        ("hf.jsonl", '{"id": 1, "translation": {"de": "ein Hund", "en": "a dog\\r\\n"}}\n\n'
         '{"translation": {"German": "eine Katze", "eng_Latn": "a cat"}}\n'),
    ],
)  # fmt: skip
def test_tables_are_read_with_or_without_a_head(tmp_path, name, content):
    assert pairs_of(tmp_path / name, content) == [DOG, CAT]


def test_columns_without_names_are_chosen_by_number_and_a_score_is_no_source(tmp_path):
    mined = "1.04\ta dog\tein Hund\n1.03\ta cat\teine Katze\n"
    with pytest.raises(
        HeedError, match=r"mined\.tsv: column 1 holds numbers or addresses, not text; .* data\.columns = \['2', '3'\]"
    ):
        pairs_of(tmp_path / "mined.tsv", mined)
    assert pairs_of(tmp_path / "mined.tsv", mined, ("2", "3")) == [DOG, CAT]
    with pytest.raises(HeedError, match=r"has no column 'en'; it has 'id', 'source', 'target': choose one"):
        pairs_of(tmp_path / "other.csv", "id,source,target\n1,a dog,ein Hund\n")
    (tmp_path / "corpus.csv").write_text("seven,sieben\neight,acht\n")
    with pytest.raises(HeedError, match=r"corpus\.csv: has 2 columns and no head with 'text'"):
        examine(str(tmp_path / "corpus.csv"), ("text",), every=9, before=0)


def test_what_tells_columns_apart_is_what_most_rows_agree_on(tmp_path):
    prose = [f"one, two, {'and, ' * (n % 3)}{n}, x;eins, zwei, {n}\n" for n in range(40)]
    assert pairs_of(tmp_path / "prose.csv", "".join(prose))[3] == ("one, two, 3, x", "eins, zwei, 3")
    escaped = "en,de\n" + '"a \\"dog\\", one","ein \\"Hund\\""\n' * 9
    assert pairs_of(tmp_path / "escaped.csv", escaped) == [('a "dog", one', 'ein "Hund"')] * 9
    rows = ["a dog,ein Hund\n"] * 60
    rows[20], rows[30] = '"a dog,ein Hund\n', "a dog, a cat,ein Hund\n"
    (tmp_path / "stray.csv").write_text("".join(rows))
    text, faults = TrainingText([(tmp_path / "stray.csv",) * 2], ("en", "de")), []
    pairs = [pair for _, pair in text.pairs(on_fault=lambda place, fault: faults.append((place[1] + 1, str(fault))))]
    assert pairs == [DOG] * 58
    assert faults == [(21, "not CSV (a quotation mark has no partner)"), (31, "has 3 columns; expected 2")]


NUMBERED = "no\tEnglish\tGerman\n1\ta dog\tein Hund\n2\ta cat\teine Katze\n"


@pytest.mark.parametrize(("columns", "content", "told"), [
    (("en", "de"), "en\tfr\na dog\tun chien\n", "has no column 'de'; it has 'en', 'fr'"),
    (("en", "de"), "web-1\thttps://x.org\ta dog\n" * 4, "column 1 holds numbers or addresses, not text"),
    (("en", "fr"), NUMBERED, "has no column 'fr'; it has 'no', 'English', 'German'"),
    (("en", "de"), "English\tPolish\na dog\tpies\n", "has no column 'de'; it has 'English', 'Polish'"),
    (("en", "de"), "English (UK)\tEnglish (US)\tGerman\na\tb\tc\n", r"has no column 'en'; it has 'English \(UK\)'"),
    (("en", "de"), "en-GB\ten-US\tde\na\tb\tc\n", "has no column 'en'; it has 'en-GB', 'en-US', 'de'"),
    (("0", "1"), NUMBERED, "has no column 0; columns without names are counted from 1"),
])  # fmt: skip
def test_columns_that_are_not_plain_are_refused(tmp_path, columns, content, told):
    with pytest.raises(HeedError, match=told):
        pairs_of(tmp_path / "rows.tsv", content, columns)
    for columns in (("2", "3"), ("en", "de")):
        assert pairs_of(tmp_path / "numbered.tsv", NUMBERED, columns) == [DOG, CAT]
    assert pairs_of(tmp_path / "words.tsv", "No\tNei\nno way\taldri\n", ("en", "no"))[0] == ("No", "Nei")


def test_rows_of_csv_are_those_of_pythons_writer_wherever_reading_begins(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [(f'a "{n}", b', "line\nbreak" * (n % 3)) for n in range(40)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("en", "de"), *rows])
        file.write('open,"quote\n' + "x" * 200_000)
    with closing(Sources([[str(path)]], Columns(("en", "de")))) as sources:
        found = [pair for _, pair in sources.pairs([Range(0, 20, 23), Range(0, 0, 20)])]
    expected = [(src, tgt.replace("\n", " ")) for src, tgt in rows]
    faults = [str(found.pop(21)) for _ in range(2)]
    assert faults == ["not CSV (a quotation mark has no partner)", "has 1 column; expected 2"]
    assert found == [*expected[19:], *expected[:19]]


def test_a_bad_first_row_is_one_bad_row(tmp_path):
    good = "".join(json.dumps({"en": "a dog", "de": "ein Hund"}) + "\n" for _ in range(12))
    for first in ("{broken", "[]", '{"en": 1}', '{"id": 7}', "", "x" * (MAX_LINE_BYTES + 1)):
        assert pairs_of(tmp_path / "rows.jsonl", first + "\n" + good) == [DOG] * 12
    with pytest.raises(HeedError, match=r"rows\.jsonl: has no column 'en'; it has 'translation', 'translation\.fr'"):
        pairs_of(tmp_path / "rows.jsonl", '{"translation": {"fr": "un"}}\n' * 12)
    with pytest.raises(HeedError, match=r"rows\.jsonl, row 1: not JSON"):
        pairs_of(tmp_path / "rows.jsonl", "{broken\n" * 12)
    with pytest.raises(HeedError, match=r"row 1: not JSON; expected an object a line, as jq -c .* makes of an array"):
        pairs_of(tmp_path / "rows.json", "[\n" + good.replace("}", "},"))
    deep = '{"a": {"b": {"en": "a dog", "de": "ein Hund"}}}\n' * 2
    assert pairs_of(tmp_path / "deep.jsonl", deep, ("a.b.en", "a.b.de")) == [DOG] * 2


def test_parquet_of_other_programs_is_read_and_becomes_json(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from heed.apps.cluster.writers import _json

    path = str(tmp_path / "rows.parquet")
    at = arrow.array([1_700_000_000_123_456_789] * 2, arrow.timestamp("ns"))
    table = {
        "translation": [{"en": src, "de": tgt} for src, tgt in (DOG, CAT)],
        "text": arrow.array(["one", "two"], arrow.string_view()),
        "at": at,
        "inside": [{"hash": b"\xff", "score": float("nan")}, None],
    }
    parquet.write_table(arrow.table(table), path)
    for columns, texts in (
        (("en", "de"), [DOG, CAT]),
        (("translation.de", "text"), [(DOG[1], "one"), (CAT[1], "two")]),
    ):
        assert examine(path, columns, every=9, before=0).rows == 2
        for output in ("text", "jsonl", "parquet"):
            with closing(Sources([[path]], Columns(columns), output=output)) as sources:
                (rows,) = sources.read([Range(0, 0, 2)])
            assert rows.texts == texts
            if output == "jsonl":
                found = json.loads(_json(rows.content[0]))
                assert (found["at"], found["inside"]) == (
                    "2023-11-14T22:13:20.123456789", {"hash": "/w==", "score": None}
                )  # fmt: skip
            if output == "parquet":
                assert rows.content.take(arrow.array([1])).column("text").to_pylist() == ["two"]
    with pytest.raises(HeedError, match=r"has no column 'fr'; it has .*'translation\.en'"):
        examine(path, ("fr",), every=9, before=0)
    parquet.write_table(arrow.Table.from_arrays([at, at], names=["de", "de"]), path)
    with pytest.raises(HeedError, match=r"has several columns 'de'; rename all but one"):
        examine(path, ("de",), every=9, before=0)


@pytest.mark.parametrize("kind", ["string", "string_view"])
def test_text_of_parquet_that_is_not_utf_8_is_a_bad_row_and_the_others_stay(tmp_path, kind):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from heed.apps.cluster.writers import writer_of

    ends = np.array([0, 1, 3, 4], np.int32)
    texts = arrow.StringArray.from_buffers(3, arrow.py_buffer(ends.tobytes()), arrow.py_buffer(b"a\xff\xfeb"))
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(arrow.table({"text": texts.cast(getattr(arrow, kind)())}), path)
    for output in ("text", "jsonl", "parquet"):
        writer = writer_of(tmp_path / output, output)
        faults, good = {}, []
        with closing(Sources([[path]], Columns(("text",)), output=output)) as sources:
            for rows in sources.read([Range(0, 0, 3)]):
                faults |= {rows.first + place: fault for place, fault in rows.faults.items()}
                good += [rows.texts[place][0] for place in rows.good]
                writer.add(rows, rows.good, {"score": [0.5] * len(rows.good)})
        writer.close()
        assert (faults, good) == ({1: "holds text that is not UTF-8"}, ["a", "b"])
    assert parquet.read_table(tmp_path / "parquet").column("text").to_pylist() == ["a", "b"]


def test_what_is_no_text_is_refused_by_name(tmp_path):
    tags = "".join(f'<seg id="{n}">a dog</seg>\n' for n in range(20))
    messages = "".join(f'#: main.c:{n}\nmsgid "dog {n}"\nmsgstr "Hund"\n\n' for n in range(20))
    for name, content, message in (
        ("w.en.xml", tags, "text between tags, which is not read here"),
        ("memory.xlf.gz", "", "a file of translations, which is not read here; export it as .tmx"),
        ("text.en.xz", "", "a packed file, which is not read here; unpack it"),
        ("w.en", tags, r"is markup, such as .<seg id="),
        ("messages.en", messages, "is markup, such as "),
    ):
        path, other = tmp_path / name, tmp_path / "other.de"
        path.write_text(content)
        other.write_text(content.replace("<", "a").replace("#", "a").replace("msg", "a"))
        with pytest.raises(HeedError, match=f"{name}: {message}"):
            TrainingText([(path, other)], ("en", "de"))
        if path.suffix == ".xml":
            with pytest.raises(HeedError, match=message):
                next(read_pairs((path, other)))
    # Words of a tag before a sentence, or within, are text.
    path.write_text("<2de> a <b>dog</b> runs\n" * 20)
    assert TrainingText([(path, path)], ("en", "de")).rows == [20]


def test_dev_and_tests_may_be_one_file_of_both_sides_in_which_each_row_counts(tmp_path):
    dev = tmp_path / "dev.jsonl"
    rows = [json.dumps({"translation": {"en": src, "de": tgt}}) for src, tgt in (DOG, CAT)]
    dev.write_text("\n".join([rows[0], "", rows[1]]) + "\n")
    assert read_sides((dev, dev), ("en", "de")) == tuple(map(list, zip(DOG, CAT, strict=True)))
    settings = {"src": "en", "tgt": "de", "train": ["a.tsv"]}
    assert DataSettings(**settings, dev=[str(dev)], added=[str(dev)], tests={"t": [str(dev)]}).tests["t"] == [str(dev)]
    dev.write_text("\n".join([*rows, "{broken", *rows]) + "\n")
    with pytest.raises(HeedError, match=r"dev\.jsonl, row 3: not JSON\."):
        list(read_pairs((dev, dev), ("en", "de")))
    dev.write_text("")
    with pytest.raises(HeedError, match=r"dev\.jsonl is empty"):
        list(read_pairs((dev, dev), ("en", "de")))


MEMORY = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu tuid="1"><note>x</note><tuv xml:lang="EN-US"><seg>a <bpt i="1">&lt;b></bpt>dog<ept i="1">&lt;/b></ept>
 &amp; I</seg></tuv><tuv xml:lang="de"><seg>ein <hi>Hund</hi></seg></tuv></tu>
<tu><tuv lang="en"><seg>a cat</seg></tuv><tuv lang="fr"><seg>un chat</seg></tuv></tu>
<TU><tuv xml:lang="en"><seg>broken</tuv></TU><tu
><tuv xml:lang="de_AT"><seg>eine Katze</seg></tuv><tuv xml:lang="en"><seg>a cat</seg></tuv></tu>
</body></tmx>"""


def test_of_a_translation_memory_the_units_with_both_languages_are_pairs(tmp_path):
    path = tmp_path / "memory.tmx"
    path.write_text(MEMORY)
    pairs = [("a dog & I", "ein Hund"), ("a cat", "eine Katze")]
    assert list(read_pairs((path, path), ("en", "de"))) == pairs
    assert list(read_pairs((path, path), ("de_AT", "en"))) == [("eine Katze", "a cat")]
    assert TrainingText([(path, path)], ("en", "de")).rows == [4]
    examined = examine_source([str(path)], ("en", "de"), every=2)
    plan = make_parts([examined], 2, words=("pairs", "shards"), setting="data.shard_pairs")
    assert [part[0].offsets[0] > 0 for part in plan] == [False, True]
    with closing(Sources([[str(path)]], Columns(("en", "de")))) as sources:
        assert [[pair for _, pair in sources.pairs(part)] for part in reversed(plan)] == [pairs[1:], pairs[:1]]
    with pytest.raises(HeedError, match="memory.tmx: has no column 'es'; it has 'en-us', 'en', 'de', 'fr'"):
        list(read_pairs((path, path), ("en", "es")))
    pieces = (MEMORY[i : i + 3].encode() for i in range(0, len(MEMORY), 3))
    assert len(list(elements(pieces, "tu", "it"))) == 4


def test_of_wmts_test_sets_the_segments_are_lines(tmp_path):
    for side, words in (("en", ("a &lt;dog&gt; ", "two\nlines")), ("de", ("ein Hund", "zwei Zeilen"))):
        segments = "".join(f'<seg id="{n}"> {text}</seg>\n' for n, text in enumerate(words))
        (tmp_path / f"{side}.sgm").write_text(f"<srcset><doc><p>{segments}</p></doc></srcset>")
    pairs = [("a <dog>", "ein Hund"), ("two lines", "zwei Zeilen")]
    both = (tmp_path / "en.sgm", tmp_path / "de.sgm")
    assert list(read_pairs(both)) == pairs and TrainingText([both], ("en", "de")).rows == [2]


@pytest.mark.parametrize(("name", "text", "told"), [
    ("a.tmx", "<tu><tuv>", "<tu> number 1 has no end; is the file whole"),
    ("a.tmx", "<tu>" + "a" * 2**20, "<tu> number 1 is longer than 1,048,576 bytes"),
    ("a.sgm", "<seg>a</seg><seg id='2'>" + "a" * 2**21, "<seg> number 2 is longer than"),
])  # fmt: skip
def test_cut_and_endless_elements_are_refused_by_number(tmp_path, name, text, told):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(HeedError, match=f"{name}: {told}"):
        list(read_pairs((path, path if name == "a.tmx" else tmp_path / "a.sgm"), ("en", "de")))
