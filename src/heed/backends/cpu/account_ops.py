"""The kernels that choose a search's continuations and keep account of them: csrc/continuations.cpp and search.cpp.

Shapes stand beside the names of arrays; row = sentence × beam.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import BeamAccount, Continuations, EndingRules, Floats, Ints
from heed.backends.cpu.build import addresses, check_range, kernel, raw_addresses
from heed.backends.cpu.declarations import Structure, array, ffi, structure
from heed.backends.cpu.packed_weights import Floats32
from heed.backends.live_prefixes import AllowedIds, LivePrefixes, NextIds


def best_continuations(
    logits: Floats32, active: Ints | None, log_probs: Floats, next_ids: NextIds, *, k: int
) -> tuple[Floats, Ints]:
    """Implements `SearchOps.best_continuations`."""
    (never, may_end, eos, allowed), (n_sentences, beam) = next_ids, log_probs.shape
    active = np.arange(log_probs.size) if active is None else active
    lists, counts = _allowed_lists(allowed, n_sentences * beam)
    values, indices = np.empty((n_sentences, k)), np.empty((n_sentences, k), np.int64)
    at = addresses(
        "best_continuations",
        logits=(logits, (len(active), len(never)), np.float32),
        rows=(active, (len(active),), np.int64),
        log_probs=(log_probs, (n_sentences, beam), np.float64),
        never=(never, (len(never),), np.bool_),
        may_end=(may_end, (n_sentences,), np.bool_),
    )
    at |= raw_addresses(allowed=lists, n_allowed=counts, values=values, indices=indices)
    check_range("best_continuations", "rows", active, end=n_sentences * beam)
    sizes = {"n_rows": len(active), "n_sentences": n_sentences, "beam": beam, "vocab": len(never)}
    kernel("best_continuations")(**at, **sizes, eos=eos, k=k)
    return values, indices


def punish(
    logits: Floats32,
    repeated: Sequence[Ints] | None,
    barred: Sequence[Ints] | None,
    *,
    penalty: float,
    of_logits: bool,
) -> tuple[Floats32, Floats]:
    """Implements `SearchOps.punish`."""
    before = _log_sums(logits)
    for row, (total, of_row) in enumerate(zip(before, logits, strict=True)):
        if repeated is not None and len(ids := repeated[row]):
            own = of_row[ids]
            if of_logits:
                of_row[ids] = np.where(own < 0, own * penalty, own / penalty)
            else:
                of_row[ids] = total + penalty * (own - total)
        if barred is not None:
            of_row[barred[row]] = -np.inf
    return logits, _log_sums(logits) - before


def _log_sums(logits: Floats32) -> Floats:
    """(row): the logarithm of the sum of e to each logit."""
    largest = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - largest).sum(axis=1, dtype=np.float64)
    return np.asarray(np.log(sums) + largest[:, 0])


def draw(
    logits: Floats32, numbers: Floats, next_ids: NextIds, *, temperature: float, top_k: int | None, top_p: float
) -> tuple[Ints, Floats]:
    """Implements `SearchOps.draw`."""
    (never, may_end, eos, allowed), (n_rows, vocab) = next_ids, logits.shape
    lists, counts = _allowed_lists(allowed, n_rows)
    ids, log_probs = np.empty(n_rows, np.int64), np.empty(n_rows)
    at = addresses(
        "draw",
        logits=(logits, (n_rows, len(never)), np.float32),
        numbers=(numbers, (n_rows,), np.float64),
        never=(never, (vocab,), np.bool_),
        may_end=(may_end, may_end.shape, np.bool_),
    )
    if n_rows % len(may_end):
        raise ValueError("kernel draw: the rows are not the sentences'.")
    at |= raw_addresses(allowed=lists, n_allowed=counts, ids=ids, log_probs=log_probs)
    sizes = {"n_rows": n_rows, "beam": n_rows // len(may_end), "vocab": vocab}
    kernel("draw")(**at, **sizes, eos=eos, temperature=temperature, top_k=top_k or 0, top_p=top_p)
    return ids, log_probs


def log_probs_of(logits: Floats32, ids: Ints) -> Floats:
    """(row, id): the log-probabilities of these ids (row, id) by these logits (row, vocab); -∞ for those below 0."""
    n_rows, vocab = logits.shape
    y = np.empty(ids.shape)
    at = addresses(
        "log_probs_of", logits=(logits, logits.shape, np.float32), ids=(ids, (n_rows, ids.shape[1]), np.int64)
    )
    if not within(np.maximum(ids, 0), vocab):
        raise IndexError(f"kernel log_probs_of: an id is out of range; expected at most {vocab - 1}.")
    kernel("log_probs_of")(**at, **raw_addresses(y=y), n_rows=n_rows, n_ids=ids.shape[1], vocab=vocab)
    return y


def mean_logits(logits: Sequence[Floats32]) -> Floats32:
    """Implements `SearchOps.mean_logits`."""
    (n_rows, vocab), mean = logits[0].shape, np.empty_like(logits[0])
    of_models = [addresses("mean_logits", logits=(x, mean.shape, np.float32))["logits"] for x in logits]
    parts = ffi.new("float *[]", [ffi.cast("float *", at) for at in of_models])
    kernel("mean_logits")(logits=parts, **raw_addresses(y=mean), n_models=len(logits), n_rows=n_rows, vocab=vocab)
    return mean


def _allowed_lists(allowed: AllowedIds | None, n_rows: int) -> tuple[Ints, Ints]:
    """By row, the address of the ids that may follow, or 0, and how many they are."""
    addresses, counts = np.zeros((2, n_rows), np.int64)
    for row, ids in enumerate(allowed or ()):
        if ids is not None:
            if ids.dtype != np.int32 or not ids.flags.c_contiguous:
                raise ValueError(f"kernel best_continuations: allowed ids of {ids.dtype}; expected int32, contiguous.")
            addresses[row], counts[row] = ids.ctypes.data, len(ids)
    return addresses, counts


def prefix_structures(prefixes: LivePrefixes) -> dict[str, Any]:
    """The prefixes and the states of the rows as the kernels take them; nothing where no sentence has one."""
    if not prefixes:
        return {}
    ends = np.array([prefix.end for prefix in prefixes.prefixes])
    if (prefixes.states < 0).any() or (prefixes.states > ends[:, None]).any():
        raise IndexError("kernel search_steps: a prefix has no such state.")
    of_each = {id(prefix): prefix for prefix in prefixes.prefixes}
    structures = {
        key: structure(
            "Prefix",
            end=prefix.end,
            n_given=prefix.n_given,
            **addresses(
                "search_steps",
                begins=(prefix.begins, (prefix.end + 1,), np.int64),
                ids=(prefix.ids, prefix.nexts.shape, np.int32),
                nexts=(prefix.nexts, prefix.ids.shape, np.int32),
                needed=(prefix.needed, (prefix.end + 1,), np.int32),
            ),
        )
        for key, prefix in of_each.items()
    }
    states = addresses("search_steps", states=(prefixes.states, prefixes.states.shape, np.int64))
    return {"prefixes": array("Prefix", [structures[id(prefix)] for prefix in prefixes.prefixes]), **states}


def extend_beams(
    account: BeamAccount, continuations: Continuations, rules: EndingRules
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Does what `beam_account.extend` does where rows compete."""
    (n, beam), k = account.last.shape, continuations.ids.shape[1]
    account_structure, rules_structure = account_structures(account, rules)
    at = addresses(
        "extend_beams",
        values=(continuations.log_probs, (n, k), np.float64),
        parents=(continuations.parents, (n, k), np.int64),
        ids=(continuations.ids, (n, k), np.int64),
    )
    if not (k >= beam and account.width > account.lengths.max() and within(continuations.parents, beam)):
        raise IndexError("kernel extend_beams: a length or parent out of range.")
    rows, done = np.empty((n, beam), np.int64), np.empty(n, np.bool_)
    outputs = raw_addresses(rows=rows, done=done)
    kernel("extend_beams")(account=account_structure, rules=rules_structure, **at, k=k, **outputs)
    return rows, done


def account_structures(account: BeamAccount, rules: EndingRules) -> tuple[Structure, Structure]:
    """The account and the rules as the kernels take them."""
    # Arrays by the types that the C structures declare.
    (n, beam), n_best, width = account.last.shape, account.best_scores.shape[1], account.width
    i64, f64, i32 = np.int64, np.float64, np.int32
    penalties = addresses("extend_beams", penalties=(rules.penalties, rules.penalties.shape, f64))
    at = addresses(
        "extend_beams",
        lengths=(account.lengths, (n,), i64),
        limits=(account.limits, (n,), i64),
        n_ended=(account.n_ended, (n,), i64),
        log_probs=(account.log_probs, (n, beam), f64),
        last=(account.last, (n, beam), i64),
        history=(account.history, (n, beam, width), i32),
        best_scores=(account.best_scores, (n, n_best), f64),
        best_log_probs=(account.best_log_probs, (n, n_best), f64),
        best_lengths=(account.best_lengths, (n, n_best), i64),
        best_ids=(account.best_ids, (n, n_best, width), i32),
    )
    # Penalties are looked up by length, histories are written at it.
    if n and not (
        account.lengths.min() >= 0
        and (account.lengths < account.limits).all()
        and account.limits.max() < len(rules.penalties)
    ):
        raise IndexError("kernel extend_beams: a length or limit out of range.")
    return (
        structure("BeamAccount", **at, n_sentences=n, beam=beam, n_best=n_best, width=width),
        structure("EndingRules", **penalties, eos=rules.eos, early_stopping=rules.early_stopping),
    )


def reorder_ancestors(ancestors: NDArray[np.int32], slots: Ints, parents: Ints, *, beam: int, n_positions: int) -> None:
    """ancestors[slots, :n_positions] = ancestors[parents, :n_positions]; a row's parent is of its own sentence.

    ancestors (slot, position); slots and parents (row).
    """
    (n_slots, capacity), n_rows = ancestors.shape, len(slots)
    at = addresses(
        "reorder_ancestors",
        ancestors=(ancestors, (n_slots, capacity), np.int32),
        slots=(slots, (n_rows,), np.int64),
        parents=(parents, (n_rows,), np.int64),
    )
    check_range("reorder_ancestors", "slots", slots, end=n_slots)
    check_range("reorder_ancestors", "parents", parents, end=n_slots)
    if not 0 <= n_positions <= capacity or n_rows % beam:
        raise IndexError(f"kernel reorder_ancestors: {n_positions} positions of {n_rows} rows; expected {capacity}.")
    kernel("reorder_ancestors")(**at, n_rows=n_rows, beam=beam, capacity=capacity, n=n_positions)


def within(numbers: Ints, end: int) -> bool:
    """Whether all are at least 0 and below `end`."""
    return not numbers.size or bool(0 <= numbers.min() <= numbers.max() < end)
