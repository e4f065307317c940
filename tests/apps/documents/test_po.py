""".po and .pot: what is filled in, what stays, and what gettext says of the result."""

import re
import shutil
import subprocess

import pytest
from tests.apps.documents.translators import shuffled, swapped_case, translate_document, unchanged

from heed.errors import HeedError
from heed.text.alignment import Translated

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
RULE = '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n'


def po(text: str, translate=swapped_case, target: str = "de", **options) -> str:
    return translate_document(
        text.encode(), translate, format="po", language="en", target=target, name="a.po", **options
    ).decode()


def test_empty_and_fuzzy_entries_are_filled_and_all_else_keeps_its_bytes():
    kept = (
        HEADER + '\n# a note\n#=====\n#: a.c:1\n#, c-format\nmsgctxt "menu"\nmsgid "a" " b"\n'
        'msgstr "done"\n\n#~ msgid "old"\n#~ msgstr "alt"\n'
    )
    assert po(kept) == kept
    entry = '#, fuzzy, c-format\n#| msgid "Sav"\nmsgid"Save \\101\\n"\n"%s now\\n"\nmsgstr "x"\n'
    assert po(kept + entry).removeprefix(kept) == (
        '#, c-format\nmsgid"Save \\101\\n"\n"%s now\\n"\nmsgstr ""\n"sAVE a\\n"\n"%s NOW\\n"\n'
    )
    assert po(po(kept + entry), unchanged) == po(kept + entry)
    lines = po((kept + entry).replace("\n", "\r\n")).splitlines(keepends=True)
    assert all(line.endswith("\r\n") for line in lines)


@pytest.mark.parametrize(
    ("target", "header", "forms"),
    [
        ("de", "nplurals=2; plural=(n != 1);", ["ONE FILE", "%d FILES"]),
        ("ja", "nplurals=1; plural=0;", ["%d FILES"]),
        ("pl", "nplurals=3; plural=(n==1 ", ["ONE FILE", "%d FILES", "%d FILES"]),
        ("ru", "nplurals=3; plural=(n%10==1", ["%d FILES"] * 3),  # "one file" would be said of 21
        ("ar", "nplurals=6; plural=(n==0 ", ["%d FILES", "ONE FILE", *["%d FILES"] * 4]),
    ],
)
def test_plural_forms_are_those_of_the_target(target, header, forms):
    template = (
        HEADER.replace("UTF-8", "CHARSET")
        + '\n#, c-format\nmsgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    found = po(template, target=target)
    assert "charset=UTF-8" in found and f'"Plural-Forms: {header}' in found
    assert re.findall(r'^msgstr\[\d\] "(.*)"', found, re.MULTILINE) == forms


def test_the_rule_of_the_header_decides_which_form_stands_for_one_thing_alone():
    plural = 'msgid "a year"\nmsgid_plural "%d years"\n' + "".join(f'msgstr[{i}] ""\n' for i in range(3))
    for rule, forms in (
        ("n == 1 ? 0 : n < 5 ? 1 : 2", ["A YEAR", "%d YEARS", "%d YEARS"]),
        ("n%10==1 && n%100!=11\n ? 0 : 1", ["%d YEARS"] * 3),
        ("n==0 ? 0 : n==1 ? 1 : 2", ["%d YEARS", "A YEAR", "%d YEARS"]),
    ):
        stated = f"Plural-Forms: nplurals=3; plural={rule};".replace("\n", '"\n"')
        found = po(f'{HEADER}"Language: xx\\n"\n"{stated}\\n"\n\n{plural}')
        assert re.findall(r'^msgstr\[\d\] "(.*)"', found, re.MULTILINE) == forms, rule


def test_directives_that_a_program_fills_by_position_keep_their_order_or_get_numbers():
    def entry(flag: str, text: str) -> str:
        found = po(f'{HEADER}\n#, {flag}\nmsgid "{text}"\nmsgstr ""\n', exchanged)
        return re.findall('msgstr "(.*)"', found)[-1]

    assert entry("c-format", "%s in % d") == "%2$ d IN %1$s"
    assert entry("python-format", "%s in %d") == ""  # Python has no numbers for them
    assert entry("python-format", "%(a)s in %(b)d") == "%(b)d IN %(a)s"
    assert entry("lua-format", "%s in %d") == entry("scheme-format", "~s in ~d") == ""
    assert entry("object-pascal-format", "%0:s in %1:d") == "%1:d IN %0:s"
    assert entry("ruby-format", "%<a>d in %<b>s") == "%<b>s IN %<a>d"
    assert entry("c-format", "%<PRIu64> in %s") == "%2$s IN %1$<PRIu64>"
    assert entry("python-brace-format", "{} in {:{}}") == ""
    assert entry("python-brace-format", "{} in {:>5}") == "{1:>5} IN {0}"


def exchanged(texts):
    return [Translated(re.sub(r"^(\S+) in (.+)$", r"\2 IN \1", text)) for text in texts]


def test_texts_of_an_earlier_file_stay():
    text = HEADER + '\nmsgid "one"\nmsgstr ""\n\nmsgctxt "x"\nmsgid "one"\nmsgstr ""\n'
    earlier = HEADER + '\nmsgid "one"\nmsgstr "eins"\n'
    assert po(text, earlier=earlier.encode()) == text.replace('""\n\nmsgctxt', '"eins"\n\nmsgctxt').replace(
        'msgid "one"\nmsgstr ""', 'msgid "one"\nmsgstr "ONE"'
    )
    own = HEADER.replace("UTF-8", "iso-8859-1") + '"Last-Translator: J\xf6rg\\n"\n' + RULE.replace("2", "1")
    plural = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    found = po(f"{HEADER}\n{plural}", earlier=f"{own}\n".encode("iso-8859-1"))
    assert "J\xf6rg" in found and "charset=UTF-8" in found and found.endswith('msgstr[0] "B"\n')


def test_lines_are_wrapped_as_gettext_wraps_them_unless_the_file_does_not():
    words = "a longer text " * 12
    wrapped = po(f'{HEADER}\nmsgid "{words[:70]}"\n"{words[70:140]}"\nmsgstr ""\n')
    assert max(map(len, wrapped.splitlines())) <= 79
    assert f'"{words.upper()}"' in po(f'{HEADER}\nmsgid ""\n"{words}"\nmsgstr ""\n')


def test_a_file_is_written_in_its_charset_or_in_utf_8_if_that_lacks_a_letter():
    text = HEADER.replace("UTF-8", "iso-8859-1") + '\nmsgid "one"\nmsgstr ""\n\nmsgid "\xe9"\nmsgstr "\xe9"\n'
    for made, codec in (("\xe4", "iso-8859-1"), ("\u0142", "utf-8")):
        found = translate_document(
            text.encode("iso-8859-1"), lambda _, made=made: [Translated(made)], format="po", language="en", name="a"
        ).decode(codec)
        assert f'"{made}"' in found and f"charset={codec}".upper() in found.upper() and 'msgstr "\xe9"' in found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('msgid "a\nmsgstr ""', "a.po: line 1: expected a keyword, a string"),
        ('msgid "a"\n\nmsgid "b"\nmsgstr ""', "line 3: msgid twice"),
        ('msgstr ""', "line 1: msgstr without msgid"),
        ('"a"', "line 1: a string without msgid"),
        ('msgid "a"', "the last msgid has no msgstr"),
        ("words", "line 1: unknown keyword words"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(text, told):
    with pytest.raises(HeedError, match=re.escape(told)):
        po(text)


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="gettext is not installed")
def test_gettext_finds_no_fault_whatever_the_order_of_words(tmp_path):
    (tmp_path / "a.po").write_text(
        po(
            HEADER + '\n#, c-format\nmsgid "Copy %s to %d files\\n"\nmsgstr ""\n\n'
            '#, python-format\nmsgid "%s is %d of %%"\nmsgstr ""\n'
            '\n#, c-format\nmsgid "a %lu file"\nmsgid_plural "some %lu files"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            shuffled,
        )
    )
    done = subprocess.run(["msgfmt", "-c", "-o", "/dev/null", "a.po"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
