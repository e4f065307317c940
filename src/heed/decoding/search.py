"""Beam search over ids (section 6.1; greedy is a beam of 1)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from heed.config import Settings
from heed.data.batching import SpecialIds
from heed.model.transformer import Transformer


class DecodingSettings(Settings):
    """How to search; defaults are the paper's."""

    beam_size: int = Field(4, ge=1, description="hypotheses kept a sentence; 1 is greedy")
    length_penalty: float = Field(0.6, ge=0, description="α; 0 compares plain log-probabilities")
    max_extra_tokens: int = Field(50, ge=0, description="an output is at most so much longer than its input")


@dataclass(frozen=True)
class Hypothesis:
    """A target: its ids without bos and eos, log P(target | source), the score that ranks it, whether eos ended it."""

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha: Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6.

    The score of a target is its log-probability over this; `length` counts its ids, eos included.
    """
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def beam_search(
    model: Transformer,
    src: Int[Tensor, "sentence src"],
    src_mask: Bool[Tensor, "sentence src"],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """For each source (with eos) its `n_best` best hypotheses found, best first; fewer where the beam held fewer.

    A hypothesis ends when eos is among the beam_size best continuations of its sentence; the search goes on with as
    many unfinished ones. It stops for a sentence as soon as no unfinished hypothesis can still enter the n_best, which
    never changes the result, and a beam of 1 stops at its first eos. A hypothesis that reaches the maximum length
    without eos counts only where none has ended.
    """
    beam, alpha, vocab_size = settings.beam_size, settings.length_penalty, model.vocab_size
    n_best = min(n_best, beam)
    limits = src_mask.sum(1) - 1 + settings.max_extra_tokens  # per live sentence; src counted without its eos
    limits = limits.clamp(min=1)
    bounds = ((5 + limits) / 6) ** alpha  # the mildest penalty that a sentence's hypotheses can come to
    found: list[list[Hypothesis]] = [[] for _ in src]

    state = model.start(model.encode(src, src_mask), src_mask)
    live = torch.arange(len(src), device=src.device)  # places in `src` of the sentences still searched
    history = torch.full((len(src), 1), special.bos, device=src.device)  # (row, tgt)
    log_probs = torch.zeros(len(src), 1, device=src.device)  # (live sentence, width): one row at first, then `beam`
    length = 0
    while len(live):
        length += 1
        width = log_probs.shape[1]
        logits = model.decode(history[:, -1:], state)[:, 0].float()
        next_log_probs = torch.log_softmax(logits, dim=-1)
        next_log_probs[:, [special.pad, special.bos]] = -torch.inf
        total = (log_probs.view(-1, 1) + next_log_probs).view(len(live), -1)
        # Twice the beam: even if half of them end, `beam` unfinished ones remain.
        top, index = total.topk(min(2 * beam, total.shape[1]), dim=1)
        tokens = index % vocab_size
        rows = torch.arange(len(live), device=src.device)[:, None] * width + index // vocab_size
        is_eos = tokens == special.eos

        ending = is_eos[:, :beam] & top[:, :beam].isfinite()
        for sentence, rank in ending.nonzero().tolist():
            hypotheses = found[int(live[sentence])]
            _add(hypotheses, history[rows[sentence, rank], 1:], float(top[sentence, rank]), alpha, ended=True)
            del hypotheses[n_best:]

        unfinished = top.masked_fill(is_eos, -torch.inf)
        log_probs, kept = unfinished.topk(min(beam, unfinished.shape[1]), dim=1)
        rows, tokens = rows.gather(1, kept), tokens.gather(1, kept)

        at_limit = limits <= length
        worst = torch.tensor(
            [h[-1].score if len(h) == n_best else -torch.inf for h in (found[i] for i in live.tolist())],
            device=src.device,
        )
        # log-probabilities only fall, so this is the best score that any unfinished hypothesis can reach.
        done = at_limit | (log_probs[:, 0] / bounds <= worst)
        if beam == 1:
            done |= ending.any(1)
        for sentence in at_limit.nonzero()[:, 0].tolist():
            hypotheses = found[int(live[sentence])]
            if not hypotheses:
                for row, token, log_prob in zip(rows[sentence], tokens[sentence], log_probs[sentence], strict=True):
                    ids = torch.cat([history[row, 1:], token[None]])
                    _add(hypotheses, ids, float(log_prob), alpha, ended=False)
                del hypotheses[n_best:]

        going = (~done).nonzero()[:, 0]
        rows = rows[going].flatten()
        history = torch.cat([history[rows], tokens[going].flatten()[:, None]], dim=1)
        all_stay = len(going) == len(live)
        state.select(rows, None if all_stay else going)
        live, log_probs, limits, bounds = live[going], log_probs[going], limits[going], bounds[going]
    return found


def _add(hypotheses: list[Hypothesis], ids: Tensor, log_prob: float, alpha: float, *, ended: bool) -> None:
    """Puts a hypothesis into its place by score; the earlier of two equals stays first."""
    score = log_prob / length_penalty(len(ids) + ended, alpha)
    hypotheses.append(Hypothesis(tuple(ids.tolist()), log_prob, score, ended))
    hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
