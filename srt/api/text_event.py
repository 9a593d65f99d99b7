"""TextEvent: a server-sent event of which only one text differs from token to token."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import orjson

from .event_stream import event

_PLACE = secrets.token_hex(16)  # drawn anew by each process: no request can hold it
_ENCODED_PLACE = orjson.dumps(_PLACE)


class TextEvent:
    """Encodes the payload once and the text each time.

    payload gives the event's payload for a text, in which the text stands once, as a whole string.
    """

    def __init__(self, payload: Callable[[str], dict[str, Any]]) -> None:
        before, after = event(payload(_PLACE)).split(_ENCODED_PLACE)
        self._before, self._after = before, after

    def of(self, text: str) -> bytes:
        """Return event(payload(text))."""
        return self._before + orjson.dumps(text) + self._after
