"""One log line per N steps, and the throughput that it and /metrics show."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..memory.kv_memory import KvMemory
from .admission import AdmissionRule
from .batch_builder import StepInput
from .planner import Queues

logger = logging.getLogger(__name__)


class StepLog:
    """Counts tokens between log lines."""

    def __init__(self, interval_steps: int, clock: Callable[[], float]) -> None:
        self._interval_steps = interval_steps
        self._clock = clock
        self._steps = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._since = clock()
        self.tokens_per_second = 0.0

    def idle(self) -> None:
        """Nothing runs any more: the throughput is 0, not that of a load that is gone."""
        self.tokens_per_second = 0.0

    def step(
        self, step: StepInput, queues: Queues, memory: KvMemory, admission: AdmissionRule
    ) -> None:
        """Account for one step; log and start anew after every interval."""
        self._steps += 1
        self._output_tokens += len(step.sample_rows)
        self._prompt_tokens += sum(row.num_new for row in step.rows if row.num_new > 1)
        if self._steps < self._interval_steps:
            return
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        self.tokens_per_second = self._output_tokens / seconds
        kv = memory.stats()
        logger.info(
            "%d steps: running %d, waiting %d, prompt tokens %d, output %.1f tok/s, "
            "KV used %d of %d (cached %d), new_token_ratio %.2f",
            self._steps,
            len(queues.active),
            len(queues.waiting),
            self._prompt_tokens,
            self.tokens_per_second,
            kv.protected + kv.held,
            kv.total,
            kv.evictable,
            admission.ratio,
        )
        self._steps = self._prompt_tokens = self._output_tokens = 0
        self._since = now
