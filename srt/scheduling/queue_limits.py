"""QueueLimits: whether a request may wait at all: queue length, queued tokens, TTFT promised.

Refused here with 503, a client comes back later; accepted, a request is always answered.
"""

from __future__ import annotations

from ..messages import SchedulerCounters
from .config import SchedulerConfig
from .planner import Queues
from .prefill_pace import PrefillPace
from .request import Request


class QueueLimits:
    """Reads the scheduler's own queues, counters and pace as they change."""

    def __init__(
        self,
        config: SchedulerConfig,
        queues: Queues,
        counters: SchedulerCounters,
        pace: PrefillPace,
    ) -> None:
        self._config = config
        self._queues = queues
        self._counters = counters
        self._pace = pace

    def refusal(self, request: Request, num_queued: int, num_unplanned: int) -> str | None:
        """Return why request cannot be queued now, None if it can.

        num_queued: who would wait, request included. num_unplanned: who has come since the last
        plan, request not counted.
        """
        waiting = self._queues.waiting
        most = self._config.max_queued_requests
        # Who has come since the last plan is not queued as far as there is a free row: a plan has
        # to look at it first. What a plan has left waiting is, whatever it waits for.
        num_places = self._config.max_running_requests - len(self._queues.active)
        num_queued -= min(num_unplanned + 1, num_places)
        if most is not None and num_queued > most:
            return f"the queue is full: {most} requests are waiting; try again later"
        most = self._config.max_queued_tokens
        if most is not None and waiting and waiting.num_tokens + request.num_tokens > most:
            return (
                f"the queue is full: {waiting.num_tokens} prompt tokens are waiting, at most "
                f"{most} may; try again later"
            )
        return self._shed(request)

    def _shed(self, request: Request) -> str | None:
        """Refuse a request whose first token would come too late, as far as can be told."""
        limit = self._config.shed_ttft_seconds
        speed = self._pace.tokens_per_second
        if limit is None or speed is None or not self._queues.waiting:
            return None
        looked_up = self._counters.prompt_tokens
        uncached_share = 1.0 - self._counters.cached_prompt_tokens / max(looked_up, 1)
        ahead = (self._queues.waiting.num_tokens + request.num_tokens) * uncached_share
        if ahead / speed <= limit:
            return None
        return (
            f"a first token would take about {ahead / speed:.1f} s, more than the {limit:g} s "
            "that this server promises; try again later"
        )
