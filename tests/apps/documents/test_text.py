import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apps.documents.translators import (
    asked,
    linked,
    shuffled,
    swapped_case,
    translate_document,
    translated,
    unchanged,
    within_seconds,
)

from heed.apps.documents.text.sentences import splitter
from heed.errors import HeedError
from heed.text.alignment import Translated

WORDS = st.sampled_from(
    "The dog runs. A cat! e.g. https://a.b/c?d=e. 123 😀 Mr. Smith's i.e. наш 犬が走る。 x@y.org".split()
)
TIMES = "1\n00:00:01,000 --> 00:00:02,000\n"  # that begin a subtitle
LINES = st.lists(st.lists(st.tuples(WORDS, st.sampled_from([" ", "  ", "\t", "\u00a0"])).map("".join)).map("".join))
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\u2028", "\n \n"])


@given(LINES, ENDS)
def test_a_translator_that_changes_nothing_changes_no_byte(lines, end):
    text = end.join(lines)
    for format in ("text", "md", "srt"):
        document = TIMES + text if format == "srt" else text
        assert translated(document, unchanged, format) == document


@given(LINES, ENDS)
def test_line_ends_and_white_space_between_lines_survive_any_order_of_words(lines, end):
    text = end.join(lines)
    result = translated(text, shuffled, "text")
    assert re.findall(r"\r\n|[\n\r\u2028]", result) == re.findall(r"\r\n|[\n\r\u2028]", text)
    assert [bool(line.strip()) for line in result.splitlines()] == [bool(line.strip()) for line in text.splitlines()]
    assert result.count("https://a.b/c?d=e") == text.count("https://a.b/c?d=e")


def test_white_space_between_sentences_is_put_back_and_what_has_no_words_is_not_translated():
    text = "Mr. Smith left.  Why?\tNobody knows.\n\n  https://a.b/c\n42 😀\n"
    assert translated(text, swapped_case, "text") == "mR. sMITH LEFT.  wHY?\tnOBODY KNOWS.\n\n  https://a.b/c\n42 😀\n"
    assert asked(text, "text") == ["Mr. Smith left.", "Why?", "Nobody knows."]


def test_a_wrapped_paragraph_is_translated_as_sentences_and_wrapped_again():
    text = (
        "The committee met on a cold morning in the old town hall to talk\n"
        "about the road. Nobody had brought the plans that the engineers\n"
        "made.\n"
    )
    result = translated(text, swapped_case, "text")
    assert result == text.swapcase()
    verses = "I went away\nand came again\n"
    assert translated(verses, shuffled, "text").splitlines()[1].split() != []


ITEMS = st.tuples(
    st.sampled_from(["1. ", "12) ", "- ", "* ", "• ", "– ", "From: ", "e-mail: "]),
    st.lists(st.sampled_from("the dog ran to an old house".split()), min_size=1, max_size=20).map(" ".join),
).map("".join)


@given(st.lists(ITEMS))
def test_items_of_a_list_and_fields_are_translated_one_by_one(lines):
    expected = "\n".join(translated(line, shuffled, "text") for line in lines)
    assert translated("\n".join(lines), shuffled, "text") == expected


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("- Install the package with the manager of\n  packages\n- Run the tests", 2),
        ("- Install the package with the manager of\npackages\n- Run the tests", 2),
        ("Jane Smith, chairwoman of the parish council\nOld Town Hall", 2),
        ("Jane Smith, chairwoman of the parish council\n12 High Street", 2),
        ("Jane Smith, chairwoman of the parish council\nof the old town", 1),
    ],
)
def test_two_lines_are_one_sentence_only_if_the_second_goes_on(text, sentences):
    assert len(asked(text, "text")) == sentences


def test_a_language_code_begins_no_quotation():
    text = ">>deu<< Hello there.\n> >>fra<< Go on.\n>>Stop"
    assert asked(text, "text") == [">>deu<< Hello there.", ">>fra<< Go on.", "Stop"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "> > She walked for a long time because the last of the buses had\n> > gone.\n> I see.",
            ["She walked for a long time because the last of the buses had gone.", "I see."],
        ),
        (
            "  1. The first of all these items is so long that it goes on in\n     another line.\n  2. Short.",
            ["The first of all these items is so long that it goes on in another line.", "Short."],
        ),
        (
            "    It was a dark and stormy night, and the rain fell in torrents\nupon the roofs of\nLondon.",
            ["It was a dark and stormy night, and the rain fell in torrents upon the roofs of", "London."],
        ),
        (
            "    A block of text that somebody has indented by four columns may\n    be wrapped as well.",
            ["A block of text that somebody has indented by four columns may be wrapped as well."],
        ),
        ("Flowed lines end with \na space, and the last \none does not.\nBest", ["Flowed lines end with a space, "
         "and the last one does not.", "Best"]),
        (
            "The state-of-the-art system, which is well-\nknown, has be-\ncome a well-known Haupt-\nund Staatsakt.",
            ["The state-of-the-art system, which is well-known, has become a well-known Haupt- und Staatsakt."],
        ),
        (
            "We keep the birthday of our good old friend Anna in the garden on\n3. of July.",
            ["We keep the birthday of our good old friend Anna in the garden on 3. of July."],
        ),
        (
            "Hello Jane,\nwe went to the old store yesterday because we were out of milk and\nbread. Bye\nJohn",
            ["Hello Jane,", "we went to the old store yesterday because we were out of milk and bread.", "Bye", "John"],
        ),
        (
            "Results of the summer\n---------------------\nTerm\n    Its meaning in few words",
            ["Results of the summer", "Term", "Its meaning in few words"],
        ),
    ],
)  # fmt: skip
def test_wrapped_lines_are_one_text_whatever_stands_before_or_behind_their_words(text, sentences):
    assert asked(text, "text") == sentences
    assert translated(text, unchanged, "text") == text
    result = translated(text, shuffled, "text").splitlines()
    prefix = re.compile(r"[> ]*(?:\d\. )?")
    for before, after in zip(text.splitlines(), result, strict=True):
        assert prefix.match(after)[0].startswith(prefix.match(before)[0].replace("3. ", ""))


HYPHENATED = st.sampled_from(
    ["be-", "well-", "under-", "> ", "  ", "- ", "2. ", "und", "Big", "the old house", "~", " "]
)


@given(
    st.lists(st.tuples(HYPHENATED, st.sampled_from(["", " ", "\n", " \n", "\n> ", "-\n"])).map("".join)).map("".join)
)
def test_plain_text_of_any_shape_survives_a_translator_that_changes_nothing(text):
    assert translated(text, unchanged, "text") == text
    translated(text, shuffled, "text")


def test_a_document_that_is_no_utf_8_or_too_long_is_refused():
    with pytest.raises(HeedError, match=r"a\.txt: byte 2 \(0xff\) is not UTF-8"):
        translate_document(b"a\xff", unchanged, format="text", language="en", name="a.txt")
    with pytest.raises(HeedError, match="longer than"):
        translate_document(b"a" * (2**25 + 1), unchanged, format="text", language="en", name="a.txt")
    assert translate_document(b"\xef\xbb\xbfHi you", swapped_case, format="text", language="en", name="") == (
        b"\xef\xbb\xbfhI YOU"
    )


def test_without_sentencex_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(HeedError, match="pip install heed-mt"):
        splitter("en")


@pytest.mark.parametrize(("version", "told"), [(None, "and none is installed"), ("2.2.0", "and 2.2.0 is installed")])
def test_without_markdown_it_py_one_line_says_what_to_install(monkeypatch, version, told):
    for name in [name for name in sys.modules if name.startswith("heed.apps.documents.formats.markdown")]:
        monkeypatch.delitem(sys.modules, name)
    if version is None:
        monkeypatch.setitem(sys.modules, "markdown_it", None)
    else:
        monkeypatch.setattr("markdown_it.__version__", version)
    with pytest.raises(HeedError, match=f"{told}: pip install heed-mt"):
        translated("words", unchanged, "md")


def test_text_behind_a_blank_line_of_a_subtitle_is_translated():
    text = "a title\n\n1\n00:00:01,000 --> 00:00:02,000\none\n\ntwo\n\n7\n00:00:03,000 --> 00:00:04,000\n\nthree\n"
    assert translated(text, swapped_case, "srt") == (
        text.replace("one", "ONE").replace("two", "TWO").replace("three", "THREE")
    )


MARKS = st.sampled_from(
    "* ** _ ` `` [ ] [] ]( ) ](a) ![ <b> </b> <code> </code> <script> </script> <!-- --> \\ | # >  - 1. ``` ~~~ --- "
    "word Two.words http://a_b.c/*d a_b@c.d &amp; [^1] [word] [word]:␣x ␣ ␤".split(" ")
).map(lambda mark: mark.replace("␣", "    ").replace("␤", "\n"))


@given(st.lists(st.tuples(MARKS, st.sampled_from(["", " "])).map("".join), max_size=40).map("".join))
def test_any_markdown_survives_a_translator_that_changes_nothing(text):
    assert translated(text, unchanged, "md") == text
    translated(text, shuffled, "md")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. ```sh\n   code\n   ```\n2. text\n", "1. ```sh\n   code\n   ```\n2. TEXT\n"),
        ("> ```\n> code\n\nwords\n", "> ```\n> code\n\nWORDS\n"),
        ("```\n> code\ncode\n```\nwords\n", "```\n> code\ncode\n```\nWORDS\n"),
        ("<pre>\n> code\n\ncode\n</pre>\nwords\n", "<pre>\n> code\n\ncode\n</pre>\nWORDS\n"),
        ("10. ```\n    code\n    ```\n\n    words\n", "10. ```\n    code\n    ```\n\n    WORDS\n"),
        ("a</code> words <code>b</code>\n", "A</code> WORDS <code>b</code>\n"),
        ("press\n<kbd>a</kbd> now\n", "PRESS\n<kbd>a</kbd> NOW\n"),
        ("see https://x.org/a_b_c?d=1&amp;e=2 now\n", "SEE https://x.org/a_b_c?d=1&amp;e=2 NOW\n"),
        ("a_b@example.org says\n", "a_b@example.org SAYS\n"),
        ("**https://x.org/a** [https://x.org](https://x.org)", "**https://x.org/a** [https://x.org](https://x.org)"),
        ("<script>\n\ncode\n\n</script>\n\nwords\n", "<script>\n\ncode\n\n</script>\n\nWORDS\n"),
        ("<!-- one line -->\nwords\n<div>\nhtml\n\nwords\n", "<!-- one line -->\nWORDS\n<div>\nHTML\n\nWORDS\n"),
        ("**see ![icon](i.png)** here\n", "**SEE ![ICON](i.png)** HERE\n"),
        ("**see `code`** here\n", "**SEE `code`** HERE\n"),
        ("use <kbd>ctrl &amp; c</kbd> here\n", "USE <kbd>ctrl &amp; c</kbd> HERE\n"),
        ("[a guide], [no].\n\n[A  guide]: http://x\n", "[A GUIDE][a guide], [NO].\n\n[A  guide]: http://x\n"),
        ("[a guide][] and [b][a guide]\n\n[a guide]: x\n", "[A GUIDE][a guide] AND [B][a guide]\n\n[a guide]: x\n"),
        ("> [!NOTE]\n> words\n", "> [!NOTE]\n> WORDS\n"),
        ("<img src=i> words\nwords\n\nwords\n", "<img src=i> WORDS\nWORDS\n\nWORDS\n"),
        ("words\n<br>words\n<input> words\n", "WORDS\n<br>WORDS\n<input> WORDS\n"),
        ("words words\n<input>\nwords words\n", "WORDS WORDS\n<input>\nWORDS WORDS\n"),
        ("<img src=i>\nhtml\n\nwords\n", "<img src=i>\nHTML\n\nWORDS\n"),
        ("words\n<div>\nhtml\n\nwords\n", "WORDS\n<div>\nHTML\n\nWORDS\n"),
        ('<img\n  alt="a > b"\n>\nwords\n', '<img\n  alt="a > b"\n>\nWORDS\n'),
        ('<img alt="a > b"> words\n', '<img alt="A > B"> WORDS\n'),
        ("<b and c\n\nwords\n", "<B AND C\n\nWORDS\n"),
        ("    # code\n\nwords\n", "    # code\n\nWORDS\n"),
        ("words\n\n    - code\n    code\n\nwords\n", "WORDS\n\n    - code\n    code\n\nWORDS\n"),
        ("- words\n\n    - words\n      words\n", "- WORDS\n\n    - WORDS\n      WORDS\n"),
        ("a `code\ncode` word `code`\nword `c`\n", "A `code\ncode` WORD `code`\nWORD `c`\n"),
        ("> a `code\n> code` word `code\n> code`.\n", "> A `code\n> code` WORD `code\n> code`.\n"),
        (
            "a ``code `\ncode`` \\`word `c`\n\nb `word\n\n`word\n",
            "A ``code `\ncode`` \\`WORD `c`\n\nB `WORD\n\n`WORD\n",
        ),
        ("see [a guide]\n\n[a guide]:\n  x/y\n", "SEE [A GUIDE][a guide]\n\n[a guide]:\n  x/y\n"),
        ("words\n[words]:\nwords\n", "WORDS\n[WORDS]:\nWORDS\n"),
        ("words\n    - words\n", "WORDS\n    - WORDS\n"),
        ("words[^1]\n\n[^1]: words\n\n    - words\n", "WORDS[^1]\n\n[^1]: WORDS\n\n    - WORDS\n"),
        ('> a <a title="`"> words\n> b `code` c\n', '> A <a title="`"> WORDS\n> B `code` C\n'),
        ("a [x](`y) b\nb `code` c\n", "A [X](`y) B\nB `code` C\n"),
        ("# a `b\nc word `code`\n", "# A `B\nC WORD `code`\n"),
        (
            "10. a\n\n    words\n\n        code\n\nb\n\n    code\n",
            "10. A\n\n    WORDS\n\n        code\n\nB\n\n    code\n",
        ),
    ],
)
def test_markdown_is_read_as_commonmark_reads_it(text, expected):
    assert translated(text, unchanged, "md") == text
    assert translated(text, swapped_case, "md") == expected


def test_rules_of_tables_are_told_apart_in_no_time():
    for rule in ("| --- |:---:|", "--- | ---", "|---", ":-: | -", "|" + "---|" * 500):
        assert translated(f"a | b\n{rule}\nc | d\n", swapped_case, "md") == f"A | B\n{rule}\nC | D\n"
    for words in ("-" * 60 + "|x", "|" + "-" * 40 + "+" + "-" * 40 + "|"):  # the second is a table of Emacs
        with within_seconds(10):
            translated(f"a | b\n{words}\nc | d\n", unchanged, "md")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "a\n-" + " " * 200_000 + "|x",
        "`" * 400_000 + "x`",
        "a\n" + "-|" * 100_000 + "x",
        "a\n" + "-" * 10**6 + "|x",
        "a `a\n" + "a` `a\n" * 50_000,
    ],
    ids=["spaces of a rule", "fence", "cells", "dashes", "code over line ends"],
)
def test_lines_that_are_almost_markup_take_no_longer_than_others(page):
    with within_seconds(5):
        translated(page, unchanged, "md")


def test_emphasis_around_code_that_the_model_has_not_copied_is_still_emphasis():
    def without_code(texts):
        return [Translated("schau") for _ in texts]

    assert translated("look at *`a.b`*", without_code, "md") == "schau *`a.b`*"


def test_a_line_break_in_markdown_separates_words():
    text = "| install it<br>then run it | x |\n|---|---|\n| one<br/>two | ![a](b.png)c |\n"
    result = translated(text, swapped_case, "md")
    assert result == text.swapcase().replace("BR", "br").replace("B.PNG", "b.png")
    assert {"install it", "then run it", "one", "two"} <= set(asked(text, "md"))


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("thank you\nvery much.", "Danke sehr.", "Danke\nsehr."),
        ("thank you\nvery much.", "Danke.", "Danke."),
        ("where are\nyou going?", "Wohin ?", "Wohin ?"),
        ("where is\nthe dog", "\u72d7\u5728", "\u72d7\n\u5728"),
    ],
)
def test_no_line_begins_with_a_full_stop(text, translation, expected):
    head = "1\n00:00:01,000 --> 00:00:02,000\n"
    assert translated(head + text + "\n", lambda _: [Translated(translation)], "srt") == head + expected + "\n"


def test_no_translation_begins_a_subtitle():
    head, times = "1\n00:00:01,000 --> 00:00:02,000\n", "0:0:0,0 --> 0:0:1,0"
    for text, translation in (("one", f"{times} two"), ("one two three\nfour five six", f"two three four {times}")):
        result = translated(head + text + "\n", lambda _, found=translation: [Translated(found)], "srt")
        assert result == head + translation.replace("four ", "four\n").replace("-->", "–") + "\n"


def test_the_backslash_of_a_hard_line_break_is_no_word():
    assert asked("Line one\\\nline two\\\\\nline three\\", "md") == ["Line one", "line two\\ line three"]


def with_sign(sign: str):
    return lambda texts: [Translated(text.replace("words", f"{sign}words")) for text in texts]


@pytest.mark.parametrize(
    "start", ["", "> ", ">   > ", "- ", "- >  ", "1. - ", "- [ ] ", "[^1]: ", "  ", "`a`\n", "a\\\n"]
)
def test_no_translation_begins_a_list_a_quotation_or_a_heading(start):
    for sign, space in (("1.", " "), ("12)", " "), ("-", " "), ("+", " "), ("*", " "), (">", ""), ("##", " ")):
        result = translated(start + "words", with_sign(sign + space), "md")
        assert result == f"{start}{sign[:-1]}\\{sign[-1]}{space}words"
        assert translated(result, unchanged, "md") == result


def test_signs_of_lists_are_words_elsewhere():
    for text in ("# words\n", "a words\n", "| a | words |\n|---|---|\n"):
        assert translated(text, with_sign("1. "), "md") == text.replace("words", "1. words")


@pytest.mark.parametrize(
    ("text", "question", "translation", "expected"),
    [
        ("Go 10\xa0km, 3\u202f000\u202f€.", "Go 10 km, 3 000 €.", "3 000 €, 10 km.", "3\u202f000\u202f€, 10\xa0km."),
        ("See page\xa05 or page 5.", "See page 5 or page 5.", "Seite 5 oder Seite 5.", "Seite\xa05 oder Seite 5."),
        ("Dr.\xa0 Hill says\xa0: yes", "Dr. Hill says : yes", "Dr. Hill sagt ja", "Dr.\xa0 Hill sagt ja"),
        ("\ufeffOne\xa0house", "One house", "Ein Haus", "\ufeffEin Haus"),
    ],
)  # fmt: skip
def test_a_model_reads_no_break_spaces_as_spaces_and_they_stay_where_their_words_do(
    text, question, translation, expected
):
    assert asked(text, "text") == [question]
    assert translated(text, unchanged, "text") == text
    assert translated(text, lambda _: [Translated(translation)], "text") == expected


def test_links_move_with_the_words_behind_no_break_spaces():
    page = "<p>Of 10&nbsp;&nbsp;km <b>go</b> {one}</p>"
    assert translated(page, linked, "html") == "<p>oF 10&nbsp;&nbsp;KM <b>GO</b> {one}</p>"
