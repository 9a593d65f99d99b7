"""From the records of a run to its figures: seconds of the trace, where no unit is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .optimum import HitBound
from .records import RequestRecord, RunRecords

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a user must get for a request to count; None: no such limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    gap_seconds: float | None = None

    def is_met_by(self, record: RequestRecord) -> bool:
        """Whether record finished within all limits."""
        if not record.is_finished:
            return False
        found = (ttft(record), tpot(record), record.worst_gap)
        limits = (self.ttft_seconds, self.tpot_seconds, self.gap_seconds)
        return all(
            limit is None or value is None or value <= limit
            for value, limit in zip(found, limits, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of count values; None where there are none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of one run; labels say which trace and settings it was."""

    labels: dict[str, str]
    outcomes: dict[str, int]
    virtual_seconds: float
    wall_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    worst_gap: Distribution
    queue_wait: Distribution
    oldest_wait: Distribution  # over steps
    program_latency: Distribution
    hit_rate: float
    optimum_hit_rate: float
    share_of_optimum: float
    slo_share: float
    goodput_per_second: float
    retractions: int
    retracted_requests: int
    preemptions: int | None  # None: the scheduler does not count them
    steps: int
    step_wall_us: Distribution  # the scheduler's own time on this machine
    step_cpu_us: Distribution  # the same without what others took of the core
    counters: dict[str, int]


def measure(records: RunRecords, bound: HitBound, slo: Slo, labels: dict[str, str]) -> Figures:
    """Return the figures of a run whose best hit rate is bound's."""
    requests = list(records.requests.values())
    finished = [one for one in requests if one.is_finished]
    seconds = max(records.virtual_seconds, 1e-9)
    hit_rate = _hit_rate(requests)
    num_good = sum(slo.is_met_by(one) for one in requests)
    counters = records.counters
    return Figures(
        labels=labels,
        outcomes=_count(str(one.outcome) for one in requests),
        virtual_seconds=records.virtual_seconds,
        wall_seconds=records.wall_seconds,
        output_tokens_per_second=sum(one.num_output for one in requests) / seconds,
        requests_per_second=len(finished) / seconds,
        ttft=distribution([value for one in requests if (value := ttft(one)) is not None]),
        tpot=distribution([value for one in finished if (value := tpot(one)) is not None]),
        itl=weighted_distribution(records.steps.gaps),
        worst_gap=distribution([one.worst_gap for one in finished if one.num_output > 1]),
        queue_wait=distribution(
            [one.admitted - one.due for one in requests if one.admitted is not None]
        ),
        oldest_wait=distribution(records.steps.oldest_wait),
        program_latency=distribution(_program_latencies(requests)),
        hit_rate=hit_rate,
        optimum_hit_rate=bound.rate,
        share_of_optimum=hit_rate / bound.rate if bound.rate else 1.0,
        slo_share=num_good / len(requests) if requests else 1.0,
        goodput_per_second=num_good / seconds,
        retractions=counters.get("retractions", 0),
        retracted_requests=sum(one.num_retractions > 0 for one in requests),
        preemptions=counters.get("preemptions"),
        steps=len(records.steps.wall_seconds),
        step_wall_us=distribution([1e6 * value for value in records.steps.wall_seconds]),
        step_cpu_us=distribution([1e6 * value for value in records.steps.cpu_seconds]),
        counters=counters,
    )


def ttft(record: RequestRecord) -> float | None:
    """Time from when the request was due to its first token."""
    return None if record.first_token is None else record.first_token - record.due


def tpot(record: RequestRecord) -> float | None:
    """Mean time between its tokens; None for an answer of one."""
    if record.first_token is None or record.last_token is None or record.num_output < 2:
        return None
    return (record.last_token - record.first_token) / (record.num_output - 1)


def distribution(values: Sequence[float]) -> Distribution:
    """Return percentiles of values."""
    if not len(values):
        return Distribution(0, None, None, None, None, None)
    array = np.asarray(values, dtype=np.float64)
    p50, p90, p99 = (float(value) for value in np.percentile(array, list(PERCENTILES.values())))
    return Distribution(len(array), float(array.mean()), p50, p90, p99, float(array.max()))


def weighted_distribution(counts: Mapping[float, int]) -> Distribution:
    """Return percentiles of values that are given with how often each came."""
    if not counts:
        return distribution([])
    values = np.array(sorted(counts), dtype=np.float64)
    times = np.array([counts[value] for value in sorted(counts)], dtype=np.int64)
    ranks = np.cumsum(times)
    total = int(ranks[-1])
    p50, p90, p99 = (
        float(values[np.searchsorted(ranks, np.ceil(total * percent / 100))])
        for percent in PERCENTILES.values()
    )
    mean = float((values * times).sum() / total)
    return Distribution(total, mean, p50, p90, p99, float(values[-1]))


def _hit_rate(requests: Iterable[RequestRecord]) -> float:
    """Cached share of the prompt tokens at first admission; the re-reading of retracted requests
    does not count."""
    admitted = [one for one in requests if one.admitted is not None]
    prompt_tokens = sum(one.prompt_tokens for one in admitted)
    return sum(one.cached_tokens for one in admitted) / prompt_tokens if prompt_tokens else 0.0


def _program_latencies(requests: Iterable[RequestRecord]) -> list[float]:
    """From the first arrival of a program to its last answer, for programs that got all."""
    programs: dict[str, list[RequestRecord]] = {}
    for one in requests:
        if one.request.program is not None:
            programs.setdefault(one.request.program, []).append(one)
    return [
        max(one.last_token or 0.0 for one in program) - min(one.due for one in program)
        for program in programs.values()
        if all(one.is_finished for one in program)
    ]


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
