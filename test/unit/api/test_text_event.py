"""TextEvent: the same bytes as encoding the whole payload each time."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.srt.api.event_stream import event
from runtime.srt.api.text_event import TextEvent


@pytest.mark.parametrize(
    "text", ["a", "", 'quote " and \\', "line\nend", "\u00e9\U0001f600", "\x00"]
)
def test_it_equals_the_event_of_the_whole_payload(text: str) -> None:
    def payload(text: str) -> dict[str, Any]:
        return {"id": 'x"text', "choices": [{"index": 0, "text": text, "logprobs": None}]}

    assert TextEvent(payload).of(text) == event(payload(text))
