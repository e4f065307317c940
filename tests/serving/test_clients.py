"""Real clients against a real server."""

import deepl
import httpx
import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

TEXT = "seven hundred twelve. Forty-two!\n\n  three"


@pytest.fixture(scope="module")
def expected(server, translator) -> str:
    sentences = ["seven hundred twelve.", "Forty-two!", "three"]
    first, second, third = (found.text for found in translator.translate(sentences))
    return f"{first} {second}\n\n  {third}"


def test_libretranslatepy(server, expected):
    client = LibreTranslateAPI(server.url)
    assert client.translate(TEXT, "en", "de") == expected
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de", "en"]}]
    assert client.detect("a text") == [{"confidence": 100.0, "language": "en"}]


def test_deep_translator(server, expected):
    client = LibreTranslator(source="en", target="de", api_key="x", custom_url=server.url + "/")
    assert client.translate(TEXT) == expected
    assert client.translate_batch(["three", TEXT])[1] == expected


def test_deepl(server, expected):
    client = deepl.Translator("key", server_url=server.url)
    one = client.translate_text(TEXT, target_lang="DE")
    assert (one.text, one.detected_source_lang, one.billed_characters) == (expected, "EN", len(TEXT))
    assert [found.text for found in client.translate_text([TEXT, ""], source_lang="EN", target_lang="DE")] == [
        expected,
        "",
    ]
    assert [str(language) for language in client.get_source_languages()] == ["EN"]
    assert [(language.code, language.name) for language in client.get_target_languages()] == [("DE", "German")]
    assert client.get_usage().character.count >= 2 * len(TEXT)
    with pytest.raises(deepl.DeepLException, match="zz is not available"):
        client.translate_text("a", source_lang="EN", target_lang="zz")


def test_json_form_and_query_say_the_same(server, expected):
    fields = {"q": TEXT, "source": "en", "target": "de"}
    ways = [
        {"json": fields},
        {"data": fields},
        {"params": fields},
        {"files": {k: (None, v) for k, v in fields.items()}},
    ]
    for way in ways:
        for path in ("/translate", "/translate/"):
            response = httpx.post(server.url + path, **way)
            assert (response.status_code, response.json()) == (200, {"translatedText": expected}), way
