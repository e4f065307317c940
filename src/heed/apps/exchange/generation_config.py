"""Search settings of Hugging Face's `generate`, as generation_config.json has them, and Heed's.

The limits of `generate` count the decoder's start token, those of Heed the ids behind it, eos included.
"""

import json
from collections.abc import Mapping
from typing import Any

from heed.apps.exchange.unmerged_weights import not_neutral
from heed.config import validated
from heed.decoding.settings import DecodingSettings
from heed.model_folder import ModelCard
from heed.text.languages import Languages
from heed.text.tokenizer import SpecialIds

MAX_POSITIONS = 1024  # for which a folder that we write has encodings
# The max_length of OPUS-MT's folders and of ours: a guard rather than a wish, since max_extra_tokens is a tighter one.
USUAL_MAX_LENGTH = 512
LENGTH_OF_LANGUAGES = 200  # that of M2M100, NLLB and mBART-50
# What else changes the outputs of `generate`, with the values that change nothing; None changes nothing either.
NOT_IN_HEED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "bad_words_ids": ([],),
    "forced_bos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "constraints": ([],),
    "force_words_ids": ([],),
    "renormalize_logits": (False,),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "watermarking_config": (),
    "stop_strings": ([], ""),
    "max_time": (),
}
REPETITION = ("no_repeat_ngram_size", "repetition_penalty")  # called the same in both
# Kept without a word: Heed's search ends as with "never", and does not prefer outputs that were cut.
KEPT = ("early_stopping", "forced_eos_token_id", "max_length")
OTHER_SETTINGS = "other settings of generate"  # in a card's trained_on, as JSON: for an export of what was imported


def generation_config(card: ModelCard, special: SpecialIds) -> dict[str, Any]:
    """The content of generation_config.json for a model that searches as its card says."""
    settings = validated(DecodingSettings, card.decoding, where="the model's search settings")
    barred = _barred(special)
    repetition = {name: getattr(settings, name) for name in REPETITION}
    repetition_defaults = {name: DecodingSettings.model_fields[name].default for name in REPETITION}
    return {
        "decoder_start_token_id": special.bos,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "pad_token_id": special.pad,
        **({"bad_words_ids": barred} if barred else {}),
        **({"min_new_tokens": settings.min_tokens} if settings.min_tokens else {}),
        **{name: value for name, value in repetition.items() if value != repetition_defaults[name]},
        "num_beams": settings.beam_size,
        "length_penalty": 0.0 if settings.length_penalty_form == "none" else settings.length_penalty,
        # "never", which is Heed's rule, searches on to max_length wherever length_penalty > 0: 206 steps for the 8 of
        # false, with the same outputs for 64 lines of number words.
        **({"early_stopping": settings.early_stopping} if settings.beam_size > 1 else {}),
        "max_length": min((settings.max_tokens or USUAL_MAX_LENGTH - 1) + 1, MAX_POSITIONS),
        **_kept_settings(card),
    }


def _barred(special: SpecialIds) -> list[list[int]]:
    """The ids that none of Heed's searches writes, each as a bad word."""
    ids = {special.pad, special.bos, special.unk} - {special.eos, None}
    return [[i] for i in sorted(i for i in ids if i is not None)]


def _kept_settings(card: ModelCard) -> dict[str, Any]:
    try:
        settings = json.loads(str(card.trained_on.get(OTHER_SETTINGS, "{}")))
    except (ValueError, RecursionError):  # the model folder may come from a stranger
        settings = {}
    names = (*NOT_IN_HEED, *KEPT)
    return {name: settings[name] for name in names if name in settings} if isinstance(settings, dict) else {}


def search_settings(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Heed's settings for a search with these of `generate`, not validated."""
    given = {name: value for name, value in generation.items() if value is not None}
    settings = {
        "beam_size": given.get("num_beams", 1),
        "length_penalty": given.get("length_penalty", 1.0),
        "length_penalty_form": "average",
        "early_stopping": given.get("early_stopping") is True,
        "min_tokens": _limit(given, "min") or 0,
        **{name: given[name] for name in REPETITION if name in given},
    }
    most = _limit(given, "max")
    if most is not None and not _is_guard(most):
        settings |= {"max_tokens": most, "max_extra_tokens": 10_000}
    return settings


def search_of_languages(generation: Mapping[str, Any], languages: Languages | None) -> Mapping[str, Any]:
    """The settings of a model of several languages but those about languages: Heed forces the target's itself.

    Their usual max_length cuts long outputs off; it becomes a limit that grows with the source.
    """
    if languages is None:
        return generation
    kept = {name: value for name, value in generation.items() if name != "forced_bos_token_id"}
    if kept.get("max_length") == LENGTH_OF_LANGUAGES:
        del kept["max_length"]
    return kept


def _limit(given: Mapping[str, Any], kind: str) -> Any:
    """min_new_tokens or, without it, min_length less the start token; likewise with max. None if there is neither."""
    if f"{kind}_new_tokens" in given:
        return given[f"{kind}_new_tokens"]
    whole = given.get(f"{kind}_length")
    return whole - 1 if type(whole) is int and whole > 0 else whole


def _is_guard(max_tokens: Any) -> bool:
    return type(max_tokens) is int and max_tokens >= USUAL_MAX_LENGTH - 1


def other_settings(generation: Mapping[str, Any], special: SpecialIds) -> dict[str, Any]:
    """The settings that change what `generate` writes, and that DecodingSettings has no field for."""
    given = {name: value for name, value in generation.items() if value is not None}
    barred, words = _barred(special), given.get("bad_words_ids")
    if isinstance(words, list):
        more = [word for word in words if word not in barred]
        given["bad_words_ids"] = barred + more if more else []
    others = not_neutral(given, NOT_IN_HEED)
    if given.get("early_stopping") == "never":
        others["early_stopping"] = "never"
    if "forced_eos_token_id" in given:
        others["forced_eos_token_id"] = given["forced_eos_token_id"]
    if _is_guard(most := _limit(given, "max")) and most + 1 != USUAL_MAX_LENGTH:
        others["max_length"] = most + 1
    return others


def says_otherwise(generation: Mapping[str, Any], card: ModelCard, special: SpecialIds) -> bool:
    """Whether somebody has changed the search since Heed exported the model with this card.

    Earlier versions wrote "never" for false, and the usual max_length whatever max_tokens was.
    """
    ours = generation_config(card, special)
    if generation.get("max_length") == USUAL_MAX_LENGTH:
        ours["max_length"] = USUAL_MAX_LENGTH
    theirs, ours = ({**one, "early_stopping": one.get("early_stopping") is True} for one in (generation, ours))
    return any(view(theirs) != view(ours) for view in (search_settings, lambda one: other_settings(one, special)))
