"""Folders: which files are translated, copied or left, under which names, and how an interrupted run goes on."""

import json

import pytest
from tests.apps.documents.translators import Asked, swapped_case

from heed.apps.documents.folders import REPORT, plan_folder, translate_folder
from heed.apps.documents.text.translation import DocumentOptions
from heed.errors import HeedError

OPTIONS = DocumentOptions(language="en", target="de")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "index.html": "<p>one</p>",
        "css/a.css": "b { }",
        "locales/en.json": '{"a": "one"}',
        "locales/fr.json": '{"a": "un"}',
        "de/app.json": '{"a": "eins"}',
        "en/app.json": '{"a": "one"}',
        "text_en_US.properties": "a = one",
        "mise-en-place.md": "one\n",
        "sitemap.xml": "<urlset>one</urlset>",
        "res/values-en/strings.xml": '<resources><string name="a">one</string></resources>',
        ".git/config": "x",
        "bad.po": "words",
    }
    for name, text in files.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "site" / "link.html").symlink_to(tmp_path / "site" / "index.html")
    return tmp_path / "site"


def run(site, translate=swapped_case, *, only=(), made_by="a", update=False, out=None):
    """The faults, and the content of each file of the new folder."""
    out = out or site.parent / "new"
    n_done = []
    files = plan_folder(site, out, only=only, languages=("en", "de"))
    faults = translate_folder(
        files, out, translate, OPTIONS, made_by=made_by, update=update, done=lambda n: n_done.append(n)
    )
    assert sum(n_done) == len(files)
    names = [path for path in out.rglob("*") if path.is_file() and path.name != REPORT]
    return faults, {path.relative_to(out).as_posix(): path.read_text() for path in names}


def test_documents_are_translated_and_other_files_copied_under_the_targets_names(site):
    faults, found = run(site)
    assert found == {
        "index.html": "<p>ONE</p>",
        "css/a.css": "b { }",
        "locales/de.json": '{"a": "ONE"}',
        "locales/fr.json": '{"a": "un"}',
        "de/app.json": '{"a": "ONE"}',  # of en/app.json, which stands in the place of the old translation
        "text_de.properties": "a = ONE",
        "mise-en-place.md": "ONE\n",
        "sitemap.xml": "<urlset>one</urlset>",
        "res/values-de/strings.xml": '<resources><string name="a">ONE</string></resources>',
    }
    assert list(faults) == [str(site / "bad.po")] and "unknown keyword" in faults[str(site / "bad.po")]
    report = json.loads((site.parent / "new" / REPORT).read_text())
    assert report["faults"] == faults and report["files"]["css/a.css"]["format"] is None


def test_only_what_is_missing_or_changed_is_translated_again(site):
    translate = Asked(swapped_case)
    asked = translate.texts
    whole = run(site, translate)
    asked.clear()
    assert run(site, translate) == whole and not asked
    (site / "index.html").write_text("<p>two</p>")
    (site.parent / "new" / "locales" / "de.json").unlink()
    assert run(site, translate)[1]["index.html"] == "<p>TWO</p>" and sorted(asked) == ["one", "two"]
    asked.clear()
    assert run(site, translate, made_by="another model") and len(asked) == 6


def test_a_run_that_was_stopped_goes_on(site, monkeypatch):
    monkeypatch.setattr("heed.apps.documents.folders.TOGETHER_BYTES", 1)

    def stop(texts):
        if len(asked) == 3:
            raise KeyboardInterrupt
        return swapped_case(texts)

    stopping = Asked(stop)
    asked = stopping.texts

    with pytest.raises(KeyboardInterrupt):
        run(site, stopping)
    assert len(run(site, stopping)[1]) == 9 and len(asked) == 7  # one of them twice


def test_files_that_were_not_made_from_the_folder_are_not_replaced_and_update_fills_them(site):
    there = site.parent / "new" / "locales" / "de.json"
    there.parent.mkdir(parents=True)
    there.write_text('{"a": "Eins!"}')
    faults, found = run(site)
    assert found["locales/de.json"] == '{"a": "Eins!"}'
    assert "was not made from this folder" in faults[str(site / "locales" / "en.json")]
    (site / "locales" / "en.json").write_text('{"a": "one", "b": "two"}')
    assert run(site, update=True)[1]["locales/de.json"] == '{"a": "Eins!", "b": "TWO"}'


def test_patterns_choose_documents_and_copy_nothing(site):
    assert run(site, only=("*.html", "en/*"))[1] == {"index.html": "<p>ONE</p>", "de/app.json": '{"a": "ONE"}'}


def test_a_folder_within_the_new_one_is_refused_and_one_within_the_old_one_left_out(site):
    for out in (site, site.parent):
        with pytest.raises(HeedError, match="is .* or holds it"):
            run(site, out=out)
    once = run(site, out=site / "de_new")
    assert run(site, out=site / "de_new") == once and len(once[1]) == 9
