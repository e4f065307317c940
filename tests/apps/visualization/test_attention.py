"""Traces sum to one and name their words; pictures and pages show them, the page in a real browser."""

import base64
import json
import re
import subprocess
import xml.etree.ElementTree
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.browser import CHROMIUM, needs_chromium
from tests.text.test_sentencepiece import trained

from heed.apps.visualization.render import draw, write_page, write_picture
from heed.apps.visualization.trace import VIEWS, Attention, AttentionTrace, trace, word_place, word_starts
from heed.decoding.settings import DecodingSettings
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.sentencepiece import marian_tokenizer
from heed.text.tokenizer import TokenizerSettings, train_tokenizer

SENTENCE = "three hundred twenty-one"
HOSTILE = (
    "<!-- <script>",
    "</script><script>document.title='taken'</script>",
    "<!--<script --><!-- </script",
    "{{ data }}",
    "\\u003c \\",
    "\u2028 \u2029 \x00 \x01 \x1b[2J",
    "'\"&lt;]]>",
)


def dom(address: str, profile: Path) -> str:
    """The page as it stands in a browser when its scripts have run."""
    command = [*CHROMIUM.split(), f"--user-data-dir={profile}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def traced(text: str) -> AttentionTrace:
    """Two layers of three heads with random weights over the text's words."""
    words = tuple(text.split(" "))
    weights = np.random.default_rng(1).dirichlet(np.ones(len(words)), (2, 3, len(words))).astype(np.float32)
    attention = Attention(weights, words, words)
    return AttentionTrace(text, text, attention, attention, attention)


class Page(HTMLParser):
    """The text of each script element; `elements` in order."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, number_tokenizer):
    torch.manual_seed(1)
    model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=32, n_heads=4), len(number_tokenizer))
    folder = tmp_path_factory.mktemp("model") / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", decoding={"max_extra_tokens": 5}))
    return folder


@pytest.fixture(scope="module")
def translator(model_folder):
    return Translator.load(model_folder)


@pytest.mark.parametrize("whole_words", [False, True])
def test_every_query_gives_one_in_all(translator, whole_words):
    found = trace(translator, SENTENCE, target="drei hundert", whole_words=whole_words)
    for name in VIEWS:
        attention = found.view(name)
        assert attention.weights.shape == (2, 4, len(attention.queries), len(attention.keys))
        assert np.allclose(attention.weights.sum(-1), 1, atol=1e-5)
    assert found.decoder.queries[0] == "<s>" and found.cross.queries[-1] == "</s>" == found.encoder.keys[-1]
    assert not np.triu(found.decoder.weights, 1).any()
    if whole_words:
        assert found.encoder.keys == ("three", "hundred", "twenty", "-", "one", "</s>")
        assert found.cross.queries == ("drei", "hundert", "</s>")


def test_pieces_of_a_word_are_joined_by_sum_and_mean(translator):
    pieces = trace(translator, "supercalifragilistic ox", target="x").encoder
    words = trace(translator, "supercalifragilistic ox", target="x", whole_words=True).encoder
    assert words.keys == ("supercalifragilistic", "ox", "</s>")
    n = next(n for n in range(len(pieces.keys)) if "".join(pieces.keys[:n]).strip("␣") == words.keys[0])
    assert np.allclose(words.weights[..., 0, 0], pieces.weights[..., :n, :n].sum(-1).mean(-1), atol=1e-6)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_letter_of_several_pieces_is_part_of_its_word(kind):
    sentence = "Straße हिन्दी cafe\u0301s 日本."
    tokenizer = train_tokenizer(["a dog"], TokenizerSettings(kind=kind, vocab_size=600))
    assert any("ß⟨" in piece for piece in tokenizer.pieces(tokenizer.encode(sentence)))
    torch.manual_seed(1)
    arch = Architecture(n_layers=1, d_model=32, d_ff=32, n_heads=2)
    translator = Translator(Transformer(arch, len(tokenizer)), tokenizer)
    found = trace(translator, sentence, target=sentence, whole_words=True)
    words = ("Straße", "हिन्दी", "cafe\u0301s", "日本", ".", "</s>")
    assert found.encoder.keys == words == found.cross.queries


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_words_of_an_imported_vocabulary_are_whole(tmp_path, byte_fallback):
    """A byte of a character is not a word, nor does a word that is not in the vocabulary join the one before it."""
    settings = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": byte_fallback}
    (tmp_path / "joint.spm").write_bytes(trained(["a dog runs", "two dogs run"] * 20, **settings))
    tokenizer = marian_tokenizer(tmp_path / "joint.spm", tmp_path / "joint.spm")
    torch.manual_seed(1)
    arch = Architecture(n_layers=1, d_model=32, d_ff=32, n_heads=2)
    translator = Translator(Transformer(arch, len(tokenizer)), tokenizer)
    found = trace(translator, "a dög runs dog😀", target="a Ω dog", whole_words=True)
    assert found.encoder.keys == ("a", "dög", "runs", "dog", "😀", "</s>")
    assert found.cross.queries == ("a", "Ω", "dog", "</s>")


def test_words_begin_where_a_reader_sees_them():
    assert word_starts(["<s>", " a", " dog", "s", " 's", ".", "</s>"]) == [0, 1, 2, 4, 5, 6]
    assert word_starts([" ", "o", "x", " 7", "0", "%"]) == [0, 3, 5]
    assert word_starts(["<s>", " Stra", "ß", "", "e", " hin", "दी", "\u200cx", " e", "\u0301s"]) == [0, 1, 5, 8]
    assert word_starts([" dog", "❤", "\ufe0f", "."]) == [0, 1, 3]
    assert word_place(["a", "dog"], "dog") == 1 == word_place(["a", "dog"], "2")
    assert word_place(["2", "dog"], "2") == 0
    for word in ("cat", "0", "3", "-1", "²", "٢", "9" * 5000, ""):
        with pytest.raises(HeedError, match="no word .* there; the words are: a dog") as caught:
            word_place(["a", "dog"], word)
        assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_pictures_are_written_the_same_each_time(translator, tmp_path):
    attention = trace(translator, SENTENCE).encoder
    for name in ("a.svg", "b.svg", "a.png"):
        write_picture(tmp_path / name, partial(draw, attention=attention, layer=1, heads=[0, 3], word=2))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "three" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_holds_any_source_as_data_only(tmp_path, text):
    found = traced(text)
    write_page(tmp_path / "plain.html", traced("a dog"))
    write_page(tmp_path / "page.html", found)
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    expected = Page((tmp_path / "plain.html").read_text(encoding="utf-8"))
    assert page.elements == expected.elements and page.scripts[1:] == expected.scripts[1:]
    assert "<" not in page.scripts[0]
    data = json.loads(page.scripts[0])
    assert (data["source"], data["target"]) == (text, text)
    for name in VIEWS:
        assert tuple(data["views"][name]["queries"]) == found.view(name).queries
        assert len(base64.b64decode(data["views"][name]["weights"])) == found.view(name).weights.size


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("text", ["<!-- <script>", "</script><script>document.title='taken'</script>"])
def test_a_page_lives_whatever_its_source_is(tmp_path, text):
    write_page(tmp_path / "page.html", traced(text))
    for asked in ("view=cross&layer=1", "view=toString&layer=9&heads=__proto__&word=1e99"):
        shown = dom(f"{(tmp_path / 'page.html').as_uri()}#{asked}", tmp_path / "profile")
        assert 'data-lines="' in shown and "<title>Attention</title>" in shown
        assert f"Source: {text.replace('<', '&lt;').replace('>', '&gt;')}</p>" in shown


def test_a_picture_of_any_source_is_well_formed(tmp_path):
    for text in (*HOSTILE, "x" * 10**6):
        write_picture(tmp_path / "a.svg", partial(draw, attention=traced(text).encoder, layer=1, heads=[0]))
        xml.etree.ElementTree.parse(tmp_path / "a.svg")
    write_picture(
        tmp_path / "a.png", partial(draw, attention=traced(text).encoder, layer=1, heads=[0])
    )  # 10^6 letters: no picture so wide


@pytest.mark.slow
@needs_chromium
def test_the_page_follows_its_reader_without_a_network(translator, tmp_path):
    found = trace(translator, f"{SENTENCE} </script>")
    path = tmp_path / "page.html"
    write_page(path, found)
    assert "default-src 'none'" in path.read_text()  # the browser itself lets it fetch nothing

    def lines(address: str, clicks: str = "") -> int:
        """How many are drawn at this address, once a script has clicked as a reader would."""
        shown = tmp_path / "shown.html"
        script = f"<script>const q = s => document.querySelector(s);{clicks}</script>"
        shown.write_text(path.read_text().replace("</html>", f"{script}</html>"))
        text = dom(shown.as_uri() + address, tmp_path / "profile")
        assert ">three</button>" in text
        return int(re.search(r'data-lines="(\d+)"', text)[1])

    def expected(name: str, layer: int, heads: list[int], word: int | None = None, side: str = "query") -> int:
        weights = np.round(found.view(name).weights[layer, heads] * 255)
        if word is not None:
            weights = weights[:, [word]] if side == "query" else weights[:, :, [word]]
        return int((weights >= 3).sum())

    every = [0, 1, 2, 3]
    assert lines("") == expected("cross", 1, every)
    assert lines("#view=cross&layer=1") == expected("cross", 0, every)
    assert lines("#view=encoder&layer=2&heads=2&word=3") == expected("encoder", 1, [1], 2)
    assert lines("#heads=") == 0

    head, word = "q('.head:nth-child(1) input').click();", "q('.query[data-word=\"2\"]').click();"
    assert lines("#view=encoder", head + word) == expected("encoder", 1, [1, 2, 3], 2) != expected("encoder", 1, every)
    assert lines("#view=encoder", head + word + word) == expected("encoder", 1, [1, 2, 3])
    assert lines("#view=encoder", "q('.key[data-word=\"0\"]').click();") == expected("encoder", 1, every, 0, "key")
    layer = "q('#layer').value = 0; q('#layer').dispatchEvent(new Event('change'));"
    assert lines("#view=encoder", layer) == expected("encoder", 0, every)
    alone = "q('.head:nth-child(4)').dispatchEvent(new Event('dblclick'));"
    assert lines("#view=encoder", alone) == expected("encoder", 1, [3])
    assert lines("#view=encoder", alone + "q('#all').click();" + word + "q('#none').click();") == expected(
        "encoder", 1, every
    )


def test_a_parsers_symbols_are_words_of_their_own():
    symbols = ["(NP", ")NP", "DT", "NN"]
    tokenizer = train_tokenizer(["the dog"] * 3, TokenizerSettings(vocab_size=600), symbols)
    torch.manual_seed(1)
    arch = Architecture(n_layers=1, d_model=32, d_ff=32, n_heads=2)
    settings = DecodingSettings(beam_size=1, max_extra_tokens=5)
    parser = Translator(Transformer(arch, len(tokenizer)), tokenizer, settings)
    for target, names in (
        ("(NP DT NN )NP", "(NP DT NN )NP"),
        ("(NP ▁the DT ▁dog NN )NP", "(NP the DT dog NN )NP"),
        ("(NP ▁ไทย NN ▁ NN )NP", "(NP ไทย NN ␣ NN )NP"),
    ):
        found = trace(parser, "the dog", target=target, whole_words=True)
        assert found.decoder.queries == ("<s>", *names.split()) and found.cross.queries == (*names.split(), "</s>")
        assert found.decoder.weights.shape[2:] == (len(names.split()) + 1,) * 2
    with pytest.raises(HeedError, match="the target 'der Hund' is none"):
        trace(parser, "the dog", target="der Hund")


def test_a_page_shows_bytes_by_name_and_what_is_hidden_as_an_escape(model_folder, heed, tmp_path):
    for name in ("a.html", "a.svg"):
        done = heed("attention", model_folder, "ไ \u200b \x01", "--target", "ß", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert "\ufffd" not in page
        for piece in ("ไ⟨E0⟩", "ไ⟨B9⟩", "ไ⟨84⟩", "\\x01"):
            assert piece in page or json.dumps(piece)[1:-1] in page, (name, piece)


def test_words_are_drawn_as_they_are(tmp_path):
    words = ("$x_1$", r"$\foo$", "Donaudampfschifffahrtsgesellschaftskapitän")
    attention = Attention(np.full((1, 2, 3, 3), 1 / 3, np.float32), words, words)
    write_picture(tmp_path / "a.svg", partial(draw, attention=attention, layer=0, heads=[0, 1]))
    picture = (tmp_path / "a.svg").read_text()
    assert all(picture.count(word) >= 2 for word in words)
    width = float(re.search(r'width="([\d.]+)pt"', picture)[1])
    assert width > 2 * 72 * 0.085 * len(words[2])  # both columns fit


def test_letters_that_no_font_here_has_are_for_svg_only(tmp_path, recwarn):
    words = ("狗", "two", "three")
    attention = Attention(np.full((1, 1, 3, 3), 1 / 3, np.float32), words, words)
    with pytest.raises(HeedError, match=r"no font here has all characters of this text: write an \.svg"):
        write_picture(tmp_path / "a.png", partial(draw, attention=attention, layer=0, heads=[0]))
    assert not (tmp_path / "a.png").exists()
    write_picture(tmp_path / "a.svg", partial(draw, attention=attention, layer=0, heads=[0]))
    assert "狗" in (tmp_path / "a.svg").read_text(encoding="utf-8") and not recwarn.list


def test_the_command_says_what_it_cannot_draw(model_folder, heed, tmp_path):
    done = heed("attention", model_folder, SENTENCE, "--out", tmp_path / "x.svg", "--layer", 2, "--from-word", "three")
    assert done.returncode == 0, done.stderr
    asked = ["--view", "encoder", "--layer", 1, "--head", 2, "--head", 4, "--from-word", "hundred"]
    done = heed("attention", model_folder, SENTENCE, "--whole-words", "--out", tmp_path / "x.html", *asked)
    assert "x.html#view=encoder&layer=1&heads=2,4&word=2\n" in done.stderr
    for words, part in (
        (["--out", tmp_path / "x.pdf"], ".html, .svg or .png"),
        (["--out", tmp_path / "x.svg", "--layer", 3], "--layer 3: the model has 2."),
        (["--out", tmp_path / "x.html", "--head", 9], "--head 9: the model has 4."),
        (["--out", tmp_path / "x.html", "--from-word", "zzz"], "no word 'zzz' there"),
        (["--out", tmp_path / "x.svg", "--view", "all"], "encoder, decoder, cross"),
        (["--out", tmp_path / "x.svg", "--from-word", "four"], "no word 'four' there"),
    ):
        done = heed("attention", model_folder, SENTENCE, *words)
        assert done.returncode == 1 and part in done.stderr.splitlines()[-1], done.stderr


def test_a_page_without_out_is_named_after_the_sentence_and_shows_cross_attention(model_folder, heed, tmp_path):
    for name in ("attention-twenty-one-Ünited".lower(), "attention-twenty-one-ünited-2"):  # none is overwritten
        done = heed("attention", model_folder, "Twenty-one /Ünited", "--target", "einundzwanzig", cwd=tmp_path)
        assert done.returncode == 0
        page = (tmp_path / f"{name}.html").resolve().as_uri()  # as a browser opens it
        assert done.stderr.endswith(f"Wrote {page}#view=cross&layer=2\n"), done.stderr
        assert (tmp_path / f"{name}.html").is_file()
    assert len(list(tmp_path.iterdir())) == 2
    assert heed("attention", model_folder, "../" + "x" * 500, "--target", "ein", cwd=tmp_path).returncode == 0
    assert len(list(tmp_path.iterdir())) == 3
