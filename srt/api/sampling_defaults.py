"""Where unset sampling fields come from.

A request's own value, then --preferred-sampling-params, then the model's generation_config.json
(with --sampling-defaults model), then the route's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from runtime.grammars.spec import JsonWhitespace

from ..errors import BadRequest, ConfigError, did_you_mean
from ..loading.generation_config import sampling_defaults
from ..sampling_params import SamplingParams, checked
from ..server_args import ServerArgs
from .native_sampling import NativeSampling
from .request_body import Body, parse_body

_ANY_VOCAB_SIZE = 2**31


class SamplingDefaults:
    """The layers below a request, merged once.

    generation_config: the model's own, see ModelConfig.generation_defaults. Raises ConfigError for
    wrong fields of the flag, ModelLoadError for wrong ones of the model.
    """

    def __init__(
        self, args: ServerArgs, generation_config: Mapping[str, Any], vocab_size: int
    ) -> None:
        layers: dict[str, Any] = {}
        if args.sampling_defaults == "model":
            layers |= sampling_defaults(generation_config)
        self.json_whitespace = JsonWhitespace(args.json_whitespace)
        self._layers = layers | checked_preferred(args, vocab_size)

    def resolve(self, explicit: Mapping[str, Any], *, max_new_tokens: int | None) -> SamplingParams:
        """Return the parameters of a request that sets explicit; max_new_tokens is the route's."""
        return SamplingParams(**{"max_new_tokens": max_new_tokens, **self._layers, **explicit})


def checked_preferred(args: ServerArgs, vocab_size: int = _ANY_VOCAB_SIZE) -> dict[str, Any]:
    """Return --preferred-sampling-params as SamplingParams fields.

    Raises ConfigError naming the field that is unknown or wrong; without vocab_size, token ids are
    not checked.
    """
    try:
        given = args.preferred_sampling
        check_names("the field", given, NativeSampling)
        body = parse_body(orjson.dumps(given), NativeSampling)
        preferred = body.explicit()
        if (grammar := body.grammar(JsonWhitespace(args.json_whitespace))) is not None:
            raise BadRequest(f"{grammar.param} is for requests; it cannot be a default")
        if body.json_whitespace is not None:
            raise BadRequest("json_whitespace has a flag of its own, --json-whitespace")
        checked(SamplingParams(**{"max_new_tokens": None, **preferred}), vocab_size)
    except BadRequest as error:
        raise ConfigError(f"--preferred-sampling-params: {error.message}") from None
    return preferred


def check_names(what: str, given: Mapping[str, Any], kind: type[Body]) -> None:
    """Raise BadRequest if given has a key that is no field of kind, with the fields like it."""
    for name in given:
        if name not in kind.model_fields:
            raise BadRequest(
                f"{what} {name!r} is not known{did_you_mean(name, kind.model_fields)}", param=name
            )
