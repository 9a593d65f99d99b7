"""The scheduler that a run simulates: its settings, built as the server builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.srt.execution.forward_batch import Executor
from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling.config import SchedulerConfig
from runtime.srt.scheduling.scheduler import Scheduler
from runtime.srt.tokenization.stop_checker import StopChecker

from .cost_model import CostModel
from .span_tokens import EOS_TOKEN
from .trace_executor import build_without_arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One scheduler to simulate.

    overrides: SchedulerConfig's fields by name. full_launch: let the scheduler build its batches
    too, which costs wall time and changes no result.
    """

    cost: CostModel
    pool_tokens: int
    context_length: int
    page_size: int = 1
    max_running_requests: int = 256
    overrides: dict[str, Any] = field(default_factory=dict)
    queue_depth: int | None = None
    stream: bool = True
    full_launch: bool = False


def build_scheduler(setup: Setup, executor: Executor, clock: Callable[[], float]) -> Scheduler:
    """Return a scheduler with an empty pool."""
    fields = {
        "context_length": setup.context_length,
        "max_running_requests": setup.max_running_requests,
        "eos_token_ids": frozenset({EOS_TOKEN}),
        "log_interval_steps": 1_000_000,
        **setup.overrides,
    }
    memory = KvMemory(
        setup.pool_tokens,
        setup.page_size,
        fields["max_running_requests"],
        setup.context_length,
    )
    config = SchedulerConfig(**fields)
    scheduler = Scheduler(config, memory, executor, _no_stop_text, clock=clock)
    if not setup.full_launch:
        # The one private part that a run touches: no other seam leaves out the arrays alone.
        scheduler._builder.build = build_without_arrays  # type: ignore[method-assign]
    return scheduler


def _no_stop_text(params: SamplingParams, prompt_tail: tuple[int, ...]) -> StopChecker:
    raise AssertionError("requests of a trace have no stop strings")
