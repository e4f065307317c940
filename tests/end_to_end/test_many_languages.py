"""A model of several languages in lines, documents, shards and a server: each sentence is told its languages."""

import json
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from tests.conftest import sharp_model

from heed.decoding.translator import Translator
from heed.model.architecture import Architecture
from heed.model_folder import ModelCard, save_model

TEXTS = ["two hundred", "seven", "one thousand and one"]
FORCED = {"ids": {"en": 300, "de": 301, "zh-Hant": 302}, "source": "source", "is_forced": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, number_tokenizer) -> Path:
    """Ids of ordinary pieces stand for its languages, so that they change what it writes."""
    folder = tmp_path_factory.mktemp("many") / "model"
    model = sharp_model(Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4), len(number_tokenizer), seed=11)
    card = ModelCard("mul", "mul", decoding={"beam_size": 2, "max_tokens": 12}, languages=FORCED)
    save_model(folder, model, number_tokenizer, card)
    return folder


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, list[str]]:
    """The translations of TEXTS into each language, one by one."""
    translator = Translator.load(folder, precision="fp32")
    found = {
        target: [translator.between("en", target).translate(text).text for text in TEXTS]
        for target in ("de", "zh-Hant")
    }
    assert found["de"] != found["zh-Hant"]
    return found


def test_commands_take_the_languages(folder, expected, heed, tmp_path):
    lines = "".join(f"{text}\n" for text in TEXTS)
    pair = ("--from", "English", "--to", "zho_Hant", "--precision", "fp32")
    done = heed("translate", folder, *pair, stdin=lines)
    assert done.stdout.splitlines() == expected["zh-Hant"], done.stderr
    done = heed("translate", folder, "--to", "de", stdin=lines)
    assert done.returncode == 1 and "name the source language (--from CODE" in done.stderr and not done.stdout
    # A document's paragraph has several sentences.
    (tmp_path / "a.md").write_text("# Two hundred\n\nSeven. One thousand and one.\n")
    assert heed("translate-file", folder, "a.md", "b.md", *pair, cwd=tmp_path).returncode == 0
    translator = Translator.load(folder, precision="fp32", source="en", target="zh-TW")
    written = (tmp_path / "b.md").read_text(encoding="utf-8")
    for sentence in ("Two hundred", "Seven.", "One thousand and one."):
        assert translator.translate(sentence).text in written
    # Shards, and the scores of what they hold.
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    options = ("--in", "rows.jsonl", "--out", "out", *pair)
    assert heed("translate-shards", folder, *options, cwd=tmp_path).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "part-00000.jsonl").read_text("utf-8").splitlines()]
    assert [row["translation"] for row in rows] == expected["zh-Hant"]
    options = ("--in", "rows.jsonl", "--out", "out", "--from", "en", "--to", "de", "--precision", "fp32")
    assert heed("translate-shards", folder, *options, cwd=tmp_path).returncode == 1
    options = ("--in", "out/part-*.jsonl", "--out", "scored", "--prefix", "again_", *pair)
    assert heed("score-shards", folder, *options, cwd=tmp_path).returncode == 0
    for row in map(json.loads, (tmp_path / "scored" / "part-00000.jsonl").read_text("utf-8").splitlines()):
        if row["ended"]:
            assert row["again_score"] == pytest.approx(row["score"], abs=1e-3)


def test_a_server_translates_all_pairs_in_one_search(serve, folder, expected):
    server = serve(folder)
    languages = {one["code"]: one for one in json.loads(server.get("/languages"))}
    assert [(code, one["targets"]) for code, one in languages.items()] == [
        (code, ["de", "en", "zh-Hant"]) for code in ("zh-Hant", "en", "de")
    ]
    assert languages["zh-Hant"]["name"] == "Chinese (Hant)"

    def answer(path: str, **fields: object) -> dict:
        request = urllib.request.Request(
            server.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.loads(response.read())

    for target in expected:
        for code in (target, target.upper(), {"de": "deu_Latn", "zh-Hant": "zh-TW"}[target]):
            found = answer("/translate", q=TEXTS, source="eng", target=code)["translatedText"]
            assert found == expected[target]
    # One request in two source languages: each text is told its own.
    found = answer("/v2/translate", text=["Guten Tag, wie geht es Ihnen heute?", TEXTS[0]], target_lang="zh-Hant")
    assert [one["detected_source_language"] for one in found["translations"]] == ["DE", "EN"]
    alone = Translator.load(folder, precision="fp32", source="de", target="zh-Hant")
    assert found["translations"][0]["text"] == alone.translate("Guten Tag, wie geht es Ihnen heute?").text
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer("/translate", q="two", source="en", target="fr")
    assert json.loads(refused.value.read()) == {"error": "fr is not supported"}
    assert server.stop() == 0
