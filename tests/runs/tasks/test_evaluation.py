"""Scores as people and as programs read them."""

from heed.evaluation.bleu import Score
from heed.runs.tasks.evaluation import Evaluation


def test_every_number_comes_with_its_signature():
    translation = Evaluation("dev", 3, {"bleu": Score("BLEU", 12.345, "tok:13a")}, perplexity=4.5678)
    assert str(translation) == "BLEU 12.35 (tok:13a); perplexity 4.568 a token"
    assert list(translation.numbers().items()) == [
        ("name", "dev"), ("lines", 3), ("bleu", 12.345), ("bleu_signature", "tok:13a"), ("perplexity", 4.5678),
    ]  # fmt: skip
    parse = Evaluation("section23", 3, {"f1": Score("F1", 90.0, "EVALB")})
    assert str(parse) == "F1 90.00 (EVALB)" and "perplexity" not in parse.numbers()
