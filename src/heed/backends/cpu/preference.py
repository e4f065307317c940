"""Where the kernels are faster than PyTorch's operations: measured once for each instruction set, then looked up.

What a search takes depends on the set and on the model's shape alone, never on the number of rows, so that a line's
translation does not depend on its batch. benchmarks/kernel_times.py measures it; HEED_KERNELS=1 takes all
"""

from dataclasses import dataclass
from math import inf

from heed.model.architecture import Architecture
from heed.runtime.device import native_kernels
from heed.runtime.instruction_sets import InstructionSet, chosen_set


@dataclass(frozen=True)
class Preference:
    """From which widths (d_model) on the kernels are the faster ones."""

    search_from: float
    training_from: float
    measured: str  # how this is known
    # Numbers in a sum, from which on training takes the kernels' products of matrices, where they have tiles.
    product_sums_from: int = 256

    def __str__(self) -> str:
        """For the user to read."""

        def widths(least: float) -> str:
            return "never" if least == inf else f"from width {least:.0f} on" if least else "always"

        return f"in a search {widths(self.search_from)}, in training {widths(self.training_from)} ({self.measured})"


ALWAYS, NEVER = 0.0, inf
PREFERENCES = {
    "generic": Preference(NEVER, NEVER, "not measured: nothing here is made for it"),
    "avx2": Preference(ALWAYS, ALWAYS, "docs/results.md"),
    "avxvnni": Preference(ALWAYS, ALWAYS, "as avx2, of which it has the vectors; not measured itself"),
    "avx512": Preference(ALWAYS, ALWAYS, "docs/results.md"),
    "amx": Preference(ALWAYS, ALWAYS, "docs/results.md; products of shorter sums PyTorch takes as fast", 256),
    "neon": Preference(NEVER, NEVER, "not measured on such a processor"),
    "i8mm": Preference(NEVER, NEVER, "not measured on such a processor"),
}


def any_wins(isa: InstructionSet) -> bool:
    """Whether any model computes faster by the kernels."""
    preference = PREFERENCES[isa.name]
    return min(preference.search_from, preference.training_from) < inf


def wins(arch: Architecture, *, training: bool) -> bool:
    """Whether a model of this shape is to be searched with, or trained, by the kernels."""
    if native_kernels() != "fast":
        return True
    preference = PREFERENCES[chosen_set().name]
    return arch.d_model >= (preference.training_from if training else preference.search_from)


def takes_products(sum_length: int) -> bool:
    """Whether training multiplies matrices of so long sums by the kernels, which need tiles for it."""
    return sum_length >= PREFERENCES[chosen_set().name].product_sums_from
