"""Queue order: which waiting request is looked at first.

A pure function of the queue and the tree. lpm puts the longest cached prefix first, so that what
is cached is used before it is evicted; every AGEING_STRIDE-th place goes to the oldest request, so
that none starves (k-LPM). fcfs is the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory.kv_memory import KvMemory
from .request import Request

AGEING_STRIDE = 8  # every 8th place of the order goes to the oldest request
MATCHES_PER_STEP = 256  # prefix look-ups a step may cost; older hints serve beyond that


def ordered(
    waiting: Sequence[Request], policy: str, memory: KvMemory, num_admitted: int
) -> list[Request]:
    """Return waiting in the order of policy; num_admitted (since start) places the aged ones."""
    by_age = sorted(waiting, key=lambda request: request.message.arrival_seconds)
    by_age.sort(key=lambda request: -request.message.priority)
    if policy == "fcfs" or len(by_age) < 2:
        return by_age
    _refresh_hints(by_age, memory, num_admitted)
    by_match = sorted(by_age, key=lambda r: (-r.message.priority, -r.match_hint))
    return _with_ageing(by_match, by_age, num_admitted)


def _refresh_hints(by_age: Sequence[Request], memory: KvMemory, offset: int) -> None:
    count = len(by_age)
    for i in range(min(count, MATCHES_PER_STEP)):
        request = by_age[(offset + i) % count] if count > MATCHES_PER_STEP else by_age[i]
        request.match_hint = memory.peek_prefix_length(
            request.all_tokens(), request.message.namespace
        )


def _with_ageing(
    by_match: Sequence[Request], by_age: Sequence[Request], num_admitted: int
) -> list[Request]:
    order: list[Request] = []
    placed: set[int] = set()
    matches, ages = iter(by_match), iter(by_age)
    for place in range(num_admitted, num_admitted + len(by_match)):
        source = ages if place % AGEING_STRIDE == AGEING_STRIDE - 1 else matches
        request = next(r for r in source if id(r) not in placed)
        placed.add(id(request))
        order.append(request)
    return order
