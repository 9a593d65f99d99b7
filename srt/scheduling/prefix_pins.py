"""Prefixes pinned by id: requests whose prompt stays cached for a stated time once it is computed.

A pin has the id of the request that computed it. What it may hold is memory's to say; that it is
asked for before and after the prompt is computed, and by whom it is ended, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadRequest
from ..memory.kv_memory import KvMemory
from ..memory.retention_pins import RetentionPin
from ..messages import PrefixPin
from .request import Request

MAX_PINS = 4096  # each is a few hundred bytes until it expires


class PrefixPins:
    """All pins of one scheduler that were asked for by requests."""

    def __init__(self, memory: KvMemory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self._by_id: dict[str, RetentionPin] = {}

    def check(self, request: Request) -> None:
        """Raise BadRequest if request's prompt cannot be pinned, before any of it is computed."""
        memory = self._memory
        if not memory.enable_cache:
            raise BadRequest(
                "nothing can be pinned: the server runs with --disable-radix-cache",
                code="pins_disabled",
            )
        if request.prompt_length < memory.page_size:
            raise BadRequest(
                f"the prompt has {request.prompt_length} tokens, and whole pages of "
                f"{memory.page_size} are pinned; pin a longer one"
            )
        if memory.pins.num_pins >= MAX_PINS:
            raise BadRequest(
                f"{MAX_PINS} prefixes are pinned, and no more can be; unpin one first",
                code="too_many_pins",
            )
        memory.check_pin(request.message.input_ids, request.message.namespace)

    def pin(self, request: Request) -> PrefixPin:
        """Pin the prompt of a request that has just ended, all of it cached; or BadRequest."""
        message = request.message
        assert message.pin_seconds is not None, request.rid
        expiry_seconds = self._clock() + message.pin_seconds
        pin = self._memory.pin(message.input_ids, message.namespace, expiry_seconds)
        page_size = self._memory.page_size
        whole = request.prompt_length // page_size * page_size
        assert pin.num_tokens == whole, f"{request.rid}: {pin.num_tokens} of {whole} tokens cached"
        if len(self._by_id) >= MAX_PINS:  # those that have expired are still there
            self._by_id = {name: one for name, one in self._by_id.items() if not one.is_released}
        self._by_id[request.rid] = pin
        return PrefixPin(pin.num_tokens, expiry_seconds)

    def unpin(self, pin_id: str) -> int | None:
        """End a pin; return the tokens it held, None if there is none with this id any more."""
        pin = self._by_id.pop(pin_id, None)
        if pin is None or pin.is_released:
            return None
        self._memory.unpin(pin)
        return pin.num_tokens

    def release_expired(self) -> None:
        """End the pins whose time has come; costs nothing when there is none."""
        self._memory.release_expired_pins(self._clock())
