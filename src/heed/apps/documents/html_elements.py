"""The elements of HTML by how browsers show them, and the attributes whose values a reader sees or hears."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Elements within a sentence.
INLINE = frozenset(
    "a abbr acronym b bdi bdo big blink cite data del dfn em font i ins label mark nobr output q rb rtc ruby s small "
    "span strike strong sub sup time u".split()
)
# Elements that end it, as browsers show them: HTML Standard, 15.3. Those of other names, and buttons, are within a
# sentence if words of it stand beside them.
BLOCKS = frozenset(
    "address area article aside base basefont bgsound blockquote body br caption center col colgroup datalist dd "
    "details dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header "
    "hgroup hr html legend li link listing main map menu meta nav noembed noframes noscript ol optgroup option p param "
    "plaintext pre script search section slot source style summary table tbody td template tfoot th thead title tr "
    "track ul xmp".split()
)
# Elements within a sentence whose content stays as it is: the sentence is read with it, and it comes back unchanged.
CODE = frozenset(("code", "kbd", "samp", "tt", "var"))
SKIPPED = frozenset(("pre", "svg", "math", "template", "object", "canvas", "audio", "video", "iframe", "noembed"))
RAW = frozenset(("script", "style", "textarea", "xmp", "noframes"))  # whose content holds no tags
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
ATOMS = frozenset(("embed", "img", "input", "wbr"))
# Elements within a sentence that are shown as one thing, whatever words are in them; and ruby's readings.
THINGS = frozenset(("meter", "picture", "progress", "rp", "rt", "select", "textarea"))
# Elements that need no end tag: each ends before these tags, and with the element that it is in.
_PARTS_OF_TABLES = frozenset(("tbody", "thead", "tfoot"))
UNENDED = {
    "p": frozenset(
        "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer "
        "form h1 h2 h3 h4 h5 h6 header hgroup li main menu nav ol p pre search section summary table ul".split()
    ),
    "li": frozenset(("li",)),
    **dict.fromkeys(("rp", "rt"), frozenset(("rp", "rt"))),
    **dict.fromkeys(("dt", "dd"), frozenset(("dt", "dd"))),
    "option": frozenset(("option", "optgroup")),
    **dict.fromkeys(("td", "th"), frozenset(("td", "th", "tr")) | _PARTS_OF_TABLES),
    "tr": frozenset(("tr",)) | _PARTS_OF_TABLES,
    **dict.fromkeys(_PARTS_OF_TABLES, _PARTS_OF_TABLES),
}
WORDLESS = BLOCKS | SKIPPED | THINGS  # what the model reads nothing of if it stays
ALONE = BLOCKS | ATOMS | VOID
DRAWN = frozenset(("svg", "math"))  # icons and formulas: atoms too, whatever they contain

# "Translatable attributes" of the HTML Standard, 3.2.6.2, with what ARIA adds, without those that are names.
_EVERYWHERE = frozenset(
    "title aria-label aria-description aria-placeholder aria-roledescription aria-valuetext aria-braillelabel".split()
)
_OF_ELEMENTS = {
    "alt": frozenset(("img", "area", "input")),
    "placeholder": frozenset(("input", "textarea")),
    "label": frozenset(("optgroup", "option", "track")),
    "abbr": frozenset(("th",)),
    "value": frozenset(("input",)),
    "content": frozenset(("meta",)),
}
_BUTTONS = frozenset(("button", "reset", "submit"))
_METADATA = frozenset(
    "description og:title og:description og:image:alt twitter:title twitter:description twitter:image:alt "
    "dc.title dc.description dcterms.title dcterms.description".split()
)
_MAY_HAVE_WORDS = re.compile(r"\b(?:title|aria-|alt|placeholder|label|abbr|value|content)", re.IGNORECASE)
_SIGNS = frozenset("\"'`=<{")  # in a value without quotes: it is not as anybody meant it, or an expression
_ATTRIBUTE = re.compile(r"""[\s/]*+([^\s=>/]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++)))?""")


class Value(NamedTuple):
    """A value's span in its tag, with its quotes; text: without them."""

    start: int
    end: int
    text: str


def values_with_words(tag: str, name: str, *, start: int) -> Iterator[Value]:
    """The values that a reader sees. name: the element's, in small letters; start: behind it."""
    if not _MAY_HAVE_WORDS.search(tag, start):
        return
    found: dict[str, Value] = {}
    while match := _ATTRIBUTE.match(tag, start):
        start = match.end()
        if group := match.lastindex if match.lastindex and match.lastindex > 1 else 0:
            first, last = match.span(group)
            quoted = group < 4
            if not quoted and not _SIGNS.isdisjoint(match[group]):
                continue
            found.setdefault(match[1].lower(), Value(first - quoted, last + quoted, match[group]))
    of_meta = {found[key].text.strip().lower() for key in ("name", "property") if key in found}
    kind = found["type"].text.lower() if "type" in found else ""
    for key, value in found.items():
        is_seen = key in _EVERYWHERE or name in _OF_ELEMENTS.get(key, ())
        is_seen = (
            is_seen and (key != "value" or kind in _BUTTONS) and (key != "content" or not _METADATA.isdisjoint(of_meta))
        )
        if is_seen:
            yield value
