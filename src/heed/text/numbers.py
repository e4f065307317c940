"""The corpus that Heed makes itself: English number words → German number words, 0 to 999,999.

A real transduction with one right answer: German joins all into one word and speaks the ones before the tens
("forty-two" → "zweiundvierzig").
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LIMIT = 1_000_000

_EN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_EN_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
_DE = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn".split()
_DE += ["sechzehn", "siebzehn", "achtzehn", "neunzehn"]
_DE_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english(number: int) -> str:
    """42107 → "forty-two thousand one hundred seven"; American usage, without "and"."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        return f"{english(thousands)} thousand" + (f" {english(rest)}" if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_EN[hundreds]} hundred" + (f" {english(rest)}" if rest else "")
    if number >= 20:
        tens, ones = divmod(number, 10)
        return _EN_TENS[tens] + (f"-{_EN[ones]}" if ones else "")
    return _EN[number]


def german(number: int) -> str:
    """42107 → "zweiundvierzigtausendeinhundertsieben"; Duden's full forms, "einhundert" and "eintausend" included."""
    return _german(number, last="eins")


def _german(number: int, *, last: str) -> str:
    """`last` is the word for a final one: "eins" at the end, "ein" before "tausend"."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        return f"{_german(thousands, last='ein')}tausend" + (_german(rest, last=last) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{_german(hundreds, last='ein')}hundert" + (_german(rest, last=last) if rest else "")
    if number >= 20:
        tens, ones = divmod(number, 10)
        return f"{_german(ones, last='ein')}und{_DE_TENS[tens]}" if ones else _DE_TENS[tens]
    return last if number == 1 else _DE[number]


# The ways in which a person may write a number, each changed from `english`; several can be combined.
SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "a": lambda words: re.sub(r"^one (hundred|thousand)\b", r"a \1", words),
    "and": lambda words: re.sub(r"hundred (?!thousand)|thousand (?!.*hundred)", r"\g<0>and ", words),
    "comma": lambda words: words.replace("thousand ", "thousand, ").replace(", and", " and"),
    "spaces": lambda words: words.replace("-", " "),
    "capital": str.capitalize,
    "title": str.title,
    "upper": str.upper,
}
CASES = ("capital", "title", "upper")


def spelled(number: int, draw: random.Random) -> tuple[str, str]:
    """The number as a person may write it, and its German words; a full stop is in both or in neither."""
    stop = "." if draw.random() < 0.25 else ""
    if draw.random() < 0.25:
        return (f"{number:,}" if draw.random() < 0.5 else str(number)) + stop, german(number) + stop
    words = english(number)
    for name in ("a", "and", "comma", "spaces"):
        if draw.random() < 0.25:
            words = SPELLINGS[name](words)
    if draw.random() < 0.5:
        words = SPELLINGS[draw.choice(CASES)](words)
    return words + stop, german(number) + stop


@dataclass(frozen=True)
class NumberSplits:
    """Numbers by use; no number stands in two of them."""

    train: list[int]
    dev: list[int]
    test: list[int]


def number_splits(*, n_train: int, n_dev: int = 500, n_test: int = 2000, seed: int = 1) -> NumberSplits:
    """Numbers drawn without repetition from 0 to 999,999; dev and test do not change with n_train.

    Training leans to shorter numbers, of which a uniform draw would give few; dev and test are uniform.
    """
    draw = random.Random(seed)
    taken: set[int] = set()

    def take(count: int, *, short: bool) -> list[int]:
        numbers: list[int] = []
        while len(numbers) < count:
            highest = 10 ** draw.randint(4, 6) if short and draw.random() < 0.5 else LIMIT
            number = draw.randrange(highest)
            if number not in taken:
                taken.add(number)
                numbers.append(number)
        return numbers

    test = take(n_test, short=False)
    dev = take(n_dev, short=False)
    # Of numbers below 1000 there are too few to draw: all that are not held out are trained on.
    small = [number for number in range(1000) if number not in taken]
    draw.shuffle(small)
    taken.update(small)
    train = small[:n_train] + take(max(0, n_train - len(small)), short=True)
    draw.shuffle(train)
    return NumberSplits(train, dev, test)
