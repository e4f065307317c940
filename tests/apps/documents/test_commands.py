"""Alignment of a small model, and the commands."""

import io
import json
import re

import docx
import pytest
import torch
from tests.apps.documents.test_docx import letter

from heed.decoding.settings import DecodingSettings
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import ModelCard, save_model


@pytest.fixture
def model(small_arch, number_tokenizer):
    from heed.model.transformer import Transformer

    torch.manual_seed(1)
    return Transformer(small_arch, len(number_tokenizer)).eval()


@pytest.fixture
def folder(tmp_path, model, number_tokenizer):
    card = ModelCard("en", "de", decoding={"beam_size": 1, "max_extra_tokens": 2})
    save_model(tmp_path / "model", model, number_tokenizer, card)
    return tmp_path / "model"


def test_alignment_is_the_greatest_mean_weight_of_a_layer_and_does_not_depend_on_the_batch(model, number_tokenizer):
    translator = Translator(model, number_tokenizer, DecodingSettings(beam_size=1), precision="fp32")
    source, target = "one hundred  twenty-three ü犬", "einhundertdreiundzwanzig 犬 x"
    weights = translator.attention(source, target).cross.mean(dim=1)
    src_spans, tgt_spans = number_tokenizer.src_spans([source])[0], number_tokenizer.tgt_spans([target])[0]
    assert "".join(source[a:b] for a, b in dict.fromkeys(src_spans)) == source.replace(" ", "")
    for layer in (1, 2):
        best = weights[layer - 1, : len(tgt_spans), : len(src_spans)].argmax(dim=1)
        expected = tuple((*span, *src_spans[j]) for span, j in zip(tgt_spans, best, strict=True))
        assert translator.alignment(source, target, layer=layer) == expected
    both = translator.alignments(["two", source, "", "three four"], ["zwei", target, "", "vierunddrei und mehr"])
    assert both[1] == translator.alignment(source, target) and both[2] is None
    assert both[1] in [translator.alignment(source, target, layer=layer) for layer in (1, 2)]
    with pytest.raises(HeedError, match="layer 3: the model has 2"):
        translator.alignment(source, target, layer=3)


def test_the_terms_of_a_file_stand_in_the_translation(heed, folder, tmp_path):
    (tmp_path / "a.md").write_text("one **Acme Corp** two\n")
    (tmp_path / "terms.tsv").write_text("acme corp\tACME\nAcme Corp\tDie Acme\n")
    (tmp_path / "wrong.csv").write_text("a,b\nc\n")
    args = ("translate-file", folder, tmp_path / "a.md", tmp_path / "b.md", "--precision", "fp32", "--glossary")
    done = heed(*args, tmp_path / "terms.tsv")
    assert done.returncode == 0 and "**Die Acme**" in (tmp_path / "b.md").read_text(), done.stderr
    for name, reason in (
        ("wrong.csv", "entry 2: expected a term and its translation"),
        ("none", "not there|no file|No such"),
    ):
        done = heed(*args, tmp_path / name)
        assert done.returncode == 1 and name in done.stderr and "Traceback" not in done.stderr
        assert re.search(reason, done.stderr), done.stderr


def test_documents_are_translated_on_standard_input(heed, folder):
    page = "<p>one hundred <b>two</b>.</p>\r\n<pre>x</pre>\n42"
    done = heed("translate", folder, "--format", "html", "--precision", "fp32", stdin=page)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<p>") and done.stdout.endswith("</p>\r\n<pre>x</pre>\n42")
    assert done.stdout.count("<b>") == done.stdout.count("</b>") == 1
    for wrong, told in (
        (["--format", "pdf"], "expected text, md, srt, ass, html, po, json"),
        (["--format", "docx"], "heed translate-file"),
        (["--format", "md", "--json"], "--json is for lines"),
        (["--language", "en"], "give --format too"),
    ):
        done = heed("translate", folder, *wrong, stdin="one")
        assert done.returncode == 1 and told in done.stderr and done.stderr.count("\n") == 1


def test_update_keeps_the_texts_of_the_output_and_fills_what_is_missing(heed, folder, tmp_path):
    (tmp_path / "en.json").write_text('{"a": "one", "b": "two"}')
    (tmp_path / "de.json").write_text('{"a": "Eins!"}')
    done = heed("translate-file", folder, "en.json", "de.json", "--update", cwd=tmp_path)
    found = json.loads((tmp_path / "de.json").read_text())
    assert done.returncode == 0 and found["a"] == "Eins!" and list(found) == ["a", "b"], done.stderr
    (tmp_path / "a.md").write_text("one")
    done = heed("translate-file", folder, "a.md", "b.md", "--update", cwd=tmp_path)
    assert done.returncode == 1 and "--update is for files of keys and texts" in done.stderr
    done = heed("translate-file", folder, "en.json", "x.txt", "--format", "text", cwd=tmp_path)
    assert "--format json keeps them" in done.stderr


def test_a_folder_is_translated_with_a_report_and_status_1_for_what_is_no_document(heed, folder, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.md").write_text("one\n")
    (tmp_path / "site" / "b.json").write_text("{")
    done = heed("translate-file", folder, "site", "new", cwd=tmp_path)
    assert done.returncode == 1 and "b.json: line 1, column 2: not JSON" in done.stderr
    assert "Traceback" not in done.stderr and (tmp_path / "new" / "a.md").exists()
    (tmp_path / "site" / "b.json").unlink()
    assert heed("translate-file", folder, "site", "new", cwd=tmp_path).returncode == 0
    for options, told in ((["--columns", "1"], "are for one file"), (["--format", "md"], "are for one file")):
        done = heed("translate-file", folder, "site", "new", *options, cwd=tmp_path)
        assert done.returncode == 1 and told in done.stderr
    done = heed("translate-file", folder, "site/a.md", "b.md", "--only", "*.md", cwd=tmp_path)
    assert done.returncode == 1 and "--only is for folders" in done.stderr


def test_files_are_translated_whole_or_not_at_all(heed, folder, tmp_path):
    (tmp_path / "letter.docx").write_bytes(letter())
    (tmp_path / "bad.srt").write_bytes(b"\xff")
    (tmp_path / "prose.vtt").write_text("WEBVTT\n\nonly words\n")
    (tmp_path / "page.docx").write_text("<html></html>")
    done = heed("translate-file", folder, "letter.docx", "out.docx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = docx.Document(io.BytesIO((tmp_path / "out.docx").read_bytes()))
    assert len(document.paragraphs) == 3 and len(document.tables) == 1
    for source, options, told in (
        ("bad.srt", [], "is not UTF-8"),
        ("prose.vtt", [], "prose.vtt: line 3 has words"),
        ("page.docx", [], "page.docx: no .docx document but a page"),
        ("none.md", [], "cannot be read"),
        ("letter.pdf", [], "a PDF has no paragraphs that could be put back; translate the document"),
        ("letter.x", [], "--format"),
        ("letter.docx", ["--format", "html"], "is not UTF-8"),
    ):
        done = heed("translate-file", folder, source, "new", *options, cwd=tmp_path)
        assert done.returncode == 1 and told in done.stderr and not (tmp_path / "new").exists()
    for out, told in (
        ("letter.docx", "is the document itself"),
        ("bad.srt/out.docx", "Not a directory"),
        (300 * "x" + ".docx", "File name too long"),
    ):
        done = heed("translate-file", "no model", "letter.docx", out, cwd=tmp_path)
        assert done.returncode == 1 and told in done.stderr and not (tmp_path / "new").exists()
    done = heed("translate-file", folder, "letter.docx", "letter.txt", cwd=tmp_path)
    assert done.returncode == 1 and "letter.txt: the output is docx, but the suffix is .txt" in done.stderr
