"""XLIFF: sources without a translation get a target with its state, and everything else stays."""

import re

import pytest
from tests.apps.documents.translators import linked, shuffled, translate_document, unchanged

from heed.errors import HeedError
from heed.text.alignment import Link, Translated

NEW = ' state="needs-review-translation"'

SEGMENTS = (
    "<trans-unit id='a'><source>One. Two</source><seg-source><mrk mtype='seg' mid='1'>One.</mrk> "
    "<mrk mtype='seg' mid='2'>Two</mrk></seg-source>"
)


def xliff(text: str, translate=linked, **options) -> str:
    return translate_document(
        text.encode(), translate, format="xliff", language="en", target="de", name="a.xlf", **options
    ).decode()


def first(units: str, **options) -> str:
    """The units of a file of XLIFF 1.2, translated."""
    head = '<xliff version="1.2" xmlns="urn:x"><file target-language="de"><body>'
    return (
        xliff(f"{head}{units}</body></file></xliff>", **options)
        .removeprefix(head)
        .removesuffix("</body></file></xliff>")
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<trans-unit id='a'>\n <source>One</source>\n</trans-unit>",
         f"<trans-unit id='a'>\n <source>One</source>\n <target{NEW}>oNE</target>\n</trans-unit>"),
        ("<trans-unit id='a'><source>A <g id='1'>b</g><x id='2'/><ph id='3'>code</ph> &amp; c</source><note>x</note>"
         "</trans-unit>",
         "<trans-unit id='a'><source>A <g id='1'>b</g><x id='2'/><ph id='3'>code</ph> &amp; c</source>"
         f"<target{NEW}>a <g id='1'>B</g><x id='2'/><ph id='3'>code</ph> &amp; C</target><note>x</note></trans-unit>"),
        ("<trans-unit id='a'><source>One</source><target state='new'>One</target></trans-unit>",
         f"<trans-unit id='a'><source>One</source><target{NEW}>oNE</target></trans-unit>"),
        ("<trans-unit id='a'><source>One</source><target/></trans-unit>",
         f"<trans-unit id='a'><source>One</source><target{NEW}>oNE</target></trans-unit>"),
        ("<trans-unit id='a'><source>One</source><target>Eins</target></trans-unit>",) * 2,
        ("<trans-unit id='a' translate='no'><source>One</source></trans-unit>",) * 2,
        ("<group translate='no'><trans-unit id='a'><source>One</source></trans-unit></group>",) * 2,
        # Where white space counts, as in Xcode's and Qt's files, lines stay lines.
        ("<trans-unit id='a' xml:space='preserve'><source>One\ntwo <x id='1'/>\n\nthree\n</source></trans-unit>",
         "<trans-unit id='a' xml:space='preserve'><source>One\ntwo <x id='1'/>\n\nthree\n</source>"
         f"<target{NEW}>oNE\nTWO <x id='1'/>\n\nTHREE\n</target></trans-unit>"),
        ("<trans-unit id='a'><source xml:space='preserve'>One.\n- Two</source></trans-unit>",
         "<trans-unit id='a'><source xml:space='preserve'>One.\n- Two</source>"
         f"<target{NEW}>oNE.\n- tWO</target></trans-unit>"),
        # Segments stay apart, though no full stop is between them.
        ("<trans-unit id='a'><source>One two</source><seg-source><mrk mtype='seg' mid='1'>One</mrk> "
         "<mrk mtype='seg' mid='2'>two</mrk></seg-source><alt-trans><source>x</source></alt-trans></trans-unit>",
         "<trans-unit id='a'><source>One two</source><seg-source><mrk mtype='seg' mid='1'>One</mrk> "
         f"<mrk mtype='seg' mid='2'>two</mrk></seg-source><target{NEW}><mrk mtype='seg' mid='1'>oNE</mrk> "
         "<mrk mtype='seg' mid='2'>TWO</mrk></target>"
         "<alt-trans><source>x</source></alt-trans></trans-unit>"),
        # As Trados writes it before and while somebody translates.
        (f"{SEGMENTS}<target><mrk mtype='seg' mid='1'/> <mrk mtype='seg' mid='2'></mrk></target></trans-unit>",
         f"{SEGMENTS}<target{NEW}><mrk mtype='seg' mid='1'>oNE.</mrk> <mrk mtype='seg' mid='2'>tWO</mrk></target>"
         "</trans-unit>"),
        (f"{SEGMENTS}<target><mrk mtype='seg' mid='1'/> <mrk mtype='seg' mid='2'>Zwei</mrk></target></trans-unit>",
         f"{SEGMENTS}<target><mrk mtype='seg' mid='1'>oNE.</mrk> <mrk mtype='seg' mid='2'>Zwei</mrk></target>"
         "</trans-unit>"),
        ("<trans-unit id='a'><source><x id='1'/></source><target><x id='1'/></target></trans-unit>",) * 2,
        ("<trans-unit id='a'><source><![CDATA[a <b>]]></source></trans-unit>",
         f"<trans-unit id='a'><source><![CDATA[a <b>]]></source><target{NEW}><![CDATA[A <b>]]></target></trans-unit>"),
    ],
)  # fmt: skip
def test_targets_are_added_and_filled(before, after):
    assert first(before) == after
    assert first(after) == after  # which are translated now


def test_of_xliff_2_segments_get_targets_and_the_state_translated():
    head = '<xliff version="2.0" srcLang="en"'
    body = (
        "><file id='f'><unit id='u'><segment state='initial'><source>A <pc id='1'>b</pc><ph id='2'/></source></segment>"
        "<ignorable><source> x</source></ignorable><segment><source>One</source><target>Eins</target></segment>"
        "</unit><unit id='v' translate='no'><segment><source>One</source></segment></unit></file></xliff>"
    )
    expected = body.replace(" state='initial'>", ' state="translated">').replace(
        "<ph id='2'/></source>", "<ph id='2'/></source><target>a <pc id='1'>B</pc><ph id='2'/></target>"
    )
    assert xliff(head + body) == f'{head} trgLang="de"{expected}'
    assert xliff('<xliff version="1.2"><file/></xliff>') == '<xliff version="1.2"><file target-language="de"/></xliff>'


def test_targets_of_an_earlier_file_stay_while_the_source_is_the_same():
    unit = "<trans-unit id='{}'><source>{}</source>{}</trans-unit>"
    new = unit.format("a", "One", "") + unit.format("b", "Two", "")
    old = unit.format("a", "One", "<target>Ei<g id='1'>ns</g></target>") + unit.format(
        "b", "Twos", "<target>x</target>"
    )
    earlier = f'<xliff version="1.2">{old}</xliff>'.encode()
    assert re.findall("<target.*?>(.*?)</target>", first(new, earlier=earlier)) == ["Ei<g id='1'>ns</g>", "tWO"]
    assert first(new, translate=unchanged).count("<target") == 2


@pytest.mark.parametrize("text", ["<a/>", '<xliff version="3"/>', "<xliff version='1.2'><file></xliff>", "a",
                                  "<!DOCTYPE a [<!ENTITY b 'c'>]><xliff version='1.2'/>"])  # fmt: skip
def test_what_is_no_xliff_is_refused_in_one_line(text):
    with pytest.raises(HeedError, match="no XLIFF 1.2 or 2|damaged|entities") as error:
        xliff(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("A <bpt id='1'>[b]</bpt>red house<ept id='1'>[/b]</ept> now", 
         "<bpt id='1'>[b]</bpt>HOUSE RED<ept id='1'>[/b]</ept> A NOW"),
        ("A <bx id='1'/>red <g id='2'>house<ex id='3' rid='1'/></g>", 
         "A <bx id='1'/>RED <g id='2'>HOUSE<ex id='3' rid='1'/></g>"),
    ],
)  # fmt: skip
def test_codes_that_begin_and_end_a_format_stay_around_its_words(source, target):
    found = first(f"<trans-unit id='a'><source>{source}</source></trans-unit>", translate=shuffled)
    assert re.search("<target[^>]*>(.*)</target>", found)[1] == target


def test_angulars_links_keep_their_words_whatever_the_order():
    link = '<x id="START_LINK_1" ctype="x-a"/>{}<x id="CLOSE_LINK" ctype="x-a"/>'
    found = first(
        f"<trans-unit id='a'><source>Please {link.format('log in')} now</source></trans-unit>", translate=turned
    )
    assert found.count(link.format("IN LOG")) == 1


def turned(texts):
    """The words of each text from its end, with links that say where they come from."""
    words = [[match.span() for match in re.finditer(r"\S+", text)][::-1] for text in texts]
    results = []
    for text, spans in zip(texts, words, strict=True):
        made = " ".join(text[slice(*span)].upper() for span in spans)
        places = [match.span() for match in re.finditer(r"\S+", made)]
        results.append(Translated(made, [Link(*new, *old) for new, old in zip(places, spans, strict=True)]))
    return results
