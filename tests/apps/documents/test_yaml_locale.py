"""Texts of programs in YAML: which values are translated, and that all else keeps its bytes."""

import re

import pytest
import yaml
from tests.apps.documents.translators import swapped_case, translate_document, unchanged
from tests.samples import sample

from heed.apps.documents.formats import yaml_locale
from heed.errors import HeedError
from heed.text.alignment import Translated


def translated(text: str, translate=swapped_case, target: str = "de", **options) -> str:
    return translate_document(
        text.encode(), translate, format="yaml", language="en", target=target, name="en.yml", **options
    ).decode()


RAILS = sample("shop.yaml")


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_values_that_are_texts_are_translated_and_all_else_stays(loader, monkeypatch):
    monkeypatch.setattr(yaml_locale, "_LOADER", loader)
    assert translated(RAILS, unchanged) == RAILS.replace("\nen:", "\nde:")
    expected = RAILS.replace("\nen:", "\nde:").replace('"Tab\\there \\u00e9"', '"tAB\\tHERE É"')
    shown = ("Your cart is empty", "It''s", "''s'", "One thing", "} things", "a thing", "- words", "One line")
    for words in shown:
        expected = expected.replace(words, words.swapcase())
    expected = expected.replace("and  another", "AND ANOTHER").replace('"No"', '"nO"').replace('"on"', '"ON"')
    expected = expected.replace("words that\n    go on", "WORDS THAT GO ON").replace("and end", "AND END")
    assert translated(RAILS) == expected


def test_plurals_get_the_forms_of_the_target_and_comments_stay_with_their_values():
    found = translated(RAILS, target="pl")
    assert '    other: "%{count} THINGS" # both\n    few: "%{count} THINGS"\n    many: "%{count} THINGS"\n' in found
    assert translated("a: {one: x, other: y}", target="pl") == "a: {one: X, other: Y, few: Y, many: Y}"
    assert "one: '%{count} THINGS'" in translated(RAILS, target="ru")  # whose form of 1 is that of 21 too


SOURCES = ["one", "'one'", '"one"', "|\n    one\n", ">-\n    one\n", "&a one", "[one]", "{b: one}"]
TRANSLATIONS = [
    *("a: b", "- x", "yes", "1.5", "#x", "x #y", "it's", 'say "so"', "a, b]}", "", "%", "é\\n", "@a", "a\u2028b"),
    *(":a", "\x7f🛒", "*a", "&a", "!a", "? a", "{a", "| a", "null", "2020-01-01", "---", "a\tb"),
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("words", TRANSLATIONS)
def test_any_translation_is_read_as_its_words(source, words):
    text = f"en:\n  a: {source}\n  last: 1\n" if "\n" not in source else f"en:\n  a: {source}  last: 1\n"
    found = yaml.safe_load(translated(text, lambda texts: [Translated(words) for _ in texts]))
    value = found["de"]["a"]
    while isinstance(value, list | dict):
        value = value[0] if isinstance(value, list) else value["b"]
    assert value.rstrip("\n") == (words.strip() or "one").replace("\u2028", " ") and found["de"]["last"] == 1


def test_forms_with_bars_between_them_are_texts_of_their_own():
    text = 'a: "{0} none|{1} one thing|]1,Inf[ %count% things, :x"\nb: Home | {c|d}\n'
    expected = 'a: "{0} NONE|{1} ONE THING|]1,Inf[ %count% THINGS, :X"\nb: hOME | {c|d}\n'
    assert translated(text) == expected


def test_only_the_root_of_the_source_is_translated_and_a_file_of_no_language_whole():
    assert translated("fr:\n  a: un\nen:\n  a: one\n") == "fr:\n  a: un\nde:\n  a: ONE\n"
    assert translated("'en':\n  a: {dir: ltr}\n") == "'de':\n  a: {dir: ltr}\n"
    assert translated("en: English\nde: german\n") == "en: eNGLISH\nde: GERMAN\n"


def test_texts_of_an_earlier_file_stay_and_what_is_missing_is_added():
    text = "en:\n  a: one\n  b:\n    one: a thing\n    other: things\n"
    earlier = "de:\n  b: {one: ein Ding, few: 'wenige: x'}\n"
    found = translated(text, target="cs", earlier=earlier.replace("de:", "cs:").encode())
    expected = {"a": "ONE", "b": {"one": "ein Ding", "other": "THINGS", "few": "wenige: x"}}
    assert yaml.safe_load(found) == {"cs": expected}


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: b: c", "line 1, column 5: not YAML: "), ("a:\n\t- b", "line 2, column 1: not YAML: "),
     ("a: b\n'", "line 2, column 2: not YAML: "), ("a: \x01", "not YAML: "),
     ("[" * 201, "line 1: more than 200 levels"),
     ("- " * 201, "line 1: more than 200 levels")],
)  # fmt: skip
def test_what_is_not_yaml_is_refused_with_its_place(text, told):
    with pytest.raises(HeedError, match=f"en.yml: {re.escape(told)}") as error:
        translated(text)
    assert "\n" not in str(error.value)
