"""Text from strangers, made safe for a terminal."""

import unicodedata

JOINERS = "\u200c\u200d"  # hidden, but parts of Persian, Hindi and other words
MAX_LANGUAGE = 64  # characters of a language's code
MAX_TAG = 32  # characters of a word put before sources
KEPT_IN_TEXT = JOINERS + "\t"  # a tab does no harm


def printable(text: str, *, kept: str = "") -> str:
    """`text` as a terminal can show it in its line: other characters become \\x1b, \\n, \\u202e …

    Those are controls, format characters (which reorder text, say), surrogates, private and unassigned ones, and the
    line and paragraph separator; `kept` names exceptions.
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if is_hidden(c) and c not in kept else c for c in text)


def is_hidden(character: str) -> bool:
    """Whether a terminal would obey this character, or show nothing, instead of showing it."""
    return unicodedata.category(character)[0] == "C" or character in "\u2028\u2029"


def check_language(code: str) -> str:
    """The code of a language, which becomes part of names of files, addresses and headers. ValueError if it cannot."""
    text = code.encode(errors="ignore").decode()  # half a surrogate pair is another's business
    if not text.isprintable() or len(text) > MAX_LANGUAGE:
        raise ValueError(f"{code[:MAX_LANGUAGE]!a} is not the code of a language, such as en or zh-Hans")
    return code


def check_tag(tag: str) -> str:
    """A word that is put before sources and becomes an id of the vocabulary. ValueError if it cannot."""
    if not 1 <= len(tag) <= MAX_TAG or not tag.isprintable() or any(map(str.isspace, tag)):
        raise ValueError(f"a tag has 1 to {MAX_TAG} visible characters and no space; found {tag[: 2 * MAX_TAG]!a}")
    return tag
