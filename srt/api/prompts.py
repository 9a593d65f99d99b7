"""Prompts as request bodies write them: one or many, text or token ids."""

from __future__ import annotations

from typing import Annotated, Any, TypeGuard

from pydantic import WithJsonSchema

from ..errors import BadRequest
from ..processes.engine_client import EngineClient

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}

TextOrTexts = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
IdsOrLists = Annotated[Any, WithJsonSchema({"anyOf": [_IDS, {"type": "array", "items": _IDS}]})]
TextsOrIds = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                _IDS,
                {"type": "array", "items": _IDS},
            ]
        }
    ),
]

Prompt = str | list[int]

MAX_PROMPTS = 4096


def parse_prompts(value: Any, param: str) -> tuple[list[Prompt], bool]:
    """Return the prompts in value and whether it is a batch.

    A string or a list of ids is one prompt; a list of either is a batch. Raises BadRequest for
    anything else, for an empty batch and for one of more than MAX_PROMPTS; the ids' range is
    checked later.
    """
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list):
        raise _wrong_type(param)
    if not value:
        raise BadRequest(f"{param} is empty; send at least one prompt", param=param)
    if _is_ids(value):
        return [value], False
    if len(value) > MAX_PROMPTS:
        raise BadRequest(
            f"{param} has {len(value)} prompts; at most {MAX_PROMPTS} are taken in one body",
            param=param,
        )
    if all(isinstance(one, str) for one in value):
        return list(value), True
    if all(isinstance(one, list) for one in value):
        for index, one in enumerate(value):
            if not _is_ids(one):
                raise _wrong_type(f"{param}.{index}")
        return list(value), True
    raise _wrong_type(param)


def prompt_text(client: EngineClient, prompt: Prompt) -> str:
    """Return a checked prompt as text."""
    if isinstance(prompt, str):
        return prompt
    return client.tokenizer.decode(prompt, skip_special_tokens=False)


def _is_ids(value: list[Any]) -> TypeGuard[list[int]]:
    # bool is a subclass of int, and true is no token id.
    return all(type(one) is int for one in value)


def _wrong_type(param: str) -> BadRequest:
    return BadRequest(
        f"{param} must be a string, a list of token ids, or a list of either", param=param
    )
