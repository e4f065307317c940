"""`heed data add`: a corpus of a user's own is learned from like Heed's, and a stranger's is at worst refused."""

import gzip
import json
import os
import re
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples
from tests.data.conftest import sha256, tar_of, zip_of

from heed.config import toml_tables, toml_text, validated
from heed.data.corpora.added import add_corpora
from heed.data.corpora.catalogue import CorpusSettings, check_added, find
from heed.data.corpora.download import Corpora, fetch
from heed.errors import HeedError

RECIPE = 'preset = "tiny"\n[data]\nsrc = "en"\ntgt = "de"\ncorpus = "mine"\n'


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """The folder of added corpora."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "heed" / "corpora"


@pytest.fixture
def texts(tmp_path) -> Path:
    """A folder with train, dev and a test set in English and German."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for split in ("train", "dev", "news"):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text(f"{split} {language} a\n{split} {language} b\n")
    return folder


def described() -> dict:
    """A corpus of the files of `texts`, as a TOML file beside them names them."""
    sides = {split: {code: {"path": f"{split}.{code}"} for code in ("en", "de")} for split in ("train", "dev", "news")}
    facts = {"title": "Proceedings", "licence": "CC0", "languages": [["en", "de"]]}
    return facts | {"train": [sides["train"]], "dev": sides["dev"], "tests": {"news": sides["news"]}}


def test_a_corpus_of_addresses_and_archives_is_added_fetched_and_named_by_a_recipe(kept, server, tmp_path, heed):
    texts = {f"{split}.{code}": f"{split} {code}\n".encode() * 9 for split in ("train", "dev") for code in ("en", "de")}
    packed = tar_of({f"all/{name}.gz": gzip.compress(text) for name, text in texts.items() if "dev" in name}, "w:xz")
    server.files = {f"/{name}.gz": gzip.compress(text) for name, text in texts.items()} | {"/all.tar.xz": packed}
    values = {
        **{"title": "Proceedings", "licence": "CC0", "languages": [["en", "de"]], "download_bytes": 10_000},
        "archives": {"all": {"url": f"{server.address}/all.tar.xz", "sha256": sha256(packed)}},
        "train": {
            code: {"url": f"{server.address}/train.{code}.gz", "sha256": sha256(texts[f"train.{code}"])}
            for code in ("en", "de")
        },
        "dev": {code: {"archive": "all", "member": f"all/dev.{code}.gz"} for code in ("en", "de")},
    }
    (tmp_path / "mine.toml").write_text(toml_text(values))
    (tmp_path / "my.toml").write_text(RECIPE)

    added = heed("data", "add", "mine.toml", cwd=tmp_path)
    assert added.returncode == 0 and str(kept / "mine.toml") in added.stderr, added.stderr
    assert not server.requests  # nothing is downloaded yet
    listed = heed("data", "list").stdout
    assert "mine: Proceedings\n  en-de; raw; 0 MB\n  CC0\n" in listed and "multi30k" in listed
    *of_heed, mine = json.loads(heed("data", "list", "--json").stdout)
    assert (mine["name"], mine["file"]) == ("mine", str(kept / "mine.toml")) and not any(of["file"] for of in of_heed)

    got = heed("data", "get", "mine", "--src", "de", "--tgt", "en", cwd=tmp_path)
    assert got.returncode == 0, got.stderr
    assert got.stdout.splitlines() == ["corpora/mine/train.de.gz\tcorpora/mine/train.en.gz",
                                       "corpora/mine/dev.de\tcorpora/mine/dev.en"]  # fmt: skip
    assert (tmp_path / "corpora/mine/dev.de").read_bytes() == texts["dev.de"]
    checked = heed("data", "check", "my.toml", "--json", cwd=tmp_path)
    assert checked.returncode == 0 and len(server.requests) == 3, checked.stderr


def test_a_folder_of_texts_is_read_where_it_is(kept, texts, tmp_path, heed):
    (texts / "README.md").write_text("not a text of the corpus")
    (texts / "notes.en").write_text("one side alone\n")
    assert heed("data", "add", "mine", cwd=tmp_path).returncode == 0
    got = heed("data", "get", "mine", "--src", "en", "--tgt", "de", cwd=texts)
    assert got.stdout == "".join(f"{texts}/{split}.en\t{texts}/{split}.de\n" for split in ("train", "dev", "news"))
    (texts / "dev.de").unlink()
    lost = heed("data", "get", "mine", cwd=texts)
    assert lost.returncode == 1 and lost.stderr == f"heed: {texts}/dev.de: missing; a corpus names this file.\n"


def test_all_toml_files_of_a_folder_are_added_or_none(kept, texts, heed):
    for name in ("one", "two"):
        (texts / f"{name}.toml").write_text(toml_text(described()))
    (texts / "three.toml").write_text("title = 3\n")
    refused = heed("data", "add", texts)
    assert refused.returncode == 1 and "three.toml: setting" in refused.stderr and not kept.exists()
    (texts / "three.toml").unlink()
    assert heed("data", "add", texts).returncode == 0
    assert sorted(path.name for path in kept.iterdir()) == ["one.toml", "two.toml"]
    again = heed("data", "add", texts)
    assert f"one was added before; to add it anew, first delete {kept / 'one.toml'} and" in again.stderr


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("title",), None, "setting title: field required"),
        (("tilte",), "x", "unknown setting tilte; did you mean title?"),
        (("folder",), "/", "unknown setting folder"),
        (("languages",), [["en", "fr"]], "train.0 has no text in 'fr', which languages names"),
        (("languages",), [["en", "en"]], "en-en is not a pair of languages"),
        (("dev", "en", "pth"), "x", "unknown setting dev.en.pth; did you mean dev.en.path?"),
        (("dev", "en", "path"), "/etc/passwd", "setting dev.en.path: '/etc/passwd' leads out of the corpus's folder"),
        (("dev", "en", "path"), "x/../../y", "setting dev.en.path: 'x/../../y' leads out of the corpus's folder"),
        (("dev", "en", "path"), "link/passwd", "leads out of"),
        (("dev", "en", "path"), "absent.en", "absent.en: missing"),
        (("dev", "en", "path"), "fifo", "fifo: not a regular file"),
        (("dev", "en", "sha256"), "0" * 64, "expected 0000"),
        (("dev", "en", "sha256"), "XYZ", "setting dev.en.sha256: 'XYZ' is not a SHA-256"),
        (("dev", "en", "url"), "https://example.org/dev.en", "found url and path"),
        (("dev", "en"), {"url": "https://example.org/dev.en"}, "dev.en has no sha256"),
        (("dev", "en"), {"url": "https://example.org/dev.en", "sha256": "0" * 64}, "download_bytes is missing"),
        (("dev", "en"), {"url": "file:///etc/passwd"}, "is not an address that begins with https:// or http://"),
        (("dev", "en"), {"url": "ftp://example.org/dev.en"}, "is not an address that begins with"),
        (("dev", "en"), {"url": "https://[/dev.en"}, "is not an address that begins with"),
        (("dev", "en"), {"url": "https://example.org/x/.."}, "must end in the name of a file"),
        (("dev", "en"), {"url": "https://example.org/dev.en?x=/dev.en"}, "has a query"),
        (("dev", "en"), {"archive": "all", "member": "dev.en"}, "dev.en.archive: there is no archives.all"),
        (("dev", "en"), {"archive": "all", "member": "../.."}, "'../..' must end in the name of a file"),
        (("archives",), {"all": {"url": "https://example.org/a.tgz"}}, "archives.all has no effect"),
        (("archives",), {"all": {"url": "https://example.org/a.rar"}}, "is not an archive that Heed reads"),
        (("tests", "../x"), {}, "a test set cannot be called '../x'"),
        (("variants",), {"raw": {}}, "raw"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_file_and_setting(kept, texts, place, value, message):
    (texts / "link").symlink_to("/etc")
    os.mkfifo(texts / "fifo")
    values = described()
    table = values
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    (texts / "corpus.toml").write_text(toml_text(values))
    with pytest.raises(HeedError) as error:
        add_corpora(texts / "corpus.toml")
    said = str(error.value)
    assert "\n" not in said and message in said and said.startswith(str(texts)) and not kept.exists(), said


def test_the_corpus_of_the_guide_is_one():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "train.md").read_text(encoding="utf-8")
    [block] = re.findall(r"(?s)```toml\n(# proceedings\.toml.*?)```", guide)
    check_added(validated(CorpusSettings, toml_tables(block), where="guide"), where=Path("guide"))


def test_names_of_others_and_names_that_are_no_files_are_refused(kept, texts, heed):
    for name, message in (
        ("multi30k.toml", "a corpus called multi30k comes with Heed; rename it"),
        ("Multi30K.toml", "a corpus called Multi30K comes with Heed; rename it"),
        (".hidden.toml", "'.hidden' cannot be the name of a corpus"),
        ("a b.toml", "'a b' cannot be the name of a corpus"),
        ("corpus.txt", "'corpus.txt' cannot be the name of a corpus"),
    ):
        (texts / name).write_text(toml_text(described()))
        with pytest.raises(HeedError, match=message):
            add_corpora(texts / name)
        (texts / name).unlink()
    (texts / "dev.de").unlink()
    done = heed("data", "add", texts)
    assert f"has no dev.de and dev.en; add them, or split dev off the training text: heed train --src {texts}" in (
        done.stderr
    )
    assert "cannot be read" in heed("data", "add", texts / "absent.toml").stderr and not kept.exists()


def test_what_is_kept_is_checked_again_and_never_takes_the_place_of_a_corpus_of_heed(kept, texts, heed, tmp_path):
    assert heed("data", "add", texts).returncode == 0
    (texts / "train.en").unlink()
    (texts / "train.en").symlink_to("/etc/passwd")
    assert "leads out of" in heed("data", "get", "mine").stderr
    (kept / "mine.toml").rename(kept / "multi30k.toml")
    done = heed("data", "get", "multi30k", "--dir", tmp_path)
    assert f"{kept / 'multi30k.toml'}: a corpus called multi30k comes with Heed; rename the file." in done.stderr


JSON_VALUES = st.recursive(
    st.sampled_from(
        ["", "en", "..", "/", "a/b", "https://x/y", "\x00", "\u202e", "é", 0, -1, 10**30, 1.5, True, "0" * 64]
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["en", "path", "url", "x/y"]), inner),
    max_leaves=4,
)


@settings(
    max_examples=n_examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_description_is_taken_whole_or_refused(kept, texts, data):
    """One value anywhere is replaced by another, or a new one is added."""
    values = table = described()
    while True:
        keys = (
            range(len(table)) if isinstance(table, list) else [*table, *(["title", "new"] if table is values else [])]
        )
        key = data.draw(st.sampled_from(keys))
        inner = table[key] if not isinstance(table, dict) or key in table else None
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        table = inner
    table[key] = data.draw(JSON_VALUES)
    (texts / "drawn.toml").write_text(toml_text(values))
    try:
        [corpus] = add_corpora(texts / "drawn.toml")
    except HeedError as error:
        assert "\n" not in str(error) and not (kept / "drawn.toml").exists()
        return
    assert find("drawn").settings == corpus.settings
    corpus.file.unlink()


def test_an_archive_that_would_fill_the_disk_or_the_memory_is_refused(kept, server, texts, tmp_path):
    zeros = bytes(40_000_000)
    header = tarfile.TarInfo("x" * 2_000_000)  # a name that GNU tar keeps as a header of its own
    long_name = BytesIO()
    with tarfile.open(fileobj=long_name, mode="w:xz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(header, BytesIO())
    for packed, message in (
        (zip_of({"all/dev.en": zeros}), "unpacks to more than 16,777,216 bytes"),
        (tar_of({"all/dev.en": zeros}, "w:xz"), "unpacks to more than 16,777,216 bytes"),
        (tar_of({"all/dev.en.gz": gzip.compress(zeros)}, "w"), "unzips to more than 16,777,216 bytes"),
        (tar_of({"all/dev.en.sgm": b"<seg>" + b"x" * 2_000_000}, "w:xz"), "longer than"),
        (long_name.getvalue(), "a header of 2,000,001 bytes"),
    ):
        archive = "all.zip" if packed.startswith(b"PK") else "all.tar"
        server.files[f"/{archive}"] = packed
        values = described() | {"download_bytes": 10**6}
        values["archives"] = {"all": {"url": f"{server.address}/{archive}", "sha256": sha256(packed)}}
        name = "dev.en.sgm" if "longer" in message else "dev.en.gz" if "unzips" in message else "dev.en"
        values["dev"]["en"] = {"archive": "all", "member": f"all/{name}"}
        (texts / "bomb.toml").write_text(toml_text(values))
        [corpus] = add_corpora(texts / "bomb.toml")
        with pytest.raises(HeedError, match=message):
            fetch("bomb", src="en", tgt="de", variant="raw", corpora=Corpora(tmp_path))
        assert not (tmp_path / "bomb" / "dev.en").exists()
        corpus.file.unlink()
        (tmp_path / "bomb" / archive).unlink()
