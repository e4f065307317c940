"""gettext's .po and .pot: what is not translated, or fuzzy, gets a translation; all else keeps its bytes.

Plural forms are as many as the target has, the header's rule becomes the target's where it names none, and directives
that a program fills by position keep their order or get numbers. An entry whose directives cannot be kept stays empty.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from heed.apps.documents.formats.directives import BRACES, PRINTF, TILDES, has_the_same, in_order
from heed.apps.documents.formats.plurals import has_form_for_one, plural_rule, singular_of
from heed.apps.documents.formats.texts import Edit, edited, strings_job
from heed.apps.documents.text.atoms import KEPT
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

WIDTH = 79  # columns of a line, as gettext writes them
_HEADER = (None, "")  # the key of a file's first entry
_TOKEN = re.compile(
    r'(?P<space>\s++)|(?P<comment>#[^\n]*+)|(?P<string>"(?:[^"\\\n]|\\[^\n])*+")|(?P<keyword>[a-z_]++)(?:\[(?P<form>\d{1,3})\])?+'
)
_KEYWORDS = ("msgctxt", "msgid", "msgid_plural", "msgstr", "domain")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SIGNS = {ord(sign): f"\\{name}" for name, sign in {**_ESCAPED, "\\": "\\", '"': '"'}.items()}
_AFTER_SPACE = re.compile(r"(?<=\s)(?=\S)")
_CHARSET = re.compile(rb'"Content-Type:[^"]{0,200}?charset=([\w-]{1,40})', re.IGNORECASE)
# What programs fill in, by the flag of the entry.
_PRINTF = "c objc php perl awk gcc-internal gfc-internal qt-plural boost tcl javascript elisp java-printf ruby"
_BRACES = "python-brace c++ csharp rust"
# Those without numbers for what stands elsewhere; Pascal's are %0:s.
_UNNUMBERED = {"sh": PRINTF, "lua": PRINTF, "object-pascal": PRINTF, "python": PRINTF, "lisp": TILDES, "scheme": TILDES}
_BY_FLAG = dict.fromkeys(_PRINTF.split(), PRINTF) | dict.fromkeys(_BRACES.split(), BRACES) | _UNNUMBERED


class _Strings(NamedTuple):
    """Neighbouring strings of a file: where they stand, and what they say together."""

    start: int
    end: int
    parts: list[str]

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class _Entry:
    flags: list[str] = field(default_factory=list)
    fuzzy: list[Edit] = field(default_factory=list)  # what goes with the flag: it, and previous texts
    texts: dict[str, _Strings] = field(default_factory=dict)  # by keyword
    forms: dict[int, _Strings] = field(default_factory=dict)  # of msgstr
    start: int = -1  # of the first msgstr
    end: int = -1  # of the last one

    @property
    def key(self) -> tuple[str | None, str]:
        context = self.texts.get("msgctxt")
        return context and context.text, self.texts["msgid"].text

    @property
    def is_fuzzy(self) -> bool:
        return "fuzzy" in self.flags

    @property
    def is_translated(self) -> bool:
        """Whether all its forms have words that a program shows."""
        return not self.is_fuzzy and all(form.text for form in self.forms.values())

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """That of what programs fill in, if a flag says that they do."""
        return next((_BY_FLAG[name] for flag in self.flags if (name := flag.removesuffix("-format")) in _BY_FLAG), None)


def po_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The file with its translations. HeedError, which calls it `name`, if it is damaged.

    Texts of `options.earlier`, a file of the same kind, are taken where it has them. max_text: as for `document_job`.
    """
    text, codec = _decoded(content, name)
    entries = list(_entries(text, name))
    known: dict[tuple[str | None, str], _Entry] = {}
    rule = plural_rule(options.target or options.language)
    header = next((entry for entry in entries if entry.key == _HEADER and 0 in entry.forms), None)
    fields = "" if header is None else text[header.forms[0].start : header.forms[0].end]
    if options.earlier is not None:
        earlier, charset = _decoded(options.earlier, "the earlier file")
        known = {entry.key: entry for entry in _entries(earlier, "the earlier file") if entry.is_translated}
        if (own := known.get(_HEADER)) and 0 in own.forms:  # which names its translators, and the plural forms it has
            fields = earlier[own.forms[0].start : own.forms[0].end]
            fields = fields if charset == codec else re.sub(r"charset=[\w-]+", f"charset={codec.upper()}", fields)
    n_forms, expression, edits = len(rule.forms), rule.expression, list[Edit]()
    if header is not None:
        n_forms, expression, fields = _header(fields, options, has_plurals="msgid_plural" in text)
        edits = [*(header.fuzzy if header.is_fuzzy else ()), Edit(header.forms[0].start, header.forms[0].end, fields)]

    # The words of each entry: its text, and for other numbers the other one.
    waiting = [entry for entry in entries if entry is not header and not entry.is_translated]
    asked = [entry for entry in waiting if entry.key not in known]
    pairs = [(entry, strings) for entry in asked for kind, strings in entry.texts.items() if kind != "msgctxt"]
    translations = yield from strings_job(
        [strings.text for _, strings in pairs], options, patterns=[entry.pattern for entry, _ in pairs]
    )
    answers: dict[int, list[str]] = {}
    for (entry, strings), words in zip(pairs, translations, strict=True):
        if entry.pattern is not None:
            can_number = not any(flag.removesuffix("-format") in _UNNUMBERED for flag in entry.flags)
            words = in_order(strings.text, words, entry.pattern, can_number=can_number) or ""
        answers.setdefault(id(entry), []).append(words)

    width = WIDTH if not any(len(line) > WIDTH + 10 for line in text.splitlines() if line[:1] == '"') else None
    line_end = "\r\n" if "\r\n" in text else "\n"
    for entry in waiting:
        if entry.key in known:
            forms = [known[entry.key].forms[i].text for i in sorted(known[entry.key].forms)]
        else:
            forms = answers[id(entry)]
            forms = _forms(entry, forms, n_forms, expression) if len(forms) > 1 else forms
        edits += entry.fuzzy if entry.is_fuzzy else []
        edits.append(Edit(entry.start, entry.end, line_end.join(_statement(entry, forms, width))))
    written = edited(text, edits)
    if header is None and waiting:
        language = f'"Language: {options.target}\\n"\n' if options.target else ""
        made = f'"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {rule.header}\\n"\n'
        written = f'msgid ""\nmsgstr ""\n{language}{made}\n{written}'
    try:
        return written.encode(codec)
    except UnicodeEncodeError:  # the translation has letters that the file's charset lacks
        return re.sub(r'("Content-Type:[^"]{0,200}?charset=)[\w-]+', r"\1UTF-8", written, count=1).encode()


def _decoded(content: bytes, name: str) -> tuple[str, str]:
    """The text, and the codec that its header names."""
    stated = _CHARSET.search(content)
    codec = stated[1].decode().lower() if stated else "utf-8"
    if codec == "charset":  # of a template
        codec = "utf-8"
    try:
        return content.decode(codec), codec
    except LookupError:
        raise HeedError(f"{name}: declares charset {codec}, which Heed cannot read; convert it to UTF-8.") from None
    except UnicodeDecodeError as error:
        raise HeedError(f"{name}: byte {error.start + 1} is not {codec}, which its header declares.") from None


def _entries(text: str, name: str) -> Iterator[_Entry]:
    """The entries of a file, obsolete ones left out. HeedError names the line of what is none."""
    entry, keyword, form = _Entry(), "", 0
    after = _Entry()  # whose comments stand behind this one's forms
    place = 0

    def fault(what: str) -> HeedError:
        return HeedError(f"{name}: line {text.count(chr(10), 0, place) + 1}: {what}.")

    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise fault("expected a keyword, a string in quotes or a comment")
        kind, start = token.lastgroup, place
        place = token.end()
        if kind == "string":
            if not keyword:
                raise fault("a string without msgid or msgstr before it")
            _add(entry, keyword, form, _Strings(start, place, [_unescaped(token[0])]))
        elif kind == "comment":
            if token[0].startswith("#~"):
                after = _Entry()  # a flag before it is that of an obsolete entry
                entry = entry if entry.texts else _Entry()
            _comment(after if entry.forms else entry, text, start, place)
        elif kind in ("keyword", "form"):
            if token["keyword"] not in _KEYWORDS:
                raise fault(f"unknown keyword {token['keyword'][:20]}")
            if entry.forms and token["keyword"] != "msgstr":
                yield entry
                entry, after = after, _Entry()
            keyword, form = token["keyword"], int(token["form"] or 0)
            if keyword == "msgstr":
                if "msgid" not in entry.texts:
                    raise fault("msgstr without msgid")
                entry.start, entry.end = start if entry.start < 0 else entry.start, place
                entry.forms[form] = _Strings(place, place, [])
            elif keyword == "domain":
                entry = _Entry()
            elif keyword in entry.texts:
                raise fault(f"{keyword} twice without msgstr between")
            else:
                entry.texts[keyword] = _Strings(place, place, [])
    if entry.forms:
        yield entry
    elif "msgid" in entry.texts:
        raise fault("the last msgid has no msgstr")


def _add(entry: _Entry, keyword: str, form: int, strings: _Strings) -> None:
    if keyword == "domain":
        return
    before = entry.forms.get(form) if keyword == "msgstr" else entry.texts.get(keyword)
    if before is not None and before.end > before.start:
        # Strings of one text are joined once it is read: a sum for each would take time that grows with the square.
        before.parts.append(strings.parts[0])
        strings = _Strings(before.start, strings.end, before.parts)
    if keyword == "msgstr":
        entry.forms[form] = strings
        entry.end = strings.end
    else:
        entry.texts[keyword] = strings


def _comment(entry: _Entry, text: str, start: int, end: int) -> None:
    if text.startswith("#,", start):
        flags = [flag.strip() for flag in text[start + 2 : end].split(",")]
        entry.flags += flags
        if "fuzzy" in flags:
            # The flag goes, and its line with it if it is the only one.
            kept = ", ".join(flag for flag in flags if flag != "fuzzy")
            kept += "\r" * bool(kept and text[end - 1] == "\r")
            entry.fuzzy.append(Edit(start, end, f"#, {kept}") if kept else Edit(start, min(end + 1, len(text)), ""))
    elif text.startswith("#|", start):
        entry.fuzzy.append(Edit(start, min(end + 1, len(text)), ""))


def _unescaped(string: str) -> str:
    def sign(match: re.Match[str]) -> str:
        octal, hexadecimal, other = match.groups()
        if other:
            return _ESCAPED.get(other, other)
        return chr(int(octal, 8) & 255) if octal else chr(int(hexadecimal, 16))

    return _ESCAPE.sub(sign, string[1:-1])


def _forms(entry: _Entry, words: list[str], n_forms: int, expression: str) -> list[str]:
    """The plural forms of an entry, given the words for one thing and for others; those that it has stay."""
    single = singular_of(expression)
    # "One file" is wrong where its form is also that of 21 files.
    singular, plural = (entry.texts[kind].text for kind in ("msgid", "msgid_plural"))
    is_single = n_forms > 1 and (has_form_for_one(expression) or has_the_same(entry.pattern or KEPT, singular, plural))
    made = [words[0] if is_single and i == single else words[1] for i in range(n_forms)]
    own = {} if entry.is_fuzzy else {i: form.text for i, form in entry.forms.items()}
    return [own.get(i) or text for i, text in enumerate(made)]


def _header(raw: str, options: DocumentOptions, *, has_plurals: bool) -> tuple[int, str, str]:
    """How many plural forms a file has, the expression for a form, and what becomes of the strings of its header."""
    rule = plural_rule(options.target or options.language)
    language = re.search(r'"Language:[ \t]*([\w@-]*)', raw)
    is_source = language is not None and language[1].split("_")[0].lower() in ("", options.language.lower())
    if language and is_source and options.target:
        raw = f'{raw[: language.start()]}"Language: {options.target}{raw[language.end() :]}'
    raw = re.sub(r"(charset=)CHARSET\b", r"\1UTF-8", raw)
    stated = re.search(r"Plural-Forms:[^;]{0,100}nplurals=\s*(\d{1,2})\s*;([^;]{0,1000})", re.sub(r'"\s+"', "", raw))
    n_forms, expression = (int(stated[1]), stated[2]) if stated else (len(rule.forms), rule.expression)
    if stated is None or (language and language[1] and is_source):
        n_forms, expression = len(rule.forms), rule.expression
        field = f'"Plural-Forms: {rule.header}\\n"'
        old = raw.find('"Plural-Forms:')
        if old >= 0 and (end := raw.find('\\n"', old)) >= 0:  # it may go on over several lines
            raw = raw[:old] + field + raw[end + 3 :]
        elif has_plurals:
            raw = f"{raw}\n{field}"
    return max(1, min(n_forms, 10)), expression, raw


def _statement(entry: _Entry, forms: list[str], width: int | None) -> Iterator[str]:
    """The lines of an entry's msgstr, wrapped as the file is."""
    for number, text in enumerate(forms):
        keyword = f"msgstr[{number}]" if "msgid_plural" in entry.texts else "msgstr"
        lines = [line for line in re.split("(?<=\n)", text) if line]
        room = width - len(keyword) - 3 if width else None
        if len(lines) < 2 and (room is None or len(text.translate(_SIGNS)) <= room):
            yield f'{keyword} "{text.translate(_SIGNS)}"'
            continue
        yield f'{keyword} ""'
        for line in lines:
            written = ""
            for word in _AFTER_SPACE.split(line):
                sign = word.translate(_SIGNS)
                if width and written and len(written) + len(sign.rstrip()) + 2 > width:
                    yield f'"{written}"'
                    written = ""
                written += sign
            yield f'"{written}"'
