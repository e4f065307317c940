"""Tables of text: the cells of the columns that are asked for are translated, and everything else keeps its bytes."""

import csv
import io

import pytest
from tests.apps.documents.translators import swapped_case, translate_document, unchanged

from heed.errors import HeedError
from heed.text.alignment import Translated


def table(text: str, *columns: str, translate=swapped_case) -> str:
    return translate_document(
        text.encode(), translate, format="table", language="en", name="a.csv", columns=columns
    ).decode()


COMMAS = '\ufeffid,name,"the text"\r\nA1,One,"a ""b"", c"\r\nA2,"Two",x\n\nA3,"t\nwo"\n'


def test_columns_are_found_by_name_and_number_and_names_stay():
    assert table(COMMAS, translate=unchanged) == COMMAS
    assert table(COMMAS, "name") == COMMAS.replace("One", "oNE").replace("Two", "tWO").replace("t\nwo", "T\nWO")
    assert table(COMMAS, "the text") == COMMAS.replace('a ""b"", c', 'A ""B"", C').replace(",x", ",X")
    assert table("A1,One\n", "2") == "A1,oNE\n"
    with pytest.raises(HeedError, match=r"a.csv: --columns 4: the first line has 3 columns: id, name, the text"):
        table(COMMAS, "4")


def test_without_columns_all_cells_are_translated_but_what_looks_like_names():
    assert table("id,some.text\n1,one\n") == "id,some.text\n1,ONE\n"
    for text in ("id,one two\n1,one\n", "one\ntwo\n", "one,two\n", "one,one\na,b\n"):
        assert table(text) == text.upper()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb, c\tone\n", "a\tb, c\tONE\n"),
        ("a;b, c;one\n", "a;b, c;ONE\n"),
        ("a|b|one|\n", "a|b|ONE|\n"),
        ('a,"b,one\n', 'a,"b,ONE\n'),  # a quote that nothing closes is a sign of the text
        ('a,5" x,one\n', 'a,5" x,ONE\n'),
    ],
)
def test_delimiters_are_those_of_the_first_line(text, expected):
    assert table(text, "3") == expected


def test_a_translation_with_a_delimiter_or_a_quote_stays_in_its_cell():
    made = table("a,one\n", "2", translate=lambda _: [Translated('"x", y')])
    assert list(csv.reader(io.StringIO(made))) == [["a", '"x", y']]
