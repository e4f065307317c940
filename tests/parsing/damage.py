"""Trees with faults such as parsers make, for tests of the scorer."""

import random

from heed.parsing.trees import Tree

LABELS = ("NP", "VP", "PP", "ADVP", "PRT", "S", "SBAR")


def damaged(tree: Tree, rng: random.Random, *, rate: float = 0.15, tags: float = 0.02) -> Tree:
    """The same words under other labels, with brackets lost, brackets added and children moved."""

    def changed(node: Tree) -> list[Tree]:
        if node.word is not None:
            return [Tree(rng.choice(("NN", "VB", "IN")), word=node.word) if rng.random() < tags else node]
        children = [new for child in node.children for new in changed(child)]
        if rng.random() < rate and len(children) > 2:  # some of them get a bracket of their own
            start = rng.randrange(len(children) - 1)
            end = rng.randrange(start + 1, len(children) + 1)
            children[start:end] = [Tree(rng.choice(LABELS), tuple(children[start:end]))]
        if rng.random() < rate:
            return children
        return [Tree(rng.choice(LABELS) if rng.random() < rate else node.label, tuple(children))]

    return Tree(tree.label, tuple(new for child in tree.children for new in changed(child)))
