"""A small schema, and the bundled model's answers under grammars over HTTP."""

from __future__ import annotations

import json
from typing import Any

from .api_client import ApiClient

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "born": {"type": "integer", "minimum": 1900, "maximum": 2020},
        "languages": {"type": "array", "items": {"enum": ["C", "Rust", "Go"]}, "maxItems": 2},
    },
    "required": ["name", "born", "languages"],
    "additionalProperties": False,
}
PROMPT = "A programmer, described as JSON:"


def is_person(text: str) -> bool:
    """Whether text is JSON that satisfies PERSON, its keys in the schema's order."""
    value = json.loads(text)
    return (
        list(value) == ["name", "born", "languages"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 20
        and 1900 <= value["born"] <= 2020
        and len(value["languages"]) <= 2
        and set(value["languages"]) <= {"C", "Rust", "Go"}
    )


def generate(api: ApiClient, **sampling: Any) -> dict[str, Any]:
    """The answer to PROMPT, of 120 tokens at most, greedy unless sampling says otherwise."""
    sampling = {"temperature": 0, "max_new_tokens": 120, **sampling}
    reply = api.post("/generate", {"text": PROMPT, "sampling_params": sampling})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer
