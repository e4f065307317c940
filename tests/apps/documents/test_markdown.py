"""Markdown is read as its readers read it: CommonMark, tables and strikethrough as markdown-it-py does, which is the
judge here, and the signs of other dialects, which stay as they are."""

import re
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from tests.apps.documents.translators import asked, shuffled, translated, unchanged

from heed.apps.documents.formats.jobs import text_job
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.text.alignment import Link, Translated

JUDGE = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def capitals(texts: Sequence[str]) -> list[Translated]:
    """Each word in capitals, with links that say so."""
    return [
        Translated(text.upper(), [Link(*m.span(), *m.span()) for m in re.finditer(r"\w+|[^\w\s]", text)])
        for text in texts
    ]


def tree(text: str) -> list[object]:
    """What the judge reads, with words in capitals and single spaces."""
    return tokens_of(JUDGE.parse(text))


def tokens_of(tokens: Iterable[Token]) -> list[object]:
    found: list[object] = []
    words = ""
    for token in [*tokens, Token("end", "", 0)]:
        if token.type in ("text", "text_special"):
            words += token.content.upper()
            continue
        if words.split():
            found.append(" ".join(words.split()))
        words = ""
        if token.type == "inline":
            found.append(tokens_of(token.children or []))
        else:
            content = token.content.upper() if token.type in ("html_block", "image") else token.content
            found.append((token.type, token.tag, content, token.info, token.markup, sorted(token.attrs.items())))
    return found


def counts(text: str) -> dict[str, int]:
    """How often each link, image and the like is there. Emphasis goes where no word is left for it."""
    tags = re.findall(r"<[^>]*>", re.sub(' alt="[^"]*"', "", JUDGE.render(text)))
    return {tag: tags.count(tag) for tag in tags if not re.fullmatch("</?(?:em|strong|s|b)>", tag)}


# Documents made of nested blocks and inlines

WORD = st.sampled_from("one two three four five six seven eight".split())
THING = st.sampled_from(
    ["`code`", "``co`de``", "![an image](i.png)", "&copy;", r"\*", "<br>", "$a*b*c$", ":smile:", "{{< ref x >}}",
     "[[Page]]", "[^1]", "<!-- no *words* -->", "<kbd>a</kbd>", "[five]{.y}"]
)  # fmt: skip
LINK = st.sampled_from(["<https://x.org/a_b>", "https://x.org/a_b", "[*two* words]", "[x][]"])


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Some parts in a row, with spaces or line ends between them; words first and last, so that signs are markup."""
    middle = st.lists(st.tuples(parts, st.sampled_from([" ", " ", "\n"])).map("".join), max_size=4).map("".join)
    return st.tuples(WORD, st.sampled_from([" ", "\n"]), middle, WORD).map("".join)


def marked(inner: st.SearchStrategy[str], *pairs: tuple[str, str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(pairs), joined(inner)).map(lambda drawn: f"{drawn[0][0]}{drawn[1]}{drawn[0][1]}")


EMPHASIS = (("**", "**"), ("*", "*"), ("_", "_"), ("~~", "~~"), ("<b>", "</b>"))
WITHIN_LINK = WORD | THING | marked(WORD | THING, *EMPHASIS)
LINKS = LINK | marked(WITHIN_LINK, ("[", "](u_v 'w')"), ("[", "][x]"))
INLINES = joined(WORD | THING | LINKS | marked(WORD | THING | LINKS, *EMPHASIS))
PREFIXES = st.sampled_from([("", ""), ("> ", "> "), ("- ", "  "), ("1. ", "   "), ("> - ", ">   "), ("- [ ] ", "  "),
                            ("> [!NOTE]\n> ", "> ")])  # fmt: skip
CODE = st.sampled_from(["```\n*code*\n```", "    *code*", "<div>\n*html*\n</div>", "$$\n*a*\n$$", "::: note", "---"])


def block(drawn: tuple[tuple[str, str], str]) -> str:
    (first, others), words = drawn
    return first + words.replace("\n", "\n" + others)


BLOCKS = st.one_of(
    st.tuples(PREFIXES, INLINES).map(block),
    st.tuples(PREFIXES, INLINES).map(block),
    INLINES.map(lambda words: "## " + words.replace("\n", " ")),
    INLINES.map(lambda words: "| {0} | b |\n|---|---|\n| {0} | `x` |".format(words.replace("\n", " "))),
    CODE,
)  # fmt: skip
DOCUMENTS = st.lists(BLOCKS, min_size=1, max_size=4).map(
    lambda blocks: "\n\n".join([*blocks, "[x]: /y", "[*two* words]: <z> 'title'\n"])
)


@given(DOCUMENTS, st.sampled_from(["\n", "\r\n"]))
def test_a_document_keeps_its_bytes_and_its_tokens(text, line_end):
    text = text.replace("\n", line_end)
    assert translated(text, unchanged, "md") == text
    result = translated(text, capitals, "md")
    assert tree(result) == tree(text)
    assert result.count(line_end) == text.count(line_end)


@example("one\none [three <!-- no *words* --> four](u_v 'w') one one\n")  # a line must not begin with a comment
@given(DOCUMENTS)
def test_words_in_any_order_keep_each_element_once(text):
    assert counts(translated(text, shuffled, "md")) == counts(text)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("## How *to* {#a}\n\n[a word]{.x} and *em*{.y} `c`{.z}.\n", ["How to", "a word and em c."]),
        ("A paragraph.\n{: .lead .big }\n\n[TOC]\n", ["A paragraph."]),
        ("A width $w_{a}$ and $$b_*$$ here, for $5 or $10.\n", ["A width w_{a} and b_* here, for $5 or $10."]),
        (r"A \(\frac{a}{b}\), \\(b^*\\) and \[x\], file\(s\) and \[a note\]." + "\n\n\\[\nx\n- y\n\\]\n",
         [r"A \(\frac{a}{b}\), \\(b^*\\) and \[x\], file(s) and [a note]."]),
        ("It follows:\n\n$$\n\\sum_{i} x_i\n$$ {#eq}\n\n\\begin{a}\n*x*\n\\end{a}\n\n\\newpage\n", ["It follows:"]),
        ('!!! note "A title"\n    Words *a*.\n\n    - b\n\n??? tip\n\n    More.\n', ["Words a.", "b", "More."]),
        (":::{note}\n:class: x\n\nWords.\n:::\n\n/// tip\nMore.\n///\n\n::video[x]{y=z}\n", ["Words.", "More."]),
        ("See {doc}`guide <x>` and :ref:`y`.\n\n(target)=\n# A title\n", ["See guide <x> and y.", "A title"]),
        ("Watch {{< video src=\"a\" >}} first.\n\n{% include note.html %}\nWords.\n", ["Watch first.", "Words."]),
        ("{% highlight c %}\nint *a;\n{% endhighlight %}\nWords {{ name }} here.\n", ["Words here."]),
        ("Hello {name}, {{ user }} and { not this }.\n", ["Hello {name}, and { not this }."]),
        ("Term *one*\n: A definition\n  goes on\n: Another.\n\n  More.\n",
         ["Term one", "A definition goes on", "Another.", "More."]),
        ("Words[^a]: more.\n", ["Words: more."]),
        ("A[^1] b [@a04, p. 3] c.^[A *note*.]\n\n[^1]: Words\n    go on.\n\n    More.\n",
         ["A b c.", "A note.", "Words go on.", "More."]),
        ("See [[Page]], [[Page|the page]] and ![[a.png]] :smile: :+1: at 10:30:45.\n",
         ["See Page, the page and at 10:30:45."]),
        ("[a [[Page]] b[^1]](u) and [[1]](v)\n", ["a Page b and [1]"]),
        ("---\ntitle: Words\n---\nBody.\n", ["Body."]),
        ("---\nBody.\n\n---\n", ["Body."]),
        ("+++\ntitle = 'x'\n+++\n\nBody.\n", ["Body."]),
        ("> [!NOTE] A title\n> Words\n> here.\n\n- [x] done *a*\n", ["A title", "Words here.", "done a"]),
        ("import X from './x'\n\n<Note a={b}>\nWords.\n</Note>\n\nSee <X a={`*`} /> {/* no */}now.\n",
         ["Words.", "See now."]),
        ("1. Get it.\n\n2.\n        make all\n\n    Then wait.\n", ["Get it.", "Then wait."]),
        ("| a \\| b | `c \\| d` |\n|---|---|\n| e | [f](u) | more |\n", ["a | b", "e", "f"]),
        ("<a\n  title='words'\n>\n\nWords <!-- a\nb --> here.\n", ["Words here."]),
        ("Caf&eacute;&nbsp;&amp; &copy; \\*a\\* 1986\\. M&auml;dchen\n", ["Café & © *a* 1986.", "Mädchen"]),
        ("[![A\nbadge](b.svg)](c) All **is\nwell** [here\ntoo][x].\n\n[x]: y\n", ["All is well here too."]),
        ("www.a.b *c* https://a.b/c_d_e?f=*g* <https://a.b/_c_>\n", ["www.a.b c https://a.b/c_d_e?f=g https://a.b/_c_"]),
    ],
)  # fmt: skip
def test_signs_of_dialects_stay_and_words_are_sentences(text, sentences):
    assert translated(text, unchanged, "md") == text
    assert [" ".join(sentence.split(" ")) for sentence in asked(text, "md")][: len(sentences)] == sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '!!! note "one *two*"\n\n    a\n\n=== "three"\n\n    b\n',
            '!!! note "ONE *TWO*"\n\n    A\n\n=== "THREE"\n\n    B\n',
        ),
        (
            ":::tip[one]{.x}\n\na\n\n:::\n\n::: info two\nb\n:::\n",
            ":::tip[ONE]{.x}\n\nA\n\n:::\n\n::: info TWO\nB\n:::\n",
        ),
        (":::{note} one\na\n:::\n\n:::{figure} b.png\n:::\n", ":::{note} ONE\nA\n:::\n\n:::{figure} b.png\n:::\n"),
        ("/// note | one\na\n///\n\n/// html | div\nb\n///\n", "/// note | ONE\nA\n///\n\n/// html | div\nB\n///\n"),
        (
            "---\ntitle: one\ndescription: \"two\"\nkind: a\nsummary: '%1'\n---\n",
            "---\ntitle: ONE\ndescription: \"TWO\"\nkind: a\nsummary: '%1'\n---\n",
        ),
        ("+++\ntitle = \"one\"\nkind = 'a'\n+++\n", "+++\ntitle = \"ONE\"\nkind = 'a'\n+++\n"),
        ("> a ![one\n> *two*](a.png){.x}\n", "> A ![ONE *TWO*](a.png){.x}\n"),
        ("[![one](a.png)](b) ![two][k] ![k]\n\n[k]: a\n", "[![ONE](a.png)](b) ![TWO][k] ![k]\n\n[k]: a\n"),
        ('a <img src="a" alt="one"> b\n', 'A <img src="a" alt="ONE"> B\n'),
        (
            "<details>\n<summary title='one'>two\nthree</summary>\n\nfour\n",
            "<details>\n<summary title='ONE'>TWO THREE</summary>\n\nFOUR\n",
        ),
        ("- <div align=center>one <b>two</b></div>\n- a\n", "- <div align=center>ONE <b>TWO</b></div>\n- A\n"),
        ("<div markdown>\n*a*\n</div>\n\n<pre>\na\n</pre>\n", "<div markdown>\n*A*\n</div>\n\n<pre>\na\n</pre>\n"),
        (
            'a\n<b markdown="span">\n  ![one](a.png)\n  <p>two</p>\n</b>\n',
            'A\n<b markdown="span">\n  ![ONE](a.png)\n  <p>TWO</p>\n</b>\n',
        ),
        (
            '--8<-- "a.md"\n\none\n\n--8<--\na.md\n--8<--\n\n*[ab]: words\n',
            '--8<-- "a.md"\n\nONE\n\n--8<--\na.md\n--8<--\n\n*[ab]: words\n',
        ),
        ("go ++ctrl+x++ on, c++ and d++\n", "GO ++ctrl+x++ ON, C++ AND D++\n"),
    ],
)
def test_words_that_readers_see_in_the_markup_are_translated(text, expected):
    assert translated(text, capitals, "md") == expected
    assert translated(text, unchanged, "md") == text
    none = run_job(text_job(text, "md", DocumentOptions(language="en", attributes=False)), unchanged)
    assert none == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("![words](a)\n", "![a\\](b) \"'\\[c: #d](a)\n"),
        ('!!! x "words"\n', "!!! x \"a](b) ''[c: #d\"\n"),
        (":::x[words]\n", ":::x[a\\](b) \"'\\[c: #d]\n"),
        ("---\ntitle: words\n---\n", '---\ntitle: "a](b) \\"\'[c: #d"\n---\n'),
        ("---\ntitle: 'words'\n---\n", '---\ntitle: "a](b) \\"\'[c: #d"\n---\n'),
    ],
)
def test_words_in_the_markup_take_no_sign_that_would_end_them(text, expected):
    assert translated(text, said("a](b) \"'[c: #d"), "md") == expected


def test_the_first_cell_of_a_row_without_a_bar_begins_no_list():
    assert translated("a | b\n---|---\nc | d\n", said("24. X"), "md") == ("24\\. X | 24. X\n---|---\n24\\. X | 24. X\n")
    assert translated("words\nhere\n", said("a | b --|--"), "md") == "a | b\n\\--|--\n"


GRID = """> +--------+-------+
> | Fruit  | Price |
> +========+=======+
> | apples | - low |
> |        | - 犬  |
> +--------+-------+
"""
COLUMNS = """  Right  Left         Middle
-------  ---------  ----------
     12  words        here
      3  more          x
"""


def test_tables_drawn_with_characters_stay_as_they_are():
    for table in (GRID, COLUMNS, "+---+---+\n| a | b |\n|   +---+\n| c     |\n+---+---+\n"):
        assert asked(f"{table}\nwords\n", "md") == ["words"] and translated(table, unchanged, "md") == table
    assert asked("+--\n| a |\n", "md") and asked("a b\n-- --\nwords here\n", "md")


def said(translation: str):
    return lambda texts: [Translated(translation) for _ in texts]


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("words", "a *b* `c` [d](e) <f> &amp; $g$ :h: https://x.org/a_b", None),
        ("words", "===", "\\==="),
        ("> words", "```", "> \\```"),
        ("| a | words |\n|---|---|\n", "a | b", None),
        ("words", "    code", "code"),
        ("**Hard** *disk*", "Festplatte", "**Festplatte**"),
    ],
)
def test_signs_that_a_model_writes_are_words(text, translation, expected):
    result = translated(text, said(translation), "md")
    shape = [kind for kind, *_ in (part for part in tree(result) if isinstance(part, tuple))]
    assert shape == [kind for kind, *_ in (part for part in tree(text) if isinstance(part, tuple))]
    assert expected is None or result == expected
    assert re.sub(r"<[^>]*>|\s", "", JUDGE.render(result)).count("*") == translation.count("*") * text.count("words")


def test_code_of_which_nothing_was_copied_stays_apart():
    result = translated("see `a` and `b`\nor `c` here", said("siehe"), "md")
    assert counts(result)["<code>"] == 3


def test_a_comment_does_not_become_a_block_of_its_own():
    assert translated("one one <!-- c --> one one\n", shuffled, "md") == "ONE <!-- c --> ONE ONE ONE\n"
    assert translated("<!-- c --> one one\n", shuffled, "md") == "<!-- c --> ONE ONE\n"  # which is one
