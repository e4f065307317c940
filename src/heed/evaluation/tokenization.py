"""The words that BLEU and TER count, by the language of the references.

13a splits at spaces and punctuation, so a line of Chinese, Japanese or Thai is a token or two: no n-gram of four tokens
ever matches. sacrebleu has tokenisations for these; TER is counted on characters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from heed.errors import HeedError

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

Tokenization = Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200", "spm"]
TokenizationChoice = Literal[Tokenization, "auto"]
# unspaced: in a script without spaces between words that is neither Chinese nor Japanese.
Writing = Literal["zh", "ja", "ko", "unspaced", "spaced"]

# ISO 639. Languages that are also written in Latin letters, as Southern Min is, are missing: their text decides.
WRITINGS: dict[str, Writing] = {
    **dict.fromkeys("zh zho chi cmn yue wuu gan hsn lzh".split(), "zh"),
    **dict.fromkeys("ja jpn".split(), "ja"),
    **dict.fromkeys("ko kor".split(), "ko"),
    **dict.fromkeys("th tha lo lao km khm my mya bur shn bo bod tib dz dzo".split(), "unspaced"),
}
# Ranges of characters, as in a regular expression. Among HAN are Taiwan's phonetic symbols (bopomofo).
HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3105-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
KANA = "\u3041-\u3096\u3099-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
# Unicode's line breaking class SA (UAX #14: Thai, Lao, Myanmar, Khmer, the Tai scripts, Ahom), Tibetan, Balinese and
# Javanese.
UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff"
    "\uaa60-\uaadf\U00011700-\U0001174f"
)
MIN_KANA = 0.1  # of Japanese text's letters, where about half are; Chinese text has a name or two in kana

MECAB: dict[Writing, Tokenization] = {"ja": "ja-mecab", "ko": "ko-mecab"}
PACKAGES: dict[Tokenization, str] = {
    "ja-mecab": "pip install 'sacrebleu[ja]'",
    "ko-mecab": "pip install 'sacrebleu[ko]'",
    **dict.fromkeys(("flores101", "flores200", "spm"), "pip install 'heed-mt[exchange]'; its model is downloaded once"),
}
# Average characters of a word above which words are phrases or lines: at least twice those of segmented text.
MAX_WORD_LENGTH: dict[Writing, int] = {"zh": 4, "ja": 4, "unspaced": 10, "ko": 15, "spaced": 15}
N_EXAMINED = 1000  # references, for advice


def check_tokenization(name: str) -> TokenizationChoice:
    """The name, if it is "auto" or one of sacrebleu's that Heed offers; else HeedError lists them."""
    known: TokenizationChoice
    for known in get_args(TokenizationChoice):
        if name == known:
            return known
    raise HeedError(f"unknown tokenisation {name!r}; known: {', '.join(get_args(TokenizationChoice))}.")


def choose_tokenization(
    choice: TokenizationChoice,
    references: Sequence[str],
    *,
    language: str = "",
    report: Callable[[str], None] | None = None,
) -> Tokenization:
    """The tokenisation that is named, or for "auto" that of the references' language.

    language: as of `target_writing`. report is told what "auto" chose, if not 13a, and when a tokenisation does not fit
    the references; a tokenisation whose packages are missing is then a HeedError.
    """
    tokenize = _by_writing(target_writing(references, language)) if choice == "auto" else choice
    if report is not None:
        if choice == "auto" and tokenize != "13a":
            mecab = MECAB.get(target_writing(references, language), tokenize)
            hint = "" if tokenize == mecab else f" ({mecab} is not installed: {PACKAGES[mecab]})"
            report(f"BLEU's tokenisation: {tokenize}, by the language of the references{hint}.")
        for line in tokenization_advice(references, tokenize):
            report(line)
    return tokenize


def target_writing(references: Iterable[str], language: str = "") -> Writing:
    """How the references separate words: by the code of their language if it tells, else by most of their letters.

    language: "zh", "zh-Hant", "zho_Hans"; a code that is not in WRITINGS, or "", tells nothing. Hangul alone does not
    make text "ko": Korean has spaces, so 13a, which is everyone's default, fits if nobody says what language it is.
    """
    if of_language := _writing_of_code(language):
        return of_language
    of_text = writing_of(references)
    return "spaced" if of_text == "ko" else of_text


def writing_of(lines: Iterable[str]) -> Writing:
    """How text is written by the scripts of most of its letters; "spaced" if it has none."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    letters = Counter({character: n for character, n in counts.items() if character.isalpha()})

    def share(characters: str) -> float:
        matches = re.findall(f"[{characters}]", "".join(letters))
        return sum(letters[character] for character in matches) / max(1, letters.total())

    n_cjk = share(HAN + KANA)
    if n_cjk > 0.5:
        return "ja" if share(KANA) > MIN_KANA * n_cjk else "zh"
    if share(UNSPACED) > 0.5:
        return "unspaced"
    return "ko" if share(HANGUL) > 0.5 else "spaced"


def language_of_file(path: Path, lines: Iterable[str]) -> str:
    """The language code that the file's name ends in (test.ja, test.zh.gz), if it is one of WRITINGS; else "".

    A name may end in such a code by chance (notes.th), so that the text must be in a script of that language.
    """
    code = path.name.removesuffix(".gz").rpartition(".")[2] if "." in path.name else ""
    of_name = _writing_of_code(code)
    if of_name is None:
        return ""
    of_text = writing_of(lines)
    return code if of_name == of_text or {of_name, of_text} == {"zh", "ja"} else ""


def bleu_metric(tokenize: Tokenization) -> "BLEU":
    """sacrebleu's BLEU. HeedError if the tokenisation's packages, or the model that it downloads, are missing."""
    from sacrebleu.metrics.bleu import BLEU  # here: most translating needs no scores

    try:
        return BLEU(tokenize=tokenize, force=True)  # no warning, which names an option of sacrebleu's
    except (ImportError, RuntimeError, AssertionError, OSError, SystemExit) as error:
        if tokenize not in PACKAGES:
            raise
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise HeedError(
            f"tokenisation {tokenize} cannot be used: {reason}; it needs: {PACKAGES[tokenize]}; or take char."
        ) from None


def tokenization_advice(references: Sequence[str], tokenize: Tokenization) -> list[str]:
    """Warnings where BLEU would tokenise text a second time, or hardly split it at all."""
    advice = []
    n_tokenised = sum(line.endswith(" .") for line in references)
    if tokenize != "none" and 2 * n_tokenised > len(references):
        advice.append(
            f"{n_tokenised:,} of {len(references):,} references end in ' .'. If the text is tokenised: --tokenize none."
        )
    metric, lines = bleu_metric(tokenize), references[:N_EXAMINED]
    tokens = (token for line in lines for token in metric.tokenizer(line.rstrip()).split())
    words = [token for token in tokens if any(map(str.isalpha, token))]
    length = sum(map(len, words)) / max(1, len(words))
    writing = writing_of(lines)
    if length > MAX_WORD_LENGTH[writing]:
        better = "char" if (fitting := _by_writing(writing)) == tokenize else fitting
        advice.append(
            f"BLEU means nothing with the tokenisation {tokenize}: its words are {length:.0f} characters long on "
            f"average, since the text has few spaces. Take {better}: --tokenize {better}, or evaluation.tokenize in a "
            "recipe."
        )
    return advice


def split_characters(line: str) -> str:
    """The line with spaces around each character of a script without spaces, marks included; other words stay whole."""
    parts: list[str] = []
    split = False
    for character in line.replace("\u200b", " "):  # the invisible space of Khmer and Burmese
        if unicodedata.category(character)[0] != "M":
            follows, split = split, bool(_UNSPACED_CHARACTER.match(character))
            parts.append(" " if follows or split else "")
        parts.append(character)
    return "".join(parts)


_UNSPACED_CHARACTER = re.compile(f"[{HAN}{KANA}{UNSPACED}]")


def _writing_of_code(language: str) -> Writing | None:
    primary, *subtags = language.lower().replace("_", "-").split("-")
    return None if "latn" in subtags else WRITINGS.get(primary)


def _by_writing(writing: Writing) -> Tokenization:
    if writing in MECAB:
        return MECAB[writing] if _is_installed(MECAB[writing]) else "char"
    others: dict[Writing, Tokenization] = {"zh": "zh", "unspaced": "char", "spaced": "13a"}
    return others[writing]


@lru_cache
def _is_installed(tokenize: Tokenization) -> bool:
    try:
        bleu_metric(tokenize)
    except HeedError:
        return False
    return True
