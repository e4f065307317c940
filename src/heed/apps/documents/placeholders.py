"""Parts of a text that are not words: addresses, placeholders that a program fills in, tags written as text.

No model copies them reliably. All patterns are bounded, so that each beginning of a match costs little.
"""

import re
from collections.abc import Sequence

# Punctuation at the end belongs to the sentence.
_ADDRESSES = r"""
    (?:\b[a-z][a-z0-9+.-]{1,20}://|mailto:|www\.)[^\s<>"]{1,2000}(?<![.,;:!?)\]'])
  | (?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}
  # A host without a scheme, in small letters: "end.Now" is a missing space.
  | (?<![\w@.-])(?-i:(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}
      (?:com|org|net|edu|gov|io|dev|app|info|eu|de|fr|es|it|pt|br|ch|nl|pl|uk))(?![\w-]|\.\w)
      (?:/(?:[^\s<>"]{0,2000}(?<![.,;:!?)\]']))?)?
"""
_FILES = r"""
  # Two names at least, or a beginning that only files have.
    (?<![\w/\\.~])(?:~|\.{1,2})?/[\w.+-]{1,255}(?:/[\w.+-]{1,255}){1,30}/?(?<!\.)
  | (?<![\w/\\.~])(?:~|\.{1,2})/[\w.+-]{1,255}(?<!\.)
  | (?<!\w)(?:[a-z]:|\\\\[\w.-]{1,63})\\[^\s<>:"|?*]{1,255}(?<![.,;!)\]'])
"""
_PLACEHOLDERS = r"""
  # Templates: Jinja, Django, Handlebars, Vue, ERB, PHP.
    \{{2,3}[^{}]{1,500}\}{2,3} | \{%[^{}]{1,500}%\} | \{\#[^{}]{1,500}\#\} | <%[^<>]{1,500}%> | <\?[^<>]{1,500}\?>
  # ICU's messages, with their cases.
  | \{\s?\w{1,60},\s?(?:plural|select|selectordinal|choice|number|date|time)\b
      [^{}]{0,200}+(?:\{[^{}]{0,300}+(?:\{[^{}]{0,100}+\}[^{}]{0,300}+){0,9}+\}[^{}]{0,100}+){0,20}+\}
  # ${total}, %{count}, #{user.name}, $(file), $name; {}, {0}, { count }, {user.name!r}, {price:>8,.2f}.
  | [$%\#@]\{[^{}]{1,200}\} | \$\([\w.-]{1,100}\) | (?<![\w$])\$[a-z_]\w{0,60}
  | \{(?:\s?[^\s{}]{1,100}\s?|\w{1,60}(?:[.\[][^\s{}]{1,60})?:[^{}]{1,60})?\}
  # %PATH%, then %(name)s, then what printf and its like know; "100%ig" is a word.
  | (?<![\w%])%[a-z_]\w{1,60}%(?![%\w(])
  | %\([^()\s]{1,100}\)[-+0\#]{0,3}\d{0,3}(?:\.\d{1,3})?(?-i:[diouxXeEfFgGcrsa])
  | %% | (?<![\d%])%(?:\d{1,2}\$)?[-+0\#']{0,3}(?:\*|\d{1,3})?(?:\.(?:\*|\d{1,3}))?(?-i:hh?|ll?|[Lqjzt])?
      (?-i:[diouxXeEfFgGaAcCsSpn@])
  | (?<!\w)__(?-i:[A-Z][A-Z0-9_]{0,60})__(?!\w)
  | &(?:[a-z][a-z0-9]{1,31}|\#\d{1,7}|\#x[0-9a-f]{1,6}); | \\(?-i:[nrt](?![a-z]))
"""
_TAG = r"""
    <(?P<end>/)?(?P<name>[a-z0-9][\w:.-]{0,60})
      (?:\s{1,10}[\w:@.-]{1,60}\s{0,10}=\s{0,10}(?:"[^"<>]{0,500}"|'[^'<>]{0,500}'|[^\s"'<>=]{1,500}(?=[\s>])))
      {0,20}\s{0,10}(?P<alone>/)?>
"""
ADDRESS = re.compile(_ADDRESSES, re.IGNORECASE | re.VERBOSE)
KEPT = re.compile(f"{_ADDRESSES}|{_FILES}|{_PLACEHOLDERS}|{_TAG}", re.IGNORECASE | re.VERBOSE)
MAX_PAIRS = 100  # of tags in a text; more are no elements, each tag stands for itself
MAX_BETWEEN = 500  # characters between the two tags of an element


def pair_tags(matches: Sequence[re.Match[str]]) -> dict[int, int]:
    """Which of the matches of KEPT are the two tags of an element: the number of each one's partner."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for number, match in enumerate(matches):
        if not match["name"] or match["alone"]:
            continue
        if not match["end"]:
            opened.append(number)
        elif any(matches[i]["name"] == match["name"] for i in opened[-8:]):
            while matches[opened[-1]]["name"] != match["name"]:
                opened.pop()  # such as <br>
            opening = opened.pop()
            if match.start() - matches[opening].end() > MAX_BETWEEN:
                continue
            partners[number], partners[opening] = opening, number
            if len(partners) == 2 * MAX_PAIRS:
                break
    return partners
