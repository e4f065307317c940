"""Figures 3 to 5: single heads of a trained model on the paper's sentences; and which heads have a name."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.apps.paper.result_page import Page, code, command, plain, prose, table
from heed.apps.visualization.render import draw
from heed.apps.visualization.trace import END, Attention, View, trace, word_place
from heed.config import shown
from heed.data.reading.lines import read_lines
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.runtime.progress import track

REGISTRATION = (
    "It is in this spirit that a majority of American governments have passed new laws since 2009 making the "
    "registration or voting process more difficult ."
)
LAW = (
    "The Law will never be perfect , but its application should be just - this is what we are missing , in my opinion ."
)
HEADS_LINES = 200
SENTENCES = {3: REGISTRATION, 4: LAW, 5: LAW}
WORDS = {3: "making", 4: "its"}


def figure(
    number: int, model: Path, *, sentence: str | None = None, word: str | None = None, lower: bool = False
) -> Page:
    """Figure 3, 4 or 5, of a model's last encoder layer but one, as the paper's are of layer 5 of 6.

    3: all heads from one word. 4: one head in full, and the two heads that are surest of what the word points to,
    from that word. 5: the two heads that differ most, in full. lower: for models of lower-cased text.
    """
    if word is not None and number not in WORDS:
        raise HeedError(f"figure {number} draws whole heads: --word is for figures 3 and 4.")
    if sentence is not None and word is None and number in WORDS:
        raise HeedError(f"figure {number} draws the lines of one word: say which of the sentence's with --word.")
    made_by = command(f"figure{number}", model=model, sentence=sentence, word=word, lower=lower)
    text = SENTENCES[number] if sentence is None else sentence
    word = WORDS.get(number, "") if word is None else word
    if lower:
        text, word = text.lower(), word.lower()
    attention = trace(Translator.load(model, precision="fp32"), text, whole_words=True).encoder
    n_layers, n_heads = attention.weights.shape[:2]
    layer = max(0, n_layers - 2)
    all_heads = list(range(n_heads))
    name = f"figure{number}"
    title = f"# Figure {number}: encoder self-attention, layer {layer + 1} of {n_layers}"
    parts: list[tuple[str, list[int], int | None]]
    if number == 3:
        parts = [(f"All {n_heads} heads, from “{plain(word)}”.", all_heads, word_place(attention.queries, word))]
    elif number == 4:
        place = word_place(attention.queries, word)
        surest = surest_heads(attention, layer, place)[:2]
        parts = [(f"Head {surest[0] + 1} in full.", surest[:1], None)]
        named = " and ".join(str(head + 1) for head in surest)
        parts.append((f"Heads {named}, from “{plain(word)}” alone.", surest, place))
    else:
        parts = [(f"Head {head + 1} in full.", [head], None) for head in most_different(attention.weights[layer])]
    lines = [title, "", f"{code(model)} reads: {plain(text)}", ""]
    plots = {}
    for i, (caption, heads, from_word) in enumerate(parts, start=1):
        plots[f"{name}-{i}.svg"] = _drawn(attention, layer, heads, from_word)
        lines += [caption, "", f"![{caption}]({name}-{i}.svg)", ""]
    return Page(name, "\n".join(lines), made_by, plots)


def _drawn(attention: Attention, layer: int, heads: Sequence[int], word: int | None) -> Any:
    return lambda canvas: draw(canvas, attention, layer=layer, heads=heads, word=word)


def surest_heads(attention: Attention, layer: int, word: int) -> list[int]:
    """Heads by how much of the word's weight lies on one other word; its neighbours and the end do not count."""
    weights = attention.weights[layer, :, word].copy()
    weights[:, max(0, word - 1) : word + 2] = 0
    weights[:, [i for i, key in enumerate(attention.keys) if key == END]] = 0
    heads: list[int] = np.argsort(-weights.max(axis=1), kind="stable").tolist()
    return heads


def most_different(weights: NDArray[np.float32]) -> tuple[int, int]:
    """The two heads (of a layer: head, query, key) whose weights differ most, of those that are surer than half are.

    HeedError if there is only one.
    """
    if len(weights) < 2:
        raise HeedError("Figure 5 shows two heads of a layer, but this model's layers have one each.")
    sureness = weights.max(axis=2).mean(axis=1)
    sure = np.argsort(-sureness, kind="stable")[: max(2, (len(weights) + 1) // 2)]
    flat = weights.reshape(len(weights), -1)[sure]
    distances = np.abs(flat[:, None] - flat[None]).sum(-1)
    first, second = np.unravel_index(int(distances.argmax()), distances.shape)
    return int(sure[first]), int(sure[second])


@dataclass(frozen=True)
class NamedHead:
    """A head that does something nameable, how much of its weight goes there, and how much of equal weights would."""

    what: str
    view: View
    layer: int
    head: int
    weight: float
    equal: float


KINDS: dict[str, View] = {
    "next word": "encoder", "previous word": "encoder", "same word": "encoder", "end of sentence": "encoder",
    "long distance": "encoder", "beginning": "decoder", "word before": "decoder", "aligned word": "cross",
}  # fmt: skip
LONG = 5  # words; farther is a long distance


def head_weights(attention: Attention, what: str) -> NDArray[np.float64] | None:
    """(layer, head): the mean weight that its queries give to what the kind names; None if no query has any of it."""
    weights = attention.weights.astype(np.float64)
    n_queries, n_keys = weights.shape[2:]
    ahead = np.arange(n_keys)[None, :] - np.arange(n_queries)[:, None]
    far = (np.abs(ahead) > LONG) & (np.arange(n_keys) < n_keys - 1)
    chosen = {
        "next word": ahead == 1,
        "previous word": ahead == -1,
        "word before": ahead == -1,
        "same word": ahead == 0,
        "end of sentence": np.broadcast_to(np.arange(n_keys) == n_keys - 1, ahead.shape),
        "beginning": np.broadcast_to(np.arange(n_keys) == 0, ahead.shape),
        # The surest one, whichever it is, but for the end.
        "aligned word": np.broadcast_to(np.arange(n_keys) < n_keys - 1, ahead.shape),
        "long distance": far,
    }[what]
    queries = chosen.any(axis=1)  # the last word has no next one
    if not queries.any():
        return None
    there = weights * chosen
    given = there.max(axis=3) if what in ("aligned word", "long distance") else there.sum(axis=3)
    result: NDArray[np.float64] = given[:, :, queries].mean(axis=2)
    return result


def equal_weights(attention: Attention, *, causal: bool) -> Attention:
    """One head that gives each word that it may see the same."""
    seen = np.ones(attention.weights.shape[2:], np.float32)
    seen = np.tril(seen) if causal else seen
    return Attention((seen / seen.sum(1, keepdims=True))[None, None], attention.queries, attention.keys)


def named_heads(translator: Translator, sentences: Sequence[str]) -> tuple[list[NamedHead], list[str]]:
    """For each kind the head that does it most, in the mean over the sentences that have any of it; kinds without any.

    A kind that no head does more than equal weights would has no head.
    """
    weights: dict[str, list[NDArray[np.float64]]] = defaultdict(list)  # by kind, of each sentence
    equal: dict[str, list[float]] = defaultdict(list)
    for sentence in track(sentences, "Reading heads", total=len(sentences), unit="sentences"):
        try:
            traced = trace(translator, sentence, whole_words=True)
        except HeedError as error:
            raise HeedError(f"the sentence {shown(sentence)}: {error}") from None
        for what, view in KINDS.items():
            attention = traced.view(view)
            by_head = head_weights(attention, what)
            of_equal = head_weights(equal_weights(attention, causal=view == "decoder"), what)
            if by_head is not None and of_equal is not None:
                weights[what].append(by_head)
                equal[what].append(float(of_equal[0, 0]))
    heads = []
    for what, each in weights.items():
        mean, chance = np.mean(each, axis=0), statistics.mean(equal[what])
        layer, head = np.unravel_index(int(mean.argmax()), mean.shape)
        if mean[layer, head] > chance:
            heads.append(NamedHead(what, KINDS[what], int(layer) + 1, int(head) + 1, float(mean[layer, head]), chance))
    return heads, [what for what in KINDS if what not in weights]


def first_sentences(src: Path, n_lines: int, *, lower: bool = False) -> list[str]:
    """Returns the first lines of a file that are not blank, in lower case if asked. HeedError if none is."""
    sentences = [line.lower() if lower else line for line in islice(read_lines(src), n_lines) if line.strip()]
    if not sentences:
        raise HeedError(f"{src}: no sentence in its first {n_lines} lines.")
    return sentences


def heads_page(model: Path, src: Path, n_lines: int, *, lower: bool = False) -> Page:
    """Named heads with their measure over the first lines of a file, and a picture of each on one of its sentences."""
    sentences = first_sentences(src, n_lines, lower=lower)
    translator = Translator.load(model, precision="fp32")
    heads, absent = named_heads(translator, sentences)
    sample = trace(translator, _sample(sentences), whole_words=True)
    none = [what for what in KINDS if what not in (*absent, *(head.what for head in heads))]
    lines = [
        "# Heads with a recognisable function",
        "",
        prose(
            f"""For each function, the table names the head of {code(model)} that does it most. The measure
            is the share of a word's attention that goes there, averaged over the words of each sentence and then over
            {len(sentences):,} sentences; the last column is what equal weights would give. Long distance: the largest
            weight on one word more than {LONG} words away, the end left out. Aligned word: the largest weight on one
            source word, the end left out."""
        ),
        "",
        *table(
            ("what", "attention", "layer", "head", "measure", "equal weights"),
            ((h.what, h.view, h.layer, h.head, f"{h.weight:.2f}", f"{h.equal:.2f}") for h in heads),
        ),
        "",
        *([f"No head does this more than equal weights: {', '.join(none)}.", ""] if none else []),
        *([f"Nowhere in these sentences: {', '.join(absent)}.", ""] if absent else []),
        f"{plain(sample.source)} → {plain(sample.target)}",
        "",
    ]
    plots = {}
    for h in heads:
        name = f"heads-{h.what.replace(' ', '-')}.svg"
        plots[name] = _drawn(sample.view(h.view), h.layer - 1, [h.head - 1], None)
        lines += [f"## {h.what.capitalize()}: {h.view}, layer {h.layer}, head {h.head}", "", f"![{h.what}]({name})", ""]
    made_by = command("heads", model=model, src=src, lower=lower, lines=None if n_lines == HEADS_LINES else n_lines)
    return Page("heads", "\n".join(lines), made_by, plots)


def _sample(sentences: Sequence[str]) -> str:
    """The first that fits a picture: 10 to 20 words long; else the first."""
    return next((line for line in sentences if 10 <= len(line.split()) <= 20), sentences[0])
