"""A treebank in the LDC's layout and a recipe for it, both small."""

import random
from pathlib import Path

from heed.parsing.trees import BadTree, Tree, clean, parse_trees
from tests.samples import sample

RECIPE = sample("parsing.toml.in")


def write_treebank(folder: Path) -> None:
    """The LDC's layout with a small language of its own: subject, verb, and objects that depend on the verb."""
    rng = random.Random(7)
    nouns, verbs = ["dog", "cat", "tree", "house", "bird"], {"sees": 1, "gives": 2, "sleeps": 0}

    def noun_phrase() -> str:
        return f"(NP (DT the) (NN {rng.choice(nouns)}))"

    for section in range(25):
        path = folder / "parsed" / "mrg" / "wsj" / f"{section:02d}" / f"wsj_{section:02d}01.mrg"
        path.parent.mkdir(parents=True)
        trees = []
        for _ in range(20):
            verb = rng.choice(list(verbs))
            objects = "".join(f" {noun_phrase()}" for _ in range(verbs[verb]))
            subject = noun_phrase().replace("(NP", "(NP-SBJ")
            trees.append(f"( (S {subject}\n    (VP (VBZ {verb}){objects} (NP (-NONE- *)))\n    (. .)) )\n")
        path.write_text("\n".join(trees))
        other = folder / "raw" / "wsj" / f"{section:02d}" / f"wsj_{section:02d}01"
        other.parent.mkdir(parents=True)
        other.write_text("no trees")


def parse_tree(text: str) -> Tree | None:
    """The one tree in a line, cleaned; None for a blank line or traces only. BadTree if it is not one tree."""
    found = list(parse_trees([text]))
    if len(found) > 1:
        raise BadTree("more than one tree in a line", 1, 1)
    if not found:
        return None
    if isinstance(found[0], BadTree):
        raise found[0]
    return clean(found[0])
