"""The targets of guided fuzzing take their seeds, these with changes, and each input that once was a fault."""

import importlib
import random
from collections.abc import Iterator

import pytest

from tests.conftest import n_examples
from tests.fuzzing import FINDS, TARGETS
from tests.fuzzing.inputs import mutated

# Starlette leaves the closing of an uploaded file, which lies in memory, to the collector.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Unclosed file <tempfile.Spooled:ResourceWarning")]


@pytest.fixture(scope="module")
def module(request) -> Iterator:
    """A target's module."""
    found = importlib.import_module(f"tests.fuzzing.{request.param}")
    yield found
    if hasattr(found, "close"):
        found.close()


@pytest.mark.parametrize("module", TARGETS, indirect=True)
def test_seeds_are_no_faults(module):
    for seed in module.seeds():
        module.target(seed)


@pytest.mark.parametrize("module", TARGETS, indirect=True)
def test_seeds_with_random_changes_are_no_faults(module):
    """Others than the guided fuzzing of `make soak` tries, and the same in each session."""
    draw, seeds = random.Random(1), list(module.seeds())
    for _ in range(n_examples(200)):
        module.target(mutated(draw.choice(seeds), draw))


@pytest.mark.parametrize(
    ("module", "path"),
    [(path.parent.name, path) for path in sorted(FINDS.glob("*/*"))],
    indirect=["module"],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_was_a_fault_is_none(module, path):
    module.target(path.read_bytes())
