"""Search on a GPU: slots for sentences, several steps between two looks of the CPU."""

from bisect import bisect_left

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import BeamAccount, Bools, EndingRules, Ints, StepLimits
from heed.backends.gpu.beams import DeviceAccount, best_of_rows
from heed.backends.gpu.graphs import StepGraphs
from heed.backends.gpu.slots import Slots
from heed.backends.live_prefixes import LivePrefixes
from heed.backends.protocol import FIRST_CAPACITY, NotFiniteError, SearchState, say_once
from heed.backends.reference_search import ReferenceSearchBackend, ReferenceSearchState
from heed.data.batches.padded import padded, sent
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.coverage import Coverage
from heed.model.transformer import Transformer
from heed.runtime.memory import free_gpu_memory

# Any settings, but no class of one's own.
COVERAGE = Coverage(dict.fromkeys(Architecture.model_fields, True) | {"network": {None: True, ...: False}})
MAX_BEAM = 64  # a row's mask has a bit for every row of its beam and position
STEPS = 4  # between two looks of the CPU: a sentence that is done waits for the look
# What a step may compute, each with a graph of its own: these numbers of places, or all; these numbers of positions.
PLACES = tuple(4**i for i in range(16))
POSITIONS = tuple(sorted([*(2**i for i in range(4, 21)), *(3 * 2**i for i in range(4, 20))]))
MAX_BYTES = 2**33  # of all caches, where it is not a GPU whose free memory can be asked for


class GpuSearchBackend(ReferenceSearchBackend):
    """Searches over slots; the rest as the plain network."""

    def covers(self, model: Transformer) -> str | None:
        """None if the slots compute all of the network as it is; else what they do not, to follow "has"."""
        return COVERAGE.missing(model)

    def search_state(self, model: Transformer, *, n_sentences: int, beam_size: int) -> SearchState:
        if beam_size > MAX_BEAM:
            say_once(f"A search on a GPU has slots for beams up to {MAX_BEAM}; wider ones take the plain network.")
            return ReferenceSearchState(model, n_sentences=n_sentences)
        return GpuSearchState(model, n_sentences=n_sentences, beam_size=beam_size)


class GpuSearchState:
    """A search's state over slots; sentences enter and leave at any step.

    As long as `take_steps` takes the steps, the account of the hypotheses lies on the device, and of the one that the
    CPU has only lengths are right, and what was found of the sentences that are done. Where it cannot (prefixes that
    are not yet written), or is not asked (ensembles, sampling, constraints), the CPU chooses, step by step.
    """

    takes_active_rows = False

    def __init__(self, model: Transformer, *, n_sentences: int, beam_size: int):
        self._model, self._beam, self._most = model, beam_size, n_sentences
        self._device = model.src_embedding.weight.device
        self._slots = Slots(model, beam_size)
        self._graphs = StepGraphs(self._device)
        self._max_bytes = _half_of_free_memory(self._device)
        # Of each live sentence: its place, positions written, positions of the source.
        self._places = np.empty(0, np.int64)
        self._lengths, self._src_lengths = np.empty(0, np.int64), np.empty(0, np.int64)
        self._account: DeviceAccount | None = None
        self._n_on_device = 0  # the first sentences, of which the device has the account
        self._live = np.empty(0, np.bool_)  # the places that the device takes for live
        self._penalties = torch.ones(0, dtype=torch.float64)
        self._single: tuple[Tensor, Tensor] | None = None  # of a single step: each row's last id, and logits

    @property
    def n_free(self) -> int:
        return max(0, self._n_places(max(self._slots.capacity, FIRST_CAPACITY)) - len(self._places))

    def _n_places(self, capacity: int) -> int:
        """How many sentences memory holds."""
        return max(1, min(self._most, self._max_bytes // self._slots.bytes_a_place(capacity)))

    def _send(self, array: NDArray[np.generic]) -> Tensor:
        return sent(np.ascontiguousarray(array), self._device)

    @torch.inference_mode()
    def admit(self, src: Ints, lengths: Ints) -> None:
        rows, mask = padded(src, lengths)
        n_new, n_src = rows.shape
        free = np.setdiff1d(np.arange(len(self._places) + n_new), self._places)
        new = free[:n_new]  # the lowest ones: a step computes all places up to the last that is taken
        self._places = np.concatenate([self._places, new])
        self._lengths = np.concatenate([self._lengths, np.zeros(n_new, np.int64)])
        self._src_lengths = np.concatenate([self._src_lengths, np.full(n_new, n_src)])
        self._reserve(max(FIRST_CAPACITY, _next(POSITIONS, n_src)))
        self._slots.admit(self._send(new), self._send(rows), self._send(mask))

    @property
    def _n_computed(self) -> int:
        """The places that a step computes."""
        return min(_next(PLACES, int(self._places.max()) + 1), max(self._most, len(self._places)))

    def _width(self, n_steps: int) -> int:
        """The positions that the next steps compute with."""
        return _next(POSITIONS, max(int(self._lengths.max()) + n_steps, int(self._src_lengths.max())))

    def _reserve(self, capacity: int) -> None:
        """Makes room for all live sentences."""
        n_computed = self._n_computed
        if n_computed <= self._slots.n_places and capacity <= self._slots.capacity:
            return
        self._graphs.forget()
        self._single = None
        try:
            self._slots.resize(n_computed, capacity)
            self._live = np.pad(self._live, (0, self._slots.n_places - len(self._live)))
            if self._account is not None:
                self._account = self._resized(self._account)
        except torch.OutOfMemoryError:
            raise HeedError(
                f"the GPU's memory does not hold a search of {len(self._places):,} sentences with beam_size "
                f"{self._beam} and {capacity:,} tokens at a time; lower beam_size or max_tokens, or free memory on it."
            ) from None

    def _resized(self, old: DeviceAccount) -> DeviceAccount:
        n_best = old.best_scores.shape[1]
        account = self._empty_account(n_best)
        for name, tensor in account.by_place().items():
            kept = old.by_place()[name]
            tensor[tuple(slice(n) for n in kept.shape)] = kept
        return account

    def _empty_account(self, n_best: int) -> DeviceAccount:
        self._penalties = torch.ones(self._slots.capacity + 1, dtype=torch.float64, device=self._device)
        self._n_penalties = 0
        return DeviceAccount.empty(
            self._slots.n_places, self._slots.capacity, beam=self._beam, n_best=n_best, device=self._device
        )

    def _compact(self) -> None:
        """Moves the last sentences to free places where a step then computes fewer places."""
        n = len(self._places)
        if min(_next(PLACES, n), self._most) >= self._n_computed:
            return
        moving = np.flatnonzero(self._places >= n)
        free = np.setdiff1d(np.arange(n), self._places)
        old, new = self._send(self._places[moving]), self._send(free)
        self._slots.move(old, new)
        if self._account is not None:
            for tensor in self._account.by_place().values():
                tensor.index_copy_(0, new, tensor.index_select(0, old))
        self._live[free] = self._live[self._places[moving]]
        self._places[moving] = free

    @torch.inference_mode()
    def take_steps(
        self, account: BeamAccount, rules: EndingRules, prefixes: LivePrefixes, step_limits: StepLimits
    ) -> Bools | None:
        assert rules.fused is not None
        if prefixes:
            self._bring_back(account)
            return None
        # Room for the next steps, and the account of sentences that are new.
        n_steps = min(STEPS, step_limits.most)
        self._compact()
        width = self._width(n_steps)
        self._reserve(width)
        if self._account is None:
            self._account = self._empty_account(account.best_scores.shape[1])
            self._never = self._send(np.flatnonzero(rules.fused.never))
        self._send_account(account, rules)
        # The steps, without a look.
        n_places = self._n_computed
        for _ in range(n_steps):
            self._graphs.run((n_places, width), lambda: self._step(n_places, width, rules))
        return self._look(account, n_steps, n_places, width)

    def _step(self, n_places: int, width: int, rules: EndingRules) -> None:
        """Extends all hypotheses by one id. Only tensors that stay where they are are read or written."""
        assert self._account is not None and rules.fused is not None
        account, fused = self._account.view(n_places, width), rules.fused
        logits = self._slots.decode(account.last, width)
        may_end = (account.lengths >= fused.min_tokens)[:, None].expand(-1, self._beam).flatten()
        values, ids = best_of_rows(logits, self._never, may_end, eos=rules.eos, k=fused.k)
        n_of_row = values.shape[1]
        totals = account.log_probs[..., None] + values.view(n_places, self._beam, n_of_row)
        best = totals.flatten(1).topk(fused.k, dim=1)
        parents = account.extend(
            *(best.values, best.indices // n_of_row, ids.view(n_places, -1).gather(1, best.indices)),
            eos=rules.eos,
            early_stopping=rules.early_stopping,
            penalties=self._penalties,
        )
        self._slots.reorder(parents, width)

    def _send_account(self, account: BeamAccount, rules: EndingRules) -> None:
        """Tells the device what it does not know: who has left, of new sentences all, penalties of greater lengths."""
        assert self._account is not None
        if len(left := np.setdiff1d(np.flatnonzero(self._live), self._places[: self._n_on_device])):
            self._account.live.index_fill_(0, self._send(left), False)
            self._live[left] = False
        if (known := min(len(rules.penalties), len(self._penalties))) > self._n_penalties:
            self._penalties[:known] = self._send(rules.penalties[:known])
            self._n_penalties = known
        if (first := self._n_on_device) == len(account):
            return
        at = self._send(self._places[first:])
        arrays = {name: array[first:] for name, array in vars(account).items()}
        arrays["limit_penalties"] = rules.penalties[arrays["limits"]]
        arrays["live"] = np.ones(len(at), np.bool_)
        for name, tensor in self._account.by_place().items():
            if tensor.dim() == 3:  # ids: as many as both have room for
                width = min(tensor.shape[2], arrays[name].shape[2])
                tensor[..., :width].index_copy_(0, at, self._send(arrays[name][..., :width]))
            else:
                tensor.index_copy_(0, at, self._send(arrays[name]))
        self._live[self._places[first:]] = True
        self._n_on_device = len(account)

    def _look(self, account: BeamAccount, n_steps: int, n_places: int, width: int) -> Bools:
        """Waits for the steps; which searches are over. Their results are put into the CPU's account."""
        assert self._account is not None
        view = self._account.view(n_places, width)
        sent = {
            name: getattr(view, name).to("cpu", non_blocking=True)
            for name in ("broken", "live", "lengths", "best_scores", "best_log_probs", "best_lengths", "best_ids")
        }
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))  # which need not be the current device
            event.synchronize()
        if sent.pop("broken"):
            raise NotFiniteError
        self._live[:n_places] = sent["live"].numpy()
        results = {name: tensor.numpy()[self._places] for name, tensor in sent.items()}
        done = ~results["live"]
        assert (done | (results["lengths"] == self._lengths + n_steps)).all(), "steps that the device did not take"
        self._lengths = account.lengths[:] = results["lengths"]
        self._check_positions()
        if account.width < (longest := int(self._lengths.max())):
            account.resize(longest)
        width = min(width, account.width)
        account.best_ids[done, :, :width] = results["best_ids"][done, :, :width]
        for name in ("best_scores", "best_log_probs", "best_lengths"):
            getattr(account, name)[done] = results[name][done]
        return done

    def _check_positions(self) -> None:
        """HeedError for a target of more positions than the network has."""
        self._model.position_table("tgt", int(self._lengths.max()))

    def _bring_back(self, account: BeamAccount) -> None:
        """Makes the CPU's account right, and forgets the device's."""
        if self._n_on_device:
            assert self._account is not None
            n = self._n_on_device
            at = self._send(self._places[:n])
            for name, array in vars(account).items():
                tensor = self._account.by_place()[name].index_select(0, at).cpu().numpy()
                if array.ndim == 3:
                    width = min(tensor.shape[2], array.shape[2])
                    array[:n, :, :width] = tensor[..., :width]
                else:
                    array[:n] = tensor
        self._n_on_device = 0

    @torch.inference_mode()
    def logits(self, tokens: Ints, active: Ints | None = None) -> Tensor:
        say_once(
            "On a GPU this search chooses each id on the CPU, which is slower: an ensemble, sampling, a constraint or "
            "a prefix is not covered by the search in slots."
        )
        self._compact()
        width = self._width(1)
        self._reserve(width)
        n_places = self._n_computed
        if self._single is None:
            n_rows, weight = self._slots.n_places * self._beam, self._model.src_embedding.weight
            self._single = weight.new_zeros(n_rows, dtype=torch.int64), weight.new_zeros(n_rows, self._model.vocab_size)
        rows = self._send((self._places[:, None] * self._beam + np.arange(self._beam)).ravel())
        last, logits = self._single
        last.index_copy_(0, rows, self._send(tokens))
        self._graphs.run(("single", n_places, width), lambda: self._single_step(n_places, width))
        self._lengths = self._lengths + 1
        self._check_positions()
        return logits.index_select(0, rows)

    def _single_step(self, n_places: int, width: int) -> None:
        assert self._single is not None
        last, logits = (tensor[: n_places * self._beam] for tensor in self._single)
        logits.copy_(self._slots.decode(last.view(n_places, self._beam), width))

    @torch.inference_mode()
    def select(self, rows: Ints, sentences: Ints) -> None:
        kept = sentences
        parents = rows.reshape(-1, self._beam) - kept[:, None] * self._beam
        self._places, self._lengths = self._places[kept], self._lengths[kept]
        self._src_lengths = self._src_lengths[kept]
        self._n_on_device = int((kept < self._n_on_device).sum())
        own = np.arange(self._beam)
        if len(kept) and (parents != own).any():
            of_places = np.tile(own, (self._n_computed, 1))
            of_places[self._places] = parents
            self._slots.reorder(self._send(of_places), self._width(0))


def _next(numbers: tuple[int, ...], least: int) -> int:
    return numbers[bisect_left(numbers, least)]


def _half_of_free_memory(device: torch.device) -> int:
    return free_gpu_memory(device) // 2 if device.type == "cuda" else MAX_BYTES
