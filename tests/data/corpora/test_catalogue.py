"""The corpora that Heed knows by name."""

from heed.data.corpora.catalogue import catalogue


def test_every_corpus_says_what_it_is():
    assert [info.name for info in catalogue()] == ["multi30k", "wmt14-en-de", "wmt14-en-fr"]
    assert all(info.title and info.licence and info.languages for info in catalogue())
