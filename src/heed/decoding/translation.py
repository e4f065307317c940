"""What becomes of a line: its translation, and the alternatives to it."""

from dataclasses import dataclass, field, replace

from heed.text.line_rules import is_blank


@dataclass(frozen=True)
class Translation:
    """A translated line; `alternatives` are the n best, this one first. log_prob is natural, score length-penalised.

    n_pieces: into how many pieces the source was cut because it has too many tokens for one search.
    tokens: the target's, as `tokenizer.tokens` names them; of a source in pieces, those of all pieces.
    utility: its expected score, 0 to 100, if minimum Bayes risk chose it; None for a source of no piece or several.
    is_best: false where the best one is blank, so that another, or the source, stands here.
    """

    source: str
    text: str
    score: float
    log_prob: float
    ended: bool
    alternatives: tuple["Translation", ...] = field(default=(), repr=False)
    n_pieces: int = 1
    utility: float | None = None
    tokens: tuple[str, ...] = ()
    is_best: bool = True


def without_blank(translation: Translation) -> Translation | None:
    """The best of its alternatives that is not blank, with the others that are not; None if there is none."""
    worded = tuple(one for one in translation.alternatives or (translation,) if not is_blank(one.text))
    return replace(worded[0], alternatives=worded, n_pieces=translation.n_pieces, is_best=False) if worded else None
