"""generation_config.json: which sampling fields and end-of-sequence ids a model's makers advise.

A wrong value is an error that names file, field and value; what is merely not applied is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BadRequest, ModelLoadError
from ..sampling_params import SamplingParams, checked
from .config_fields import Fields, as_number, shown

FILE_NAME = "generation_config.json"

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WHOLE_VOCABULARY = (0, -1)  # of top_k, in the files of various makers
# Each with the values that change nothing.
_NOT_APPLIED: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
}

logger = logging.getLogger(__name__)


def stored_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of the file as they stand; none if it asks for greedy decoding.

    They are checked where they are used, see sampling_defaults: a server may leave them out.
    """
    do_sample = generation.get("do_sample")
    if do_sample is False:
        return {}
    stored = {name: generation[name] for name in _SAMPLING_FIELDS if name in generation}
    if do_sample is not True:
        stored["do_sample"] = do_sample
    return {name: value for name, value in stored.items() if value is not None}


def sampling_defaults(stored: Mapping[str, Any], source: str = FILE_NAME) -> dict[str, Any]:
    """Return stored as fields of SamplingParams; raises ModelLoadError naming source and field."""
    values: dict[str, Any] = {}
    try:
        for name, value in stored.items():
            values[name] = _sampling_value(name, value)
        checked(SamplingParams(**values), vocab_size=1)
    except BadRequest as error:
        raise ModelLoadError(
            f"{source}: field {error.message}; correct the file, or start with "
            "--sampling-defaults openai, which leaves its sampling fields out"
        ) from None
    return values


def end_ids(value: Any, fields: Fields) -> Iterator[int]:
    """Yield the ids of an eos_token_id: null, one or a list; raises ModelLoadError."""
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            continue
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise fields.error("eos_token_id", f"{shown(one)} is not a token id")
        yield one


def check_generation_config(
    generation: Mapping[str, Any], source: str, vocab_size: int, *, uses_sampling: bool
) -> None:
    """Raise ModelLoadError for a wrong value; log what is asked for and not done, a line each.

    uses_sampling: whether the sampling fields serve as defaults.
    """
    ids = end_ids(generation.get("eos_token_id"), Fields(generation, source))
    if beyond := [one for one in ids if one >= vocab_size]:
        logger.warning(
            "%s: eos_token_id has %s, beyond the vocabulary of %d: no text ends there",
            source,
            shown(beyond),
            vocab_size,
        )
    if not uses_sampling:
        return
    sampling_defaults(stored_defaults(generation), source)
    for name, neutral in _NOT_APPLIED.items():
        value = generation.get(name)
        if value is not None and value not in neutral:
            logger.warning("%s: %s is %s, which is not applied", source, name, shown(value))


def _sampling_value(name: str, value: Any) -> Any:
    number = as_number(value)
    if name == "do_sample":
        raise BadRequest(f"do_sample is {shown(value)}; it must be true or false")
    if number is None:
        raise BadRequest(f"{name} is {shown(value)}; it must be a number")
    if name != "top_k":
        return number
    if not number.is_integer():
        raise BadRequest(f"top_k is {shown(value)}; it must be a whole number")
    return None if number in _WHOLE_VOCABULARY else int(number)
