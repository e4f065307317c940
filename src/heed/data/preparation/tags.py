"""What stands before a source: the tags of a mix as ids, codes of a given model's languages; and its text in shares."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from heed.data.mix import Mix
from heed.data.reading.pairs import Pair
from heed.errors import HeedError
from heed.text.languages import Languages
from heed.text.tokenizer import Tokenizer
from heed.text.tokenizer_kinds import AnyTokenizer

SHOWN_CODES = 5
ROUNDING = 1e-6  # of a number of pairs, far above that of its product


def shown_codes(codes: Iterable[str]) -> str:
    """The first of them, for a message."""
    first = sorted(codes)
    return ", ".join(first[:SHOWN_CODES]) + " …" * (len(first) > SHOWN_CODES)


def check_tags(tokenizer: AnyTokenizer, tags: Sequence[str | None], *, report: Callable[[str], None]) -> None:
    """HeedError for a tag that the vocabulary lacks. One of several ids, with which it was not learned, is reported."""
    for tag in filter(None, dict.fromkeys(tags)):
        ids = tokenizer.encode(tag)
        if tokenizer.special.unk in ids:
            codes = tokenizer.language_codes
            known = f"one of its codes ({shown_codes(codes)})" if codes else "a word that it has"
            raise HeedError(
                f"the vocabulary of training.start_from lacks the tag {tag} of data.mix; take {known}, or leave the "
                "tag out."
            )
        if len(ids) != 1:
            report(f"Remark: the vocabulary was not learned with the tag {tag}, which is {len(ids)} of its ids.")


def tagged_languages(tokenizer: AnyTokenizer, directions: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What a model's card says of languages whose symbols stand before sources. HeedError if it has no such symbols."""
    tags = tokenizer.tags if isinstance(tokenizer, Tokenizer) else {}
    targets = list(dict.fromkeys(tgt for _, tgt in directions))
    if missing := [target for target in targets if language_tag(target) not in tags]:
        raise HeedError(
            f"the vocabulary has no symbol of the language {missing[0]}; languages of data.mix need one that is "
            "learned with them: leave training.start_from out, or take a model of the same languages."
        )
    ids = {target: tags[language_tag(target)] for target in targets}
    sources = list(dict.fromkeys(src for src, _ in directions))
    return Languages(ids=ids, source="target", is_forced=False, sources=sources, targets=targets).model_dump()


def language_tag(language: str) -> str:
    """The symbol of a target language."""
    return f"<2{language}>"


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
