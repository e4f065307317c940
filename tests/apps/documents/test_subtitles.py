"""Subtitles as players read them: times and codes never reach the model, words always do."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apps.documents.test_text import TIMES
from tests.apps.documents.translators import asked as asked_of
from tests.apps.documents.translators import linked, shuffled, translate_document, unchanged
from tests.apps.documents.translators import translated as translation_of
from tests.samples import sample

from heed.errors import HeedError
from heed.text.alignment import Translated


def asked(text: str) -> list[str]:
    return asked_of(text, "srt")


def translated(text: str, translate=linked) -> str:
    result = translation_of(text, translate, "srt")
    assert translation_of(text, unchanged, "srt") == text
    return result


DIGITS = st.text("0123456789", min_size=1, max_size=3)
SPACES = st.sampled_from(["", " ", "\u200e", "\xa0"])
SEPARATORS = st.sampled_from(list(":.,;"))
TIME = st.lists(st.tuples(SPACES, SEPARATORS, SPACES, DIGITS).map("".join), min_size=1, max_size=4)
ARROWS = st.sampled_from(["-->", "->", "--->", "- ->", "–>", "==>", "→", "-- >"])
SETTINGS = st.sampled_from(["", " X1:100 X2:200 Y1:5 Y2:6", " align:start position:0%", " line:-1"])


@given(st.tuples(SPACES, DIGITS, TIME.map("".join), SPACES, ARROWS, SPACES, DIGITS, TIME.map("".join), SETTINGS))
def test_whatever_looks_like_times_never_reaches_the_model(parts):
    times = "".join(parts)
    text = f"1\n{TIMES.splitlines()[1]}\nfirst words\n\n2\n{times}\nsecond words\n"
    assert asked(text) == ["first words", "second words"]
    assert translated(text) == text.replace("first words", "FIRST WORDS").replace("second words", "SECOND WORDS")


@pytest.mark.parametrize(
    "times",
    ["00:01.000 --> 00:02.000", "0:00:01 --> 0:00:03", "1 00:00:01,000 --> 00:00:02,000", "00:00:01,000 -->",
     "0:00:01.000,0:00:03.000", "00:00:01,000 00:00:02,000", "00.00.01,000 --> 00.00.03,000", "٠٠:٠١ --> ٠٠:٠٢"],
)  # fmt: skip
def test_times_of_other_programs_are_times(times):
    assert asked(f"{times}\nsome words\n") == ["some words"]


def test_times_in_what_is_said_are_words():
    assert asked(TIMES + "the train at 12:30 -> we\nleave at 5:10\n") == ["the train at 12:30 -> we leave at 5:10"]


def test_words_behind_times_on_their_line_are_words():
    text = "{1}{1}25\n{10}{20}{y:i}hello there|{y:i}my friend\n{30}{}- who?|- me.\n"
    assert asked(text) == ["hello there my friend", "who?", "me."]
    assert translated(text) == text.replace("hello there", "HELLO THERE").replace("my friend", "MY FRIEND").replace(
        "who", "WHO"
    ).replace("me.", "ME.")
    assert asked("[10][20]/all in|/italics\n") == ["all in italics"]
    subviewer = "[TITLE]A film\n[COLF]&HFFFFFF,[STYLE]bd\n00:00:01.00,00:00:02.50\nfirst[br]second\n"
    assert asked(subviewer) == ["first second"]
    assert asked("[00:00.000 --> 00:05.000]  and so\n[00:05.000 --> 00:06.000]  on\n") == ["and so", "on"]


VTT = sample("film.vtt")


def test_webvtt_keeps_its_notes_names_and_settings():
    assert asked(VTT) == ["hello there my friend", "base and & so < that"]
    expected = VTT
    for words in ("hello", "there <", "my<", " friend", "base<", "and &", "so &"):
        expected = expected.replace(words, words.upper())
    assert translated(VTT) == expected.replace("&lt; that", "&lt; THAT")
    blanks = "WEBVTT\n\n00:01.000 --> 00:02.000\n \nhello<00:01.500><c> there</c>\n \n\nno subtitle\n"
    assert asked(blanks) == ["hello there"]  # only an empty line ends one
    times = [f"<00:01.{i}00>" for i in range(1, 6)]
    karaoke = "".join(f"{time}<c> word{i}</c>" for i, time in enumerate(times))
    result = translated(f"WEBVTT\n\n00:01.000 --> 00:02.000\nthe{karaoke}\n", shuffled)
    assert sorted(times, key=result.index) == times and all(f"WORD{i}" in result for i in range(5))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("<i>- Who is there?</i>\n<i>- Only me.</i>\n", ["Who is there?", "Only me."]),
        ("{\\an8}<b>– Yes.</b>\n", ["Yes."]),
        (">> Hello.\n>> Bye.\n", ["Hello.", "Bye."]),
        ("I {\\i1}really{\\i0} mean\n{\\an8}it.\n", ["I really mean it."]),
        ("a {\\c&H00FF&}red{\\c} and {\\b1\\i1}fat{\\b0\\i0} word\\Nbelow\n", ["a red and fat word below"]),
        ("{\\pos(1,2)}here\n", ["here"]),
        ("<font color='#fff'>a <s>b</s><br>c</font>\n", ["a b c"]),
        ("<laughs> so <x y=1>what</x>\n", ["<laughs> so what"]),
        ("Tom &amp; Ann say &quot;it&#39;s &eacute;&quot;\n", ["Tom & Ann say \"it's é\""]),
        ("one\n\ntwo\n\n9\nthree\n", ["one", "two", "three"]),
    ],
)  # fmt: skip
def test_codes_tags_dashes_and_references_are_no_words(text, sentences):
    assert asked(TIMES + text) == sentences
    translated(TIMES + text)


def test_tags_go_with_their_words_and_references_are_written_again():
    text = TIMES + 'Tom &amp; Ann {\\i1}say{\\i0} "yes" &lt; b\n'
    assert translated(text) == text.replace("Tom", "tOM").replace("Ann", "aNN").replace("say", "SAY").replace(
        "yes", "YES"
    ).replace("&lt; b", "&lt; B")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_how_subtitles_are_read(encoding):
    content = (TIMES + "café\n").encode(encoding)
    result = translate_document(content, linked, format="srt", language="en", name="a.srt")
    assert result == (TIMES + "CAFÉ\n").encode("utf-8-sig")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Just some words.\n", 1),
        ("\n1\nHello.\n", 3),
        ("WEBVTT\n\n1.000 bis 2.000\nHello.\n", 3),
        ("[Script Info]\nTitle: x\n", 1),
        (TIMES + "42\n\n" + "<i>", None),
        ("WEBVTT\n\nNOTE only words\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_words_of_which_none_is_in_a_subtitle_are_an_error(text, line):
    if line is None:
        assert translated(text) == text
        return
    with pytest.raises(HeedError, match=rf"^a\.srt: line {line} has words, .*\.$"):
        translate_document(text.encode(), linked, format="srt", language="en", name="a.srt")


def test_hard_spaces_stay_between_words():
    cue = "1\n00:00:01,000 --> 00:00:02,000\n"
    lines = "One:\\h\\h five\ntwo\n"
    expected = "oNE:\\h\\h FIVE\nTWO\n"
    assert translation_of(cue + lines, linked, "srt") == cue + expected


def cues(*texts: str, seconds: int = 1) -> str:
    times = [f"00:0{i // 60}:{i % 60:02}," for i in range(0, seconds * len(texts) + 1, seconds)]
    return "\n".join(f"{i}\n{times[i - 1]}000 --> {times[i - 1]}900\n{text}\n" for i, text in enumerate(texts, start=1))


@pytest.mark.parametrize(
    ("texts", "sentences"),
    [
        (["I do not know\nwhat it is,", "but I will", "find out."], ["I do not know what it is, but I will find out."]),
        (["Yes. I told", "Ann to go. And", "she did."], ["Yes.", "I told Ann to go.", "And she did."]),
        (["<i>I do not</i>", "<i>know.</i>"], ["I do not know."]),
        (["{\\an8}I do not", "{\\an8}know."], ["I do not know."]),
        (["I said", "- No."], ["I said", "No."]),  # another speaker
        (["I do", "so it", "goes on"], ["I do", "so it", "goes on"]),  # no punctuation anywhere
        (["CHAPTER ONE", "He came."], ["CHAPTER ONE", "He came."]),
        (["I do", "[sighs]", "know."], ["I do", "[sighs]", "know."]),
        (["I do <00:00:00.500>not", "know."], ["I do not", "know."]),  # a time that stays in its subtitle
        (["<b>I do", "know.</b>"], ["I do", "know."]),
    ],
)
def test_a_sentence_over_subtitles_is_one(texts, sentences):
    text = cues(*texts)
    assert asked(text) == sentences
    translated(text)


def test_subtitles_of_a_sentence_with_a_pause_or_a_note_between_them_are_two():
    far = cues("I do", "know.", seconds=9)
    note = "WEBVTT\n\n00:01.000 --> 00:02.000\nI do\n\nNOTE a note\n\nname\n00:02.000 --> 00:03.000\nknow.\n"
    frames = "{1}{20}I do|not\n{21}{30}know.\n"
    assert asked(far) == asked(note) == ["I do", "know."]
    assert asked(note.replace("NOTE a note\n\n", "")) == ["I do know."] and asked(frames) == ["I do not know."]


def said(*translations: str):
    left = list(translations)
    return lambda texts: [Translated(left.pop(0)) for _ in texts]


def test_a_sentence_is_divided_at_a_comma_near_its_share_and_no_subtitle_is_blank():
    text = cues("I don't know why,", "but I will find it out.")
    alone = {"language": "en", "format": "srt", "name": "x", "cues": "alone"}
    assert translation_of(text, said("Ik weet nog niet waarom, maar ik zal."), "srt") == (
        cues("Ik weet nog niet waarom,", "maar ik zal.")
    )
    # Too few words for all: each is translated alone.
    assert translation_of(text, said("Nein.", "Nein", "doch."), "srt") == cues("Nein", "doch.")
    assert translate_document(text.encode(), said("Nein", "doch."), **alone).decode() == cues("Nein", "doch.")


@given(
    st.lists(
        st.sampled_from(["a", "so,", "Ann", "1", "<i>b</i>", "end.", "- no", "{x}", "\n", "it", "go"]), max_size=24
    ),
    st.lists(st.integers(1, 24), max_size=6),
    st.sampled_from([shuffled, linked, said(*["x"] * 99), said(*["x y z, u v"] * 99)]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_every_subtitle_keeps_its_times_its_tags_and_some_words(words, ends, translate, line_end):
    bounds = [0, *sorted(set(ends)), len(words)]
    parts = [" ".join(words[a:b]).strip() for a, b in pairwise(bounds)]
    parts = [re.sub(r"\s*\n\s*", "\n", part) for part in parts if re.search(r"\w", part)]
    text = cues(*parts)
    result = translated(text.replace("\n", line_end), translate)
    assert result.count(line_end) == result.count("\n")
    blocks = [block.split("\n", 2) for block in result.replace("\r", "").split("\n\n")] if parts else []
    for i, (number, times, rest) in enumerate(blocks):
        assert [number, times] == text.split("\n\n")[i].split("\n", 2)[:2]
        assert re.search(r"\w", rest) and rest.count("<i>") == rest.count("</i>")
    assert len(blocks) == len(parts)


@pytest.mark.parametrize(
    ("lines", "sentences"),
    [
        ("[door opens]\nWhere are you", ["[door opens]", "Where are you"]),
        ("Where are you\n<i>(a dog barks)</i>", ["Where are you", "(a dog barks)"]),
        ("♪ We go home ♪\n♪ and home again ♪", ["♪ We go home ♪", "♪ and home again ♪"]),
        ("♪ We go home\nand home again ♪", ["♪ We go home and home again ♪"]),
        ("MR. HILL: Where are you\nB: Here", ["MR. HILL: Where are you", "B: Here"]),
        ("(I think that we\nare there) now", ["(I think that we are there) now"]),
    ],
)
def test_sounds_songs_and_speakers_are_texts_of_their_own(lines, sentences):
    cue = f"{TIMES}{lines}\n"
    assert asked(cue) == sentences
    assert translated(cue, unchanged) == cue
