"""The self-made corpus is right German, and no held-out number is trained on."""

import pytest

from heed.text.numbers import english, german, number_splits


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
