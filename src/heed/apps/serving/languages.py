"""Languages by code, and their names."""

import tomllib
from collections.abc import Collection
from pathlib import Path

NAMES: dict[str, str] = tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8"))


def language_name(code: str) -> str:
    """Its English name; the code itself if there is none here."""
    return NAMES.get(code, code)


def known_code(code: str, known: Collection[str]) -> str:
    """The known code that a client means by this one, or `code` in lower case if there is none.

    Case and the kind of hyphen make no difference, and a region is only needed to tell codes apart: EN, en-US and en_GB
    all mean en, unless en-US is known too; pt means pt-BR if no other Portuguese is known.
    """
    wanted = _normalize(code)
    language = wanted.partition("-")[0]
    names = {_normalize(name): name for name in known}
    regions = [name for name in names if name.partition("-")[0] == language]
    if wanted in names:
        return names[wanted]
    if language in names:
        return names[language]
    return names[regions[0]] if wanted == language and len(regions) == 1 else wanted


def _normalize(code: str) -> str:
    return code.strip().lower().replace("_", "-")
