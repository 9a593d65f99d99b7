"""Which branch of which run makes a call: a server may keep the calls of one run together.

Set where a state is executed, read where a native request is written; calls in between need not
pass it on.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The ids under which a server knows a run, and one of its states."""

    program_id: str
    branch_id: str


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


def caller_fields() -> dict[str, str]:
    """The fields of a native request that tell who makes it; none outside a run."""
    caller = current_caller.get()
    if caller is None:
        return {}
    return {"program_id": caller.program_id, "branch_id": caller.branch_id}
