"""Prometheus metrics: latencies seen from the front end, and what the scheduler tells of itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..errors import ServingError
from ..messages import GenerateRequest, SchedulerState, TextDelta
from ..processes.engine_client import EngineClient
from .scheduler_metrics import counters, gauges

PREFIX = "runtime:"
SCRAPE_TIMEOUT_SECONDS = 1.0

_FIRST_TOKEN_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0,
)  # fmt: skip
_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 10.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 200.0, 400.0, 1000.0,
)  # fmt: skip

logger = logging.getLogger(__name__)


class ServerMetrics:
    """Observes every request of a client, and asks its scheduler at each scrape.

    Add it to the client's observers. It has a registry of its own, so that two servers in one
    process do not mix.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._last_seconds: dict[str, float] = {}  # by rid: when the last delta came
        self._scheduler = _SchedulerCollector(model_name)
        self._registry.register(self._scheduler)
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "arrival to first token",
            model_name,
            _FIRST_TOKEN_BUCKETS,
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds",
            "between two streamed tokens",
            model_name,
            _TOKEN_BUCKETS,
        )
        self._request = self._histogram(
            "e2e_request_latency_seconds", "arrival to last token", model_name, _REQUEST_BUCKETS
        )
        self._queue = self._histogram(
            "queue_time_seconds", "arrival to admission", model_name, _FIRST_TOKEN_BUCKETS
        )
        self._prompt_tokens = Counter(
            PREFIX + "prompt_tokens",
            "Prompt tokens of the requests received",
            ["model_name"],
            registry=self._registry,
        ).labels(model_name)

    async def scrape(self, client: EngineClient) -> bytes:
        """Return the exposition text.

        Without an answer in time the scheduler's last values are kept, and scheduler_up is 0.
        """
        self._scheduler.is_up = False
        try:
            self._scheduler.state = await client.state(SCRAPE_TIMEOUT_SECONDS)
            self._scheduler.is_up = True
        except ServingError as error:
            logger.debug("metrics keep their last values: %s", error)
        return generate_latest(self._registry)

    def on_sent(self, request: GenerateRequest) -> None:
        """Count a request that goes to the scheduler."""
        self._prompt_tokens.inc(len(request.input_ids))

    def on_delta(self, request: GenerateRequest, delta: TextDelta) -> None:
        """Time the tokens of delta."""
        now = time.monotonic()
        progress = delta.progress
        num_tokens = len(progress.token_ids)
        last = self._last_seconds.get(request.rid)
        if progress.queue_seconds is not None:
            self._queue.observe(progress.queue_seconds)
        if num_tokens and last is None:
            # Without streaming the first delta comes with the last token.
            first = now if request.stream else progress.first_token_seconds or now
            self._first_token.observe(first - request.arrival_seconds)
        elif num_tokens and last is not None:
            for _ in range(num_tokens):
                self._inter_token.observe((now - last) / num_tokens)
        if progress.finish is not None:
            self._request.observe(now - request.arrival_seconds)
            self._last_seconds.pop(request.rid, None)
        elif num_tokens:
            self._last_seconds[request.rid] = now

    def on_lost(self, request: GenerateRequest) -> None:
        """Forget a request that will get no more deltas."""
        self._last_seconds.pop(request.rid, None)

    def _histogram(
        self, name: str, text: str, model_name: str, buckets: tuple[float, ...]
    ) -> Histogram:
        histogram = Histogram(
            PREFIX + name,
            f"Time from {text}, in seconds" if text.startswith("arrival") else f"Time {text}",
            ["model_name"],
            buckets=buckets,
            registry=self._registry,
        )
        return histogram.labels(model_name)


class _SchedulerCollector(Collector):
    def __init__(self, model_name: str) -> None:
        self.state: SchedulerState | None = None
        self.is_up = False
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        is_up = "Whether the scheduler answered this scrape; if not, its values are the last known"
        yield self._gauge("scheduler_up", is_up, self.is_up)
        if self.state is None:
            return
        for name, text, value in gauges(self.state):
            yield self._gauge(name, text, value)
        for name, text, value in counters(self.state):
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        gauge.add_metric([self._model_name], value)
        return gauge
