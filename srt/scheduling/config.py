"""The few values of a server's settings and model that the scheduler needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and options of one scheduler; token counts unless named otherwise.

    max_queued_requests None: no limit. chunk_tokens None: whole prompts in one step.
    """

    context_length: int
    max_running_requests: int
    max_queued_requests: int | None = None
    chunk_tokens: int | None = 512
    policy: str = "lpm"
    conservativeness: float = 1.0
    mix_decode_into_prefill: bool = True
    eos_token_ids: frozenset[int] = frozenset()
    stream_interval: int = 1
    log_interval_steps: int = 40
