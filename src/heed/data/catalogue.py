"""Named corpora: addresses, hashes, licences, splits."""

import difflib
from dataclasses import dataclass

from heed.errors import HeedError


@dataclass(frozen=True, kw_only=True)
class CorpusInfo:
    """What `heed data list` shows of a corpus."""

    name: str
    title: str
    languages: tuple[tuple[str, str], ...]  # each pair in either direction
    variants: tuple[str, ...]
    download_bytes: int | None
    licence: str


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file to fetch: of a text the hash is that of its lines, unzipped; of an archive that of its bytes."""

    name: str
    address: str
    sha256: str | None  # None where nobody published one: then the first download's hash is kept and checked


@dataclass(frozen=True, kw_only=True)
class Member:
    """A text in an archive; SGM is turned into plain lines, .gz unzipped."""

    archive: Remote
    path: str


MULTI30K = CorpusInfo(
    name="multi30k",
    title="29,000 image captions (Elliott et al. 2016); test: test2016",
    languages=(("en", "de"), ("en", "fr"), ("en", "cs")),
    variants=("raw", "lc.norm.tok"),
    download_bytes=2_600_000,
    licence="captions of Flickr30k: for research and education only",
)
_WMT_LICENCE = "free for research (statmt.org/wmt14)"
WMT14_DE = CorpusInfo(
    name="wmt14-en-de",
    title="4.5 million pairs: Europarl v7, Common Crawl, News Commentary v9; dev newstest2013, test newstest2014",
    languages=(("en", "de"),),
    variants=("raw",),
    download_bytes=1_695_017_077,
    licence=_WMT_LICENCE,
)
WMT14_FR = CorpusInfo(
    name="wmt14-en-fr",
    title="36 million pairs: as wmt14-en-de, with the UN corpus and 10^9; dev newstest2013, test newstest2014",
    languages=(("en", "fr"),),
    variants=("raw",),
    download_bytes=None,
    licence=_WMT_LICENCE,
)
_MULTI30K_ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
_MULTI30K_SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "train.lc.norm.tok.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "val.lc.norm.tok.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    "test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    "test_2016_flickr.lc.norm.tok.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
}
# Hashes: the checksum list of TensorFlow Datasets (tensorflow_datasets/url_checksums/wmt14_translate.txt).
EUROPARL = Remote(
    name="training-parallel-europarl-v7.tgz",
    address="https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = Remote(
    name="training-parallel-commoncrawl.tgz",
    address="https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS = Remote(
    name="training-parallel-nc-v9.tgz",
    address="https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    sha256="cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
DEV = Remote(
    name="dev.tgz",
    address="https://data.statmt.org/wmt19/translation-task/dev.tgz",
    sha256="7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)
UN = Remote(
    name="training-parallel-un.tgz",
    address="https://www.statmt.org/wmt13/training-parallel-un.tgz",
    sha256=None,
)
GIGA = Remote(
    name="training-giga-fren.tar",
    address="https://www.statmt.org/wmt10/training-giga-fren.tar",
    sha256=None,
)


def catalogue() -> tuple[CorpusInfo, ...]:
    """All named corpora."""
    return MULTI30K, WMT14_DE, WMT14_FR


def find(name: str, src: str, tgt: str, variant: str) -> CorpusInfo:
    known = {info.name: info for info in catalogue()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}."
        raise HeedError(f"unknown corpus {name!r}; {hint}")
    info = known[name]
    if (src, tgt) not in info.languages and (tgt, src) not in info.languages:
        offered = ", ".join("-".join(pair) for pair in info.languages)
        raise HeedError(f"{name} has no pair {src}-{tgt}; it offers {offered}, in both directions.")
    if variant not in info.variants:
        raise HeedError(f"{name} has no variant {variant!r}; it offers {', '.join(info.variants)}.")
    return info


def caption_file(split: str, language: str, variant: str) -> Remote:
    if variant == "raw":
        name, path = f"{split}.{language}", f"raw/{split}.{language}.gz"
    else:
        name = f"{split}.{variant}.{language}"
        path = f"tok/{name}"
    return Remote(name=name, address=f"{_MULTI30K_ADDRESS}/{path}", sha256=_MULTI30K_SHA256.get(name))
