"""What `heed data check` finds in a clean corpus and in spoilt ones."""

from pathlib import Path

import pytest

from heed.data.inspection.inspection import inspect_text
from heed.data.inspection.pair_faults import faults
from heed.data.inspection.repetitions import EvaluationSets, Repetitions, all_repetitions
from heed.data.reading.dev_split import DevSplit
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.text.numbers import english, german, number_splits

SPLITS = number_splits(n_train=400, n_dev=60, n_test=20)


def pairs_of(numbers) -> list[tuple[str, str]]:
    return [(english(number), german(number)) for number in numbers]


TRAIN, DEV, TEST = map(pairs_of, (SPLITS.train, SPLITS.dev, SPLITS.test))


def inspected(folder: Path, train, dev=DEV, *, src="en", tgt="de", names=("en", "de"), size=None):
    def write(name, pairs):
        files = folder / f"{name}.{names[0]}", folder / f"{name}.{names[1]}"
        for side, file in enumerate(files):
            file.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
        return files

    data = DataSettings(src=src, tgt=tgt, train=["s", "t"], dev=size or ["s", "t"])
    files = TextFiles(train=(write("train", train),), dev=write("dev", dev), dev_split=data.dev_split)
    return inspect_text(files, data, tokenizer=None)


def test_a_clean_corpus_gives_no_remark(tmp_path):
    found = inspected(tmp_path, TRAIN)
    assert found.remarks == [] and found.lines == []
    train, dev = found.numbers["sets"]["train"], found.numbers["sets"]["dev"]
    assert (train["pairs"], dev["pairs"], train["copies"]) == (400, 60, 0)
    longest = max(range(400), key=lambda i: (len(TRAIN[i][0]), -i))
    assert train["source"]["characters"]["longest"] == len(TRAIN[longest][0])
    assert train["source"]["characters"]["line"] == longest + 1
    in_order = sorted(len(tgt.split()) for _, tgt in TRAIN)
    assert train["target"]["words"]["median"] == in_order[199]
    assert found.numbers["order_of_sides"]["examined"] == 400
    assert found.numbers["unknown_tokens"]["source"] == {"share": 0.0}


def test_copies_and_overlaps_are_counted(tmp_path):
    other = [(src, f"{tgt} oder so") for src, tgt in DEV[10:14]]
    found = inspected(tmp_path, [*TRAIN, *TRAIN[:80], *DEV[3:10], *other, *((src, src) for src, _ in TEST)])
    train, dev = found.numbers["sets"]["train"], found.numbers["sets"]["dev"]
    assert (train["copies"], train["copies_of_sources"], train["target_equals_source"]) == (80, 80, 20)
    assert dev["in_training"] == {"pairs": 7, "other_sources": 4, "other_targets": 0, "first_line": 4}
    dev_remark, copied_source, copies = found.remarks
    assert "dev: 7 of its 60 pairs are training pairs too, and 4 other source lines" in dev_remark
    assert "in 20 training pairs (3.9%) the target is a copy of the source" in copied_source
    assert "80 training pairs (15.7%) are copies of others" in copies


def test_a_dev_set_that_is_split_off_is_inspected_as_it_will_be(tmp_path):
    found = inspected(tmp_path, [*TRAIN, *TRAIN[:200]], size=40)
    train, dev = found.numbers["sets"]["train"], found.numbers["sets"]["dev"]
    assert dev["pairs"] == 40 and dev["in_training"]["pairs"] == 0
    chosen = {
        pair
        for _, pair in DevSplit(size=40, max_tokens=256, max_ratio=9.0).pairs(
            lambda: enumerate([*TRAIN, *TRAIN[:200]]), name="train"
        )
    }
    assert train["pairs"] == sum(pair not in chosen for pair in [*TRAIN, *TRAIN[:200]]) < 560
    assert dev["files"] == train["files"] and not (tmp_path / "dev.src").exists()


def test_exchanged_sides_are_found_in_dev_and_in_single_pairs(tmp_path):
    exchanged = [pair[::-1] for pair in DEV]
    found = inspected(tmp_path, TRAIN, exchanged)
    assert found.remarks == ["dev: its sides seem to be exchanged, compared with those of train."]
    found = inspected(tmp_path, [*TRAIN[:200], *exchanged, *TRAIN[200:]])
    order = found.numbers["order_of_sides"]
    assert order["examined"] == 460 and 50 <= order["exchanged"] <= 60
    assert all(201 <= line.line <= 260 for line in found.lines if line.reason == "sides exchanged")


@pytest.mark.parametrize("other", [lambda src: src, lambda src: src.upper(), lambda src: src + " ."])
def test_sides_of_one_language_are_never_called_exchanged(tmp_path, other):
    pairs = [(src, other(src)) for src, _ in TRAIN]
    found = inspected(tmp_path, pairs, [pair[::-1] for pair in pairs[:60]], tgt="en2")
    assert not any("exchanged" in remark for remark in found.remarks)
    assert found.numbers["order_of_sides"]["exchanged"] == 0


def test_files_whose_names_say_other_languages_and_one_text_twice_are_remarked(tmp_path):
    found = inspected(tmp_path, [pair[::-1] for pair in TRAIN], [(src, src) for src, _ in DEV], names=("de", "en"))
    assert [remark.rpartition("/")[2] for remark in found.remarks] == [
        "train.en: exchanged? data.src is en, data.tgt de.",
        "dev.en: exchanged? data.src is en, data.tgt de.",
        "dev: source and target are the same text.",
    ]


@pytest.mark.parametrize(
    ("src", "tgt", "fault"),
    [
        ("a \x07 bell", "eine Glocke", "control character"),
        ("fine", "sch\ufffdn", "replacement character U+FFFD"),
        ("fine", "schön".encode().decode("cp1252"), "text in a wrong encoding"),
        ("“fine”".encode().decode("cp1252", "ignore"), "schön", "text in a wrong encoding"),
        ("да".encode().decode("latin-1"), "yes", "text in a wrong encoding"),
        ("a \ue123 b", "a b", "private-use character"),
        ("a <b>bold</b> word", "ein Wort", "HTML tag"),
        ("line<br/>", "Zeile", "HTML tag"),
        ("you &amp; me", "du und ich", "HTML entity"),
        ("a " + "x7" * 60, "b" * 60, "word of more than 100 characters"),
        ("contents ........................ 12", "Inhalt, auf der Seite 12", "same character 20 times"),
        ("yes", "ja, das finde ich auch sehr richtig", "sides of very unequal length"),
        ("hello, you there", "@@", "one side without letters"),
    ],
)  # fmt: skip
def test_suspicious_lines_are_told_by_their_fault(src, tgt, fault):
    assert fault in [name for name, *_ in faults(src, tgt, max_ratio=9.0)]


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        ("« Déjà vu », dit-il à la fin : 5 < 6 et 7 > 3.", "‘Seen before’, he said at the end: 5 < 6 and 7 > 3."),
        ("LIBERTÉ\u00a0! Âme, São João, AT&T", "FREIHEIT! Ærø, Þór, Ðà, Ñandú"),
        ("これは長い文です。" * 12, "This is a long sentence. " * 4),
        ("2 + 2 = 4", "4 = 2 + 2"),
        ("", "eine leere Quelle ist an anderer Stelle gezählt"),
        ("می\u200cخواهم", "I want\tit"),
    ],
)  # fmt: skip
def test_ordinary_lines_are_not_suspicious(src, tgt):
    assert list(faults(src, tgt, max_ratio=9.0)) == []


def test_ten_lines_are_shown_of_all_kinds_with_their_places(tmp_path):
    junk = [("a \x01 b", "c d")] * 30 + [("&lt;", "kleiner")] * 30 + [("fine", "sch\ufffdn")]
    found = inspected(tmp_path, [*TRAIN[:10], *junk, *TRAIN[10:]])
    assert len(found.lines) == 10
    assert {line.reason for line in found.lines} >= {"control character", "HTML entity", "replacement character U+FFFD"}
    (one,) = (line for line in found.lines if "U+FFFD" in line.reason)
    assert (one.file, one.line, one.text) == (str(tmp_path / "train.de"), 71, "sch\ufffdn")
    assert found.numbers["suspicious"]["control character"] == 30


def repetitions_in(train, sets):
    sets = EvaluationSets(sets)
    repetitions = Repetitions(sets)
    for pair in train:
        repetitions.add(*pair)
    return all_repetitions([repetitions.hashes()], [repetitions.facts()], sets.sizes, share=1)


def test_preparation_remarks_only_on_what_a_user_should_know():
    def remarks(train, *, tgt="de"):
        return list(repetitions_in(train, {"dev": DEV, "news": TEST}).remarks(src="en", tgt=tgt))

    assert remarks([]) == remarks(TRAIN) == []
    assert remarks([*TRAIN, *TRAIN[:20], *[(src, src) for src, _ in TRAIN[:4]]]) == []
    assert remarks([(src, src) for src, _ in TRAIN], tgt="en") == []
    all_of_them = remarks([*TRAIN * 2, *DEV, *TEST[:1], *((src, src) for src, _ in TRAIN)])
    assert len(all_of_them) == 3
    assert "dev: 60 of its 60 pairs are training pairs too (so are lines of news)" in all_of_them[0]
    # One side of them in training is a leak too, unless it is a few short lines.
    targets = [(f"{src} uh", tgt) for src, tgt in DEV]
    sources = [(src, f"{tgt} äh") for src, tgt in DEV]
    assert remarks([*TRAIN, *targets]) == [
        "dev: 60 of its 60 targets are training targets too; scores on them will be too high."
    ]
    (of_sources,) = remarks([*TRAIN, *sources[:30], *targets[:2]])
    assert of_sources.startswith("dev: 30 of its 60 sources are training sources too and 2 of its 60 targets")
    assert remarks([*TRAIN, *sources[:2], *targets[2:4]]) == []
    # Nor do spaces and the case of the first letter hide it.
    other = [(f" {src.capitalize()}", tgt.replace(" ", "  ").capitalize()) for src, tgt in DEV]
    assert "dev: 60 of its 60 pairs are training pairs too" in remarks([*TRAIN, *other])[0]


def test_a_line_is_found_where_an_overlap_begins():
    overlap = repetitions_in([DEV[5], (DEV[2][0], "etwas anderes")], {"dev": DEV}).overlaps["dev"]
    assert (overlap.n_lines, overlap.n_pairs, overlap.n_sources, overlap.first) == (60, 1, 1, 5)


def test_parts_of_a_file_whose_sides_are_not_translations_are_named(tmp_path):
    shifted = [(src, tgt) for (src, _), (_, tgt) in zip(TRAIN, [*TRAIN[7:], *TRAIN[:7]], strict=True)]
    (remark,) = inspected(tmp_path, shifted[:40]).remarks
    assert "train.en and" in remark and "lines 1 to 40 do not seem to be translations of each other" in remark
    (remark,) = inspected(tmp_path, [*TRAIN, *TRAIN, *shifted, *shifted[:200]]).remarks[:1]
    assert "lines 701 to 1,400 do not seem" in remark or "lines 701 to" in remark
    # Sides of any length that share their numbers are translations.
    numbers = [(f"{n} " + "x" * (n * 7 % 50), f"{n} " + "y" * (n * 11 % 60)) for n in range(100)]
    assert not [line for line in inspected(tmp_path, numbers).remarks if "translations of each other" in line]
