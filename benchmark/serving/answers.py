"""What one request of a case measured, and the seam to whatever answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .cases import Workload


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: seconds since it was sent, and counts; None where a peer does not tell them."""

    first_seconds: float
    last_seconds: float
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """All requests of a workload: wall_seconds from the first sent to the last finished."""

    wall_seconds: float
    answers: list[Answer]


class NotAvailable(Exception):
    """The peer says that it cannot do this work; the text says why."""


class CaseTimeout(Exception):
    """The work took longer than its limit; the peer is in an unknown state and must be stopped."""


class Peer(Protocol):
    """A running server or in-process engine."""

    @property
    def pid(self) -> int:
        """The process whose tree is charged with memory and CPU time."""
        ...

    def run(self, workload: Workload, timeout_seconds: float) -> Answers:
        """Send all prompts of workload at once and wait for the answers.

        Raises NotAvailable or CaseTimeout. Leaves workload.first_prompt to the caller.
        """
        ...

    def stop(self) -> None:
        """End the peer with all its processes. Safe to call twice."""
        ...
