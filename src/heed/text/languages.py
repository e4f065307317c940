"""Languages by their codes: of ISO 639, of FLORES, of DeepL and of models; and how a model of several is told which.

languages.txt says which codes mean one language.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from heed.config import Settings, shown
from heed.errors import HeedError
from heed.suggestions import names_meant
from heed.text.prefix import NO_PREFIX, Prefix
from heed.text.printable import check_language

TABLE = Path(__file__).with_name("languages.txt")
SEVERAL = "mul"  # ISO 639-2's code for a model of several languages
MAX_LANGUAGES = 2000
SCRIPT_OF_REGION = {"cn": "hans", "sg": "hans", "tw": "hant", "hk": "hant", "mo": "hant"}  # of Chinese


class Language(NamedTuple):
    """A line of the table. detected_as: what the detector calls it, or nothing. own_names: its own, with commas."""

    code: str
    name: str
    script: str
    detected_as: str
    own_names: str = ""


@cache
def table() -> dict[str, Language]:
    """The languages by each of their codes."""
    rows = (line.split("|") for line in TABLE.read_text("utf-8").splitlines() if not line.startswith("#"))
    return {code: Language(codes.split()[0], *rest) for codes, *rest in rows for code in codes.split()}


class _Parts(NamedTuple):
    language: str
    script: str
    region: str

    @property
    def usual_script(self) -> str:
        """Its script; if none is named, that of its region, or the language's usual one."""
        by_region = SCRIPT_OF_REGION.get(self.region, "") if self.language == "zh" else ""
        return self.script or by_region or (table()[self.language].script.lower() if self.language in table() else "")


def _parts(code: str) -> _Parts:
    first, *rest = _normalize(code).split("-")
    script = next((part for part in rest if len(part) == 4 and part.isalpha()), "")
    region = next((part for part in rest if part not in (script, "xx")), "")  # mBART's en_XX
    return _Parts(table()[first].code if first in table() else first, script, region)


def _normalize(code: str) -> str:
    return code.strip().lower().replace("_", "-")


def is_known(code: str) -> bool:
    """Whether the table has this language."""
    return _parts(code).language in table()


def language_name(code: str) -> str:
    """Its English name, with a script or a region that it names; the code itself if there is none here."""
    parts = _parts(code)
    if (language := table().get(parts.language)) is None:
        return code
    script = "" if parts.script == language.script.lower() else parts.script.title()
    more = ", ".join(filter(None, (script, parts.region.upper())))
    return f"{language.name} ({more})" if more else language.name


def find_language(code: str, known: Collection[str]) -> str | None:
    """The known code that means the same as this one, or None.

    Case and the kind of hyphen make no difference; eng, eng_Latn and en_XX mean en. A region is only needed to tell
    codes apart: en-US means en, unless en-US is known too; pt means pt-BR if no other Portuguese is known. A script
    that is not named is the usual one.
    """
    if code in known:
        return code
    names = {_normalize(name): name for name in known}
    if (exact := names.get(_normalize(code))) is not None:
        return exact
    wanted = _parts(code)
    alike = {name: parts for name in known if (parts := _parts(name)).language == wanted.language}
    if wanted.script or wanted.usual_script in {parts.usual_script for parts in alike.values()}:
        alike = {name: parts for name, parts in alike.items() if parts.usual_script == wanted.usual_script}
    same = [name for name, parts in alike.items() if parts.region == wanted.region]
    anywhere = [name for name, parts in alike.items() if not parts.region]
    if not (same or anywhere) and not wanted.region and len(alike) == 1:
        return next(iter(alike))
    return min(same or anywhere, key=len, default=None)


def known_code(code: str, known: Collection[str]) -> str:
    """What `find_language` finds, or `code` in lower case."""
    return find_language(code, known) or _normalize(code)


def short_codes(codes: Iterable[str]) -> dict[str, str]:
    """Each code by a shorter one: of ISO 639-1 if there is one, a script that is not the usual one, a region."""
    by_short: dict[str, str] = {}
    for code in codes:
        parts = _parts(code)
        usual = table()[parts.language].script.lower() if parts.language in table() else ""
        script = "" if parts.script == usual else parts.script.title()
        short = "-".join(filter(None, (parts.language, script, parts.region.upper())))
        by_short[code if short in by_short else short] = code
    return by_short


class Languages(Settings):
    """How a model of several languages is told which one to translate from, and into which one.

    ids: of each language, the id that stands for it. source: whose id stands before a source's ids. is_forced: whether
    every target begins with the target language's id, which is given: its log-probability is 0, and it counts in the
    length. sources, targets: the languages that it translates from and into; None: all of ids.
    """

    ids: dict[str, int] = Field(min_length=1, max_length=MAX_LANGUAGES)
    source: Literal["source", "target"]
    is_forced: bool
    sources: list[str] | None = Field(default=None, max_length=MAX_LANGUAGES)
    targets: list[str] | None = Field(default=None, max_length=MAX_LANGUAGES)

    @model_validator(mode="after")
    def _have_ids(self) -> Self:
        for code in (*self.ids, *(self.sources or ()), *(self.targets or ())):
            check_language(code)  # messages and addresses name it
        for code in self.all_targets + (self.all_sources if self.source == "source" else []):
            if not 0 <= self.ids.get(code, -1) < 2**31:
                raise ValueError(f"the language {code[:20]!a} has no id")
        return self

    @classmethod
    def of_codes(cls, codes: Mapping[str, int], *, source: str) -> Self:
        """The languages of codes such as >>fra<<, which stand before a source and say the target."""
        plain = {code[2:-2]: i for code, i in codes.items()}
        ids = {short: plain[code] for short, code in short_codes(plain).items()}
        sources = list(short_codes([source])) if is_known(source) else None
        return cls(ids=ids, source="target", is_forced=False, sources=sources)

    @property
    def all_sources(self) -> list[str]:
        """The languages that it translates from."""
        return list(self.ids) if self.sources is None else self.sources

    @property
    def all_targets(self) -> list[str]:
        """The languages that it translates into."""
        return list(self.ids) if self.targets is None else self.targets

    def pair(self, source: str | None, target: str | None) -> tuple[str, str]:
        """The languages that these codes mean. HeedError for one that is unknown, or missing and needed."""
        if source in (None, SEVERAL) and self.source == "target" and len(self.all_sources) > 1:
            src = SEVERAL
        else:
            src = _one_of(source, self.all_sources, "source", "from")
        return src, _one_of(target, self.all_targets, "target", "to")

    def before(self, source: str, target: str) -> list[int]:
        """The ids that stand before a source's."""
        return [self.ids[source if self.source == "source" else target]]

    def forced(self, target: str) -> Prefix:
        """The given beginning of every target."""
        return NO_PREFIX.behind([self.ids[target]]) if self.is_forced else NO_PREFIX


def _one_of(code: str | None, known: list[str], side: str, word: str) -> str:
    if code is None or code == SEVERAL:
        if len(known) == 1:
            return known[0]
        raise HeedError(
            f"the model translates {word} {len(known)} languages: name the {side} language (--{word} CODE, in Python "
            f"{side}=…), one of {_some_of(known)}."
        )
    if (exact := find_language(code, known)) is not None:
        return exact
    by_name = {language_name(one).lower(): one for one in known}
    if (named := by_name.get(code.strip().lower())) is not None:
        return named
    meant = [by_name[name] for name in names_meant(code.lower(), list(by_name))]
    meant = meant or difflib.get_close_matches(code, known, cutoff=0.4)
    hint = f"did you mean {' or '.join(meant)}?" if meant else f"it has {_some_of(known)}."
    raise HeedError(f"{shown(code)} is no {side} language of this model; {hint}")


def _some_of(known: list[str]) -> str:
    return ", ".join(sorted(known)[:12]) + (", …" if len(known) > 12 else "")
