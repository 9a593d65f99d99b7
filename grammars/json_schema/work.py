"""A bound on the work for one schema, counted in steps rather than in seconds.

A compile runs where it cannot be interrupted; whoever does something that may repeat without end
in sight spends a step for each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..matcher import GrammarError

_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)


@contextmanager
def limited(num_steps: int) -> Iterator[None]:
    """Allow so many steps within the block; one more raises GrammarError."""
    token = _left.set([num_steps])
    try:
        yield
    finally:
        _left.reset(token)


def spend(num_steps: int = 1) -> None:
    left = _left.get()
    if left is None:
        return
    left[0] -= num_steps
    if left[0] < 0:
        raise GrammarError("the schema is too costly: its alternatives multiply")
