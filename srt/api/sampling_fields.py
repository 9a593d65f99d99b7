"""The sampling fields that a request body may set, under the names that all routes share."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import FailFast, Field, WithJsonSchema

from runtime.grammars.spec import JsonWhitespace

from ..errors import BadRequest
from ..sampling_params import MAX_LOGIT_BIAS, MAX_SEED, MAX_STOP_TOKEN_IDS
from .request_body import Body

StringOrList = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
NumberById = Annotated[
    Any, WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})
]
AnyValue = Annotated[Any, WithJsonSchema({})]

_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


class SamplingFields(Body):
    """Fields common to /generate and the OpenAI routes; None means "not set"."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: StringOrList = None
    stop_token_ids: Annotated[
        list[int] | None, FailFast(), Field(max_length=MAX_STOP_TOKEN_IDS)
    ] = None
    stop_regex: StringOrList = None
    logit_bias: NumberById = None
    n: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    stream_interval: int | None = None
    sampling_seed: int | None = None
    seed: int | None = None
    json_whitespace: str | None = None

    def explicit(self) -> dict[str, Any]:
        """Return what the body sets, under the names and types of SamplingParams.

        Raises BadRequest for a stop or logit_bias of the wrong shape. Ranges are checked later.
        """
        values = {
            name: value
            for name in _SCALARS
            if (value := getattr(self, name)) is not None  # null is "not set"
        }
        for name in ("seed", "sampling_seed"):  # the second is the same field's older name
            if (seed := getattr(self, name)) is not None:
                values["sampling_seed"] = _seed(name, seed)
        if "top_k" in values and values["top_k"] in (-1, 0):
            values["top_k"] = None  # the whole vocabulary, also where the model's default is less
        for name in ("stop", "stop_regex"):
            if (strings := _strings(name, getattr(self, name))) is not None:
                values[name] = strings
        if self.stop_token_ids is not None:
            values["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias is not None:
            values["logit_bias"] = _logit_bias(self.logit_bias)
        return values

    def whitespace(self, default: JsonWhitespace) -> JsonWhitespace:
        """Where whitespace may stand in a JSON answer: default if the body does not say it.

        Raises BadRequest.
        """
        if self.json_whitespace is None:
            return default
        try:
            return JsonWhitespace(self.json_whitespace)
        except ValueError:
            known = ", ".join(one.value for one in JsonWhitespace)
            raise BadRequest(
                f"json_whitespace is {self.json_whitespace[:40]!r}; it must be one of {known}",
                param="json_whitespace",
            ) from None


_SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
)


def _seed(name: str, seed: int) -> int:
    if not -MAX_SEED - 1 <= seed <= MAX_SEED:
        raise BadRequest(
            f"{name} is {seed}; it must be from {-MAX_SEED - 1} to {MAX_SEED}", param=name
        )
    return seed


def _strings(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise BadRequest(f"{name} must be a string or a list of strings", param=name)


def _logit_bias(biases: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(biases, dict):
        raise BadRequest("logit_bias must be an object from token id to number", param="logit_bias")
    if len(biases) > MAX_LOGIT_BIAS:
        raise BadRequest(
            f"logit_bias has {len(biases)} entries; at most {MAX_LOGIT_BIAS} are taken",
            param="logit_bias",
        )
    for key, bias in biases.items():
        if not _TOKEN_ID.fullmatch(key):
            raise BadRequest(
                f"logit_bias has the key {key[:40]!r}; keys are token ids", param="logit_bias"
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise BadRequest(
                f"logit_bias.{key} is of type {type(bias).__name__}; it must be a number",
                param=f"logit_bias.{key}",
            )
    return tuple((int(key), _float(bias)) for key, bias in biases.items())


def _float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits; out of range like infinity
        return math.inf if number > 0 else -math.inf
