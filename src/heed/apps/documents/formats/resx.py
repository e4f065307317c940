"""Texts of .NET (.resx, .resw): the values of its strings are translated; names, comments and other data stay."""

import re
from collections.abc import Iterator

from heed.apps.documents.formats.plain_text import write_text
from heed.apps.documents.formats.texts import Text, read_string
from heed.apps.documents.formats.xml_tokens import XMLDocument, keyed_xml_job, read_xml, words_of, write_xml
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError
from heed.text.character_references import resolved

_LOCKED = re.compile(r"\{Locked(?:\s*=([^{}]*+))?\}", re.IGNORECASE)  # in a comment: of the text, or of words in it
_QUOTED = re.compile(r'"([^"]+)"')


def resx_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file in the other language. HeedError, which calls it `name`, if it is damaged or other XML."""
    document = read_xml(content, name=name)
    if (local := document.root.local[:40]) != "root":
        raise HeedError(f"{name}: XML whose root is {local}, not .NET's resources.")
    return (yield from keyed_xml_job(document, options, _texts))


def _texts(document: XMLDocument) -> Iterator[Text]:
    """The strings: data of a type, and names of controls in a form (">>button.Name"), are none."""
    tokens = document.tokens
    for place, token in enumerate(tokens):
        if token.kind != "open" or token.local != "data" or not {"type", "mimetype"}.isdisjoint(token.attributes):
            continue
        parts = {tokens[i].local: i for i in range(token.end - 1, place, -1) if tokens[i].kind == "open"}
        if "data" in parts:  # which no program writes
            continue
        value, comment = parts.get("value"), resolved(document.content(parts["comment"])) if "comment" in parts else ""
        locked = _LOCKED.search(comment)
        name = token.attributes.get("name", "")
        if value is None or name.startswith(">>") or (locked and not locked[1]):
            continue
        within = tokens[value + 1 : tokens[value].end]
        if not within or any(one.kind not in ("text", "cdata") for one in within):
            continue
        kept = "|".join(map(re.escape, sorted(_QUOTED.findall(locked[1]), key=len, reverse=True))) if locked else ""
        items = [item for one in within for item in words_of(one)]
        words = "".join(item if isinstance(item, str) else item.text for item in items)
        yield Text(
            start=document.at(value + 1),
            end=document.at(tokens[value].end),
            items=read_string(words, re.compile(kept) if kept else None),
            write=lambda items: write_xml([write_text(items)]),
            key=(name,),
            raw=document.content(value),
        )
