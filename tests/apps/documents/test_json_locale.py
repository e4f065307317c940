"""Texts of programs in JSON: which strings are translated, and what stays."""

import json
import re

import pytest
from tests.apps.documents.translators import swapped_case, translate_document, unchanged

from heed.errors import HeedError
from heed.text.alignment import Translated


def translated(text: str, translate=swapped_case, target: str = "de", **options) -> str:
    return translate_document(
        text.encode(), translate, format="json", language="en", target=target, name="en.json", **options
    ).decode()


def test_strings_are_translated_and_keys_numbers_and_layout_stay():
    text = (
        '\ufeff{ "Save": "Save it",\r\n\t"n":[1,-2.5e3,true , null,"a \\u00e9\\n{{count}} $t(of.key)"],'
        '"":{}, "x":"https://a.de" }\n'
    )
    assert translated(text, unchanged) == text and translated('"one"') == '"ONE"'
    assert translated(text) == text.replace("Save it", "sAVE IT").replace("a \\u00e9", "A \\u00c9")


def test_of_icu_messages_the_words_are_translated_and_an_apostrophe_before_an_argument_is_doubled():
    text = '{"a": "{n, plural, one {a file of {name}} other {# files}}"}'
    assert translated(text) == text.replace("a file of", "A FILE OF").replace("files", "FILES")
    quoted = translated(text, lambda texts: [Translated(t.replace("of ", "d'")) for t in texts])
    assert "a file d''{name}" in quoted
    assert translated('{"a": "Words \'{braces}\' here"}') == '{"a": "wORDS \'{braces}\' HERE"}'


def test_of_laravel_and_vue_names_stay_and_forms_are_texts_of_their_own():
    seen: list[str] = []

    def translate(texts):
        seen.extend(texts)
        return swapped_case(texts)

    text = '{"a": "Hi, :name (:Age): 5:30", "b": "{0} none|[1,19] some", "c": "a car | {n|up} cars"}'
    expected = '{"a": "hI, :name (:Age): 5:30", "b": "{0} NONE|[1,19] SOME", "c": "A CAR | {n|up} CARS"}'
    assert translated(text, translate) == expected
    assert not any("|" in one.replace("{n|up}", "") for one in seen) and translated(text, unchanged) == text


def test_descriptions_and_metadata_of_texts_stay():
    chrome = {"message": "to $WHO$", "description": "told", "placeholders": {"who": {"content": "$1"}}}
    text = {"@@locale": "en", "save": "save", "@save": {"description": "a button"}, "a.b": chrome}
    found = json.loads(translated(json.dumps(text)))
    assert found == text | {"@@locale": "de", "save": "SAVE", "a.b": chrome | {"message": "TO $WHO$"}}


@pytest.mark.parametrize(("target", "more"), [("de", []), ("pl", ["few", "many"]), ("fr", ["many"])])
def test_i18next_gets_the_plural_forms_of_the_target(target, more):
    text = '{\n  "item_one": "{{count}} item",\n  "item_other": "{{count}} items",\n  "last": 1\n}'
    members = "".join(f',\n  "item_{form}": "{{{{count}}}} ITEMS"' for form in more)
    assert translated(text, target=target) == text.replace('item"', 'ITEM"').replace('items"', f'ITEMS"{members}')


def test_a_singular_without_a_number_is_not_said_of_21():
    text = (
        '{"a_one": "one item", "a_other": "{{count}} items", "b_one": "{{count}} item", "b_other": "{{count}} items"}'
    )
    found = json.loads(translated(text, target="ru"))
    assert found["a_one"] == found["a_few"] == "{{count}} ITEMS" and found["b_one"] == "{{count}} ITEM"
    assert json.loads(translated(text))["a_one"] == "ONE ITEM"


def test_texts_of_an_earlier_file_stay_and_what_is_missing_is_added():
    text = '{"a": {"b": "one", "c_one": "two", "c_other": "more"}, "d": "two"}'
    earlier = {"a": {"b": "eins", "c_few": "wenige"}, "d": "", "gone": "x"}
    found = json.loads(translated(text, target="cs", earlier=json.dumps(earlier).encode()))
    assert found == {"a": {"b": "eins", "c_one": "TWO", "c_other": "MORE", "c_few": "wenige"}, "d": "TWO"}


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "Expecting value"), ('{"a" "b"}', "line 1, column 6: not JSON: Expecting ':' delimiter"),
     ('["a",]', "line 1, column"), ('{"a":1,}', "line 1, column"), ('["\n"]', "control character"),
     ("[1] 2", "Extra data"), ("[NaN]", "NaN is no number"), ("[" * 201 + "]" * 201, "more than 200 levels"),
     ("[" * 200_000, "more than 200 levels"), ("[1", "',' delimiter"), ("{'a':1}", "in double quotes")],
)  # fmt: skip
def test_what_is_not_json_is_refused_with_its_place(text, told):
    with pytest.raises(HeedError, match=f"en.json: .*{re.escape(told)}") as error:
        translated(text)
    assert "\n" not in str(error.value)
