"""Character references of HTML, such as &auml; and &#228;, in texts of any length."""

import html
import re

# Those whose numbers Python's html.unescape refuses if they have thousands of digits.
_LONG = re.compile("&#(?:([0-9]{9,})|[xX]([0-9a-fA-F]{9,}));?")
_MAX_DIGITS = 8  # of a number without leading zeros; every character's has fewer


def resolved(text: str) -> str:
    """The text with its character references resolved as browsers do: a number without a character becomes U+FFFD."""
    return html.unescape(_LONG.sub(_shorten, text)) if "&" in text else text


def _shorten(match: re.Match[str]) -> str:
    digits = (match[1] or match[2]).lstrip("0") or "0"
    return "\ufffd" if len(digits) > _MAX_DIGITS else f"&#{'x' if match[2] else ''}{digits};"
