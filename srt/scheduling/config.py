"""The few values of a server's settings and model that the scheduler needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and options of one scheduler; token counts unless named otherwise.

    max_queued_requests, max_queued_tokens None: no limit. chunk_tokens None: whole prompts in one
    step.
    """

    context_length: int
    max_running_requests: int
    max_queued_requests: int | None = None
    chunk_tokens: int | None = 512
    policy: str = "lpm"
    program_order: bool = False  # programs that have begun come before the policy's order
    conservativeness: float = 1.0
    mix_decode_into_prefill: bool = True
    eos_token_ids: frozenset[int] = frozenset()
    stream_interval: int = 1
    log_interval_steps: int = 40
    admission: str = "ratio"  # one of admission.RULES
    target_retraction_rate: float = 0.002  # of finished requests; for the learnt rule
    max_wait_seconds: float | None = None  # beyond it a waiting request comes before all others
    ageing_stride: int = 8  # every so many admissions one goes to the oldest request
    in_batch_sharing_min_tokens: int = 32  # saved by waiting for a leader; 0: nobody waits
    in_batch_sharing_max_cached_tokens: int | None = None  # who has more does not wait
    max_prefill_slice_ms: float | None = None  # prompt work that decoding requests wait for
    preemption_threshold: int = 10  # a newcomer retracts those whose priority is lower by more
    max_queued_tokens: int | None = None
    shed_ttft_seconds: float | None = None  # refuse who would wait longer for a first token
    quotas: Mapping[str, float] = field(default_factory=dict)  # tokens per minute by tenant
    overlap_depth: int = 0  # steps in flight while the next is planned; 0 or 1
    vocab_size: int = 0  # of the model, for the masks of grammars
    jump_forward: bool = True  # tokens that a grammar forces are computed together, not drawn
    test_retract_every: int = 0  # steps; for tests
