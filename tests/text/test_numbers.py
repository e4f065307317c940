"""The self-made corpus is right German, and no held-out number is trained on."""

import random
import re

import pytest

from heed.text.numbers import SPELLINGS, english, german, number_splits, spelled


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (70, "seventy", "siebzig"),
        (101, "one hundred one", "einhunderteins"),
        (1000, "one thousand", "eintausend"),
        (1001, "one thousand one", "eintausendeins"),
        (17017, "seventeen thousand seventeen", "siebzehntausendsiebzehn"),
        (42107, "forty-two thousand one hundred seven", "zweiundvierzigtausendeinhundertsieben"),
        (101_000, "one hundred one thousand", "einhunderteintausend"),
        (
            987_654,
            "nine hundred eighty-seven thousand six hundred fifty-four",
            "neunhundertsiebenundachtzigtausendsechshundertvierundfünfzig",
        ),
    ],
)
def test_numbers_are_spelt_as_the_dictionary_has_them(number, en, de):
    assert (english(number), german(number)) == (en, de)


def test_every_number_has_a_name_of_its_own():
    sample = [*range(2000), *range(100_000, 1_000_000, 997)]
    assert len({english(n) for n in sample}) == len({german(n) for n in sample}) == len(sample)


def test_no_held_out_number_is_trained_on_and_none_comes_twice():
    splits = number_splits(n_train=5000, n_dev=100, n_test=300)
    numbers = splits.train + splits.dev + splits.test
    assert len(set(numbers)) == len(numbers) == 5400
    assert number_splits(n_train=20, n_dev=100, n_test=300).test == splits.test


@pytest.mark.parametrize(
    "name, number, text",
    [
        ("and", 107, "one hundred and seven"),
        ("and", 42_007, "forty-two thousand and seven"),
        ("and", 187_654, "one hundred and eighty-seven thousand six hundred and fifty-four"),
        ("and", 700_000, "seven hundred thousand"),
        ("a", 1_100, "a thousand one hundred"),
        ("a", 100, "a hundred"),
        ("comma", 42_107, "forty-two thousand, one hundred seven"),
        ("comma", 42_000, "forty-two thousand"),
        ("spaces", 42, "forty two"),
        ("capital", 42, "Forty-two"),
        ("title", 42, "Forty-Two"),
        ("upper", 42, "FORTY-TWO"),
    ],
)
def test_a_spelling_is_that_of_people(name, number, text):
    assert SPELLINGS[name](english(number)) == text


def test_every_spelling_has_the_number_s_german_words_and_its_full_stop():
    draw, seen = random.Random(1), set()
    for number in range(0, 1_000_000, 997):
        text, words = spelled(number, draw)
        assert words == german(number) + "." * text.endswith(".")
        seen.add(re.sub("[0-9]+", "0", re.sub("[a-z]+", "a", re.sub("[A-Z]+", "A", text)))[:3])
        plain = text.rstrip(".").lower().replace(",", "").replace(" and ", " ").replace("-", " ")
        if not plain.isdigit():
            assert re.sub("^a ", "one ", plain) == english(number).replace("-", " ")
        else:
            assert int(plain) == number
    assert {"a a", "a-a", "Aa ", "A A", "0", "0,0"} <= seen
