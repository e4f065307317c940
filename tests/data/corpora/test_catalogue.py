"""The corpora that come with Heed."""

from pathlib import Path

import pytest

from heed.data.corpora.catalogue import added_folder, catalogue
from heed.errors import HeedError


def test_every_corpus_says_what_it_is_and_what_its_files_must_be():
    corpora = [corpus for corpus in catalogue() if corpus.file is None]
    assert [corpus.name for corpus in corpora] == ["multi30k", "wmt14-en-de", "wmt14-en-fr"]
    assert all(corpus.settings.title and corpus.settings.licence for corpus in corpora)
    # No hashes were ever published for these.
    unknown = [name for corpus in corpora for name, text in corpus.settings.texts() if text.url and not text.sha256]
    assert len(unknown) == 6 and all(name.endswith(".cs") for name in unknown)
    archives = {name: archive for corpus in corpora for name, archive in corpus.settings.archives.items()}
    assert {name for name, archive in archives.items() if archive.sha256 is None} == {"un", "giga"}


def test_added_corpora_are_kept_with_the_users_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert added_folder() == tmp_path / "heed" / "corpora"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert added_folder() == Path.home() / ".config" / "heed" / "corpora"

    def nobody() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(HeedError, match="set XDG_CONFIG_HOME"):
        added_folder()
