"""What stands before a source: the tags of a mix as ids, codes of a given model's languages; and its text in shares."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from heed.data.mix import Mix
from heed.data.reading.pairs import Pair
from heed.errors import HeedError
from heed.text.sentencepiece import SentencePieceTokenizer
from heed.text.tokenizer_kinds import AnyTokenizer

CODE = re.compile(r">>[\w.@-]+<<")
SHOWN_CODES = 5
ROUNDING = 1e-6  # of a number of pairs, far above that of its product


def language_codes(tokenizer: AnyTokenizer) -> dict[str, int]:
    """The codes of target languages that an imported vocabulary has for the beginning of a source, such as >>fra<<."""
    if not isinstance(tokenizer, SentencePieceTokenizer) or tokenizer.src.pieces is None:
        return {}
    return {piece: i for i, piece in enumerate(tokenizer.src.pieces) if piece and CODE.fullmatch(piece)}


def shown_codes(codes: Iterable[str]) -> str:
    """The first of them, for a message."""
    first = sorted(codes)
    return ", ".join(first[:SHOWN_CODES]) + " …" * (len(first) > SHOWN_CODES)


def tag_ids(tokenizer: AnyTokenizer, tags: Sequence[str | None], *, report: Callable[[str], None]) -> list[list[int]]:
    """The ids of each tag, one in a vocabulary that was learned with it. HeedError for a tag that the vocabulary lacks.

    A tag of several ids is reported.
    """
    ids_of = {tag: tokenizer.encode(tag) for tag in dict.fromkeys(tags) if tag}
    for tag, ids in ids_of.items():
        if tokenizer.special.unk in ids:
            codes = language_codes(tokenizer)
            known = f"one of its codes ({shown_codes(codes)})" if codes else "a word that it has"
            raise HeedError(
                f"the vocabulary of training.start_from lacks the tag {tag} of data.mix; take {known}, or leave the "
                "tag out."
            )
        if len(ids) != 1:
            report(f"Remark: the vocabulary was not learned with the tag {tag}, which is {len(ids)} of its ids.")
    return [ids_of[tag] if tag else [] for tag in tags]


def in_shares(pairs: Callable[[], Iterable[tuple[int, Pair]]], mix: Mix) -> Iterator[Pair]:
    """About as many pairs as there are, each part's by its share: some of a part several times, or only some of them.

    pairs: gives each with the number of its part. A stage counts as much as any other.
    """
    counts = Counter(part for part, _ in pairs())
    sizes = [counts[part] for part in range(len(mix.parts))]
    stages = [mix.shares(stage, sizes) for stage in range(len(mix.stages) + 1)]
    shares = [sum(of_part) / len(stages) for of_part in zip(*stages, strict=True)]
    repeats = [share * sum(sizes) / max(1, size) for share, size in zip(shares, sizes, strict=True)]
    n_read = [0] * len(sizes)
    for part, pair in pairs():
        before, n_read[part] = n_read[part], n_read[part] + 1
        wanted, given = (int(n * repeats[part] + ROUNDING) for n in (n_read[part], before))
        for _ in range(wanted - given):
            yield pair
