"""Engine tells a Python caller about names it does not know, before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.srt.engine import Engine
from runtime.srt.errors import BadRequest, ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_total_token": 5}, "no argument 'max_total_token'; did you mean max_total_tokens"),
        ({"xyzzy": 1}, "Engine takes no argument 'xyzzy'"),
        ({"modle": "x"}, "did you mean model"),
        ({"model": "a", "model_path": "b"}, "model and model_path are given"),
        ({"preferred_sampling_params": '{"top_q": 1}'}, "--preferred-sampling-params: .*'top_q'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine(**settings)


def test_model_is_another_name_of_model_path() -> None:
    with pytest.raises(ConfigError, match="--model-path is 3"):
        Engine(model=3)


@pytest.mark.parametrize(
    ("arguments", "param", "close"),
    [
        ({"sampling_params": {"temprature": 1}}, "temprature", "temperature"),
        ({"sampling_params": [{}, {"max_tokens": 1}]}, "max_tokens", "max_new_tokens"),
        ({"return_logprobs": True}, "return_logprobs", "return_logprob"),
    ],
)
def test_an_unknown_name_in_a_call_is_refused_with_those_like_it(
    arguments: dict[str, Any], param: str, close: str
) -> None:
    engine = Engine.__new__(Engine)  # not started: names are checked before the engine is used

    with pytest.raises(BadRequest) as raised:
        engine.generate("hi", **arguments)

    assert raised.value.param == param
    assert f"{param!r} is not known; did you mean {close}" in raised.value.message
