"""Figures 3 to 5: single heads of a trained model on the paper's sentences; and which heads have a name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.decoding.translator import Translator
from heed.paper.page import Page, prose
from heed.visualization.render import draw
from heed.visualization.trace import END, Attention, trace, word_place

REGISTRATION = (
    "It is in this spirit that a majority of American governments have passed new laws since 2009 making the "
    "registration or voting process more difficult ."
)
LAW = (
    "The Law will never be perfect , but its application should be just - this is what we are missing , in my opinion ."
)
SAMPLE = "a woman in a blue coat throws a stick into the water for her dog ."
SENTENCES = {3: REGISTRATION, 4: LAW, 5: LAW}
WORDS = {3: "making", 4: "its"}


def figure(
    number: int, model: Path, *, sentence: str | None = None, word: str | None = None, lower: bool = False
) -> Page:
    """Figure 3, 4 or 5, of a model's last encoder layer but one, as the paper's are of layer 5 of 6.

    3: all heads from one word. 4: one head in full, and the two heads that are surest of what the word points to,
    from that word. 5: the two heads that differ most, in full. lower: for models of lower-cased text.
    """
    text = sentence or SENTENCES[number]
    word = word or WORDS.get(number, "")
    if lower:
        text, word = text.lower(), word.lower()
    attention = trace(Translator.load(model), text, whole_words=True).encoder
    n_layers, n_heads = attention.weights.shape[:2]
    layer = max(0, n_layers - 2)
    all_heads = list(range(n_heads))
    name = f"figure{number}"
    title = f"# Figure {number}: encoder self-attention, layer {layer + 1} of {n_layers}"
    parts: list[tuple[str, list[int], int | None]]
    if number == 3:
        parts = [(f"All {n_heads} heads, from “{word}”.", all_heads, word_place(attention.queries, word))]
    elif number == 4:
        place = word_place(attention.queries, word)
        surest = surest_heads(attention, layer, place)[:2]
        parts = [(f"Head {surest[0] + 1} in full.", surest[:1], None)]
        named = " and ".join(str(head + 1) for head in surest)
        parts.append((f"Heads {named}, from “{word}” alone.", surest, place))
    else:
        parts = [(f"Head {head + 1} in full.", [head], None) for head in most_different(attention.weights[layer])]
    lines = [title, "", f"`{model}` reads: {text}", ""]
    plots = {}
    for i, (caption, heads, from_word) in enumerate(parts, start=1):
        plots[f"{name}-{i}.svg"] = _drawn(attention, layer, heads, from_word)
        lines += [caption, "", f"![{caption}]({name}-{i}.svg)", ""]
    lines += [f"Made by `heed paper {name} --model {model} --out docs/paper`.", ""]
    return Page(name, "\n".join(lines), plots)


def _drawn(attention: Attention, layer: int, heads: Sequence[int], word: int | None) -> Any:
    return lambda canvas: draw(canvas, attention, layer=layer, heads=heads, word=word)


def surest_heads(attention: Attention, layer: int, word: int) -> list[int]:
    """Heads by how much of the word's weight lies on one other word; its neighbours and the end do not count."""
    weights = attention.weights[layer, :, word].copy()
    weights[:, max(0, word - 1) : word + 2] = 0
    weights[:, [i for i, key in enumerate(attention.keys) if key == END]] = 0
    return np.argsort(-weights.max(axis=1), kind="stable").tolist()


def most_different(weights: NDArray[np.float32]) -> tuple[int, int]:
    """The two heads (of a layer: head, query, key) whose weights differ most."""
    flat = weights.reshape(len(weights), -1)
    distances = np.abs(flat[:, None] - flat[None]).sum(-1)
    first, second = np.unravel_index(int(distances.argmax()), distances.shape)
    return int(first), int(second)


@dataclass(frozen=True)
class NamedHead:
    """A head that does something nameable, and how much of its weight goes there."""

    what: str
    view: str
    layer: int
    head: int
    weight: float


KINDS = {
    "next word": "encoder", "previous word": "encoder", "same word": "encoder", "end of sentence": "encoder",
    "long distance": "encoder", "beginning": "decoder", "word before": "decoder", "aligned word": "cross",
}  # fmt: skip
LONG = 5  # words; farther is a long distance


def head_weights(attention: Attention, what: str) -> NDArray[np.float64] | None:
    """(layer, head): the mean weight that its queries give to what the kind names; None if no query has any of it."""
    weights = attention.weights.astype(np.float64)
    n_queries, n_keys = weights.shape[2:]
    ahead = np.arange(n_keys)[None, :] - np.arange(n_queries)[:, None]
    chosen = {
        "next word": ahead == 1,
        "previous word": ahead == -1,
        "word before": ahead == -1,
        "same word": ahead == 0,
        "end of sentence": np.broadcast_to(np.arange(n_keys) == n_keys - 1, ahead.shape),
        "beginning": np.broadcast_to(np.arange(n_keys) == 0, ahead.shape),
        "long distance": (np.abs(ahead) > LONG) & (np.arange(n_keys) < n_keys - 1),
    }
    if what == "aligned word":  # the surest one, whichever it is, but for the end
        if n_keys == 1:
            return None
        found: NDArray[np.float64] = weights[..., :-1].max(axis=3).mean(axis=2)
        return found
    asked = chosen[what].any(axis=1)  # the last word has no next one
    if not asked.any():
        return None
    result: NDArray[np.float64] = (weights * chosen[what]).sum(axis=3)[:, :, asked].mean(axis=2)
    return result


def named_heads(translator: Translator, sentences: Sequence[str]) -> list[NamedHead]:
    """For each kind the head that does it most, in the mean over the sentences that have any of it."""
    totals: dict[str, NDArray[np.float64]] = {}
    counted: Counter[str] = Counter()
    for sentence in sentences:
        found = trace(translator, sentence, whole_words=True)
        for what, view in KINDS.items():
            weights = head_weights(found.view(view), what)  # type: ignore[arg-type]
            if weights is not None:
                totals[what] = totals.get(what, np.zeros_like(weights)) + weights
                counted[what] += 1
    heads = []
    for what, total in totals.items():
        layer, head = np.unravel_index(int(total.argmax()), total.shape)
        weight = float(total[layer, head]) / counted[what]
        heads.append(NamedHead(what, KINDS[what], int(layer) + 1, int(head) + 1, weight))
    return heads


def heads_page(model: Path, sentences: Sequence[str]) -> Page:
    """Named heads with their measure over these sentences, and a picture of each on one of Heed's own."""
    translator = Translator.load(model)
    found = named_heads(translator, sentences)
    sample = trace(translator, SAMPLE, whole_words=True)
    measure = f"the mean over all words of {len(sentences):,} sentences of the weight that goes there"
    lines = [
        "# Heads that have a name",
        "",
        prose(
            f"""Of all heads of `{model}`, for each kind the one that does it most; its measure is {measure}. Long
            distance: more than {LONG} words away, the end left out. Aligned word: the largest weight on one source
            word, the end left out. Equal weights would give one over the number of words."""
        ),
        "",
        "| what | attention | layer | head | measure |",
        "|---|---|---|---|---|",
        *(f"| {h.what} | {h.view} | {h.layer} | {h.head} | {h.weight:.2f} |" for h in found),
        "",
        f"{sample.source} → {sample.target}",
        "",
    ]
    plots = {}
    for h in found:
        name = f"heads-{h.what.replace(' ', '-')}.svg"
        plots[name] = _drawn(sample.view(h.view), h.layer - 1, [h.head - 1], None)  # type: ignore[arg-type]
        lines += [f"## {h.what.capitalize()}: {h.view}, layer {h.layer}, head {h.head}", "", f"![{h.what}]({name})", ""]
    lines += [f"Made by `heed paper heads --model {model} --src FILE --out docs/paper`.", ""]
    return Page("heads", "\n".join(lines), plots)
