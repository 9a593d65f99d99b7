"""Where unset sampling fields come from.

A request's own value, then --preferred-sampling-params, then the model's generation_config.json
(with --sampling-defaults model), then the route's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from ..errors import BadRequest, ConfigError
from ..sampling_params import SamplingParams
from ..server_args import ServerArgs
from .native_sampling import NativeSampling
from .request_body import parse_body

_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class SamplingDefaults:
    """The layers below a request, merged once; raises ConfigError for wrong fields of the flag."""

    def __init__(self, args: ServerArgs, generation_config: Mapping[str, float]) -> None:
        layers: dict[str, Any] = {}
        if args.sampling_defaults == "model":
            layers |= _from_model(generation_config)
        try:
            preferred = parse_body(orjson.dumps(args.preferred_sampling), NativeSampling)
            layers |= preferred.explicit()
            self._layers = layers
            self.resolve({}, max_new_tokens=None)
        except (BadRequest, msgspec.ValidationError) as error:
            raise ConfigError(f"--preferred-sampling-params: {error}") from None

    def resolve(self, explicit: Mapping[str, Any], *, max_new_tokens: int | None) -> SamplingParams:
        """Return the parameters of a request that sets explicit; max_new_tokens is the route's."""
        return SamplingParams(**{"max_new_tokens": max_new_tokens, **self._layers, **explicit})


def _from_model(generation_config: Mapping[str, float]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: float(value) for name, value in generation_config.items() if name in _FROM_MODEL
    }
    if "top_k" in values:
        top_k = int(values.pop("top_k"))
        values["top_k"] = top_k if top_k > 0 else None
    return values
