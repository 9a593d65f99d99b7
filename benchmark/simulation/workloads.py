"""Makes traces: programs of a workload, started by an arrival process; all from one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .trace import Segment, Span, Trace, TraceRequest

ASKED_LIMITS = (128, 256, 512, 1024, 2048, 4096)  # what clients ask for as max_tokens
# How clients choose among them: one of the next three above their answer; the next; or none of
# them, but exactly what they will get, as benchmarks with a fixed output length do.
ASKING = ("generous", "next", "exact")


@dataclass(slots=True)
class Material:
    """The source of randomness and of span numbers that nobody else has."""

    rng: np.random.Generator
    asking: str = "generous"  # one of ASKING
    num_spans: int = 0

    def text(self, count: int) -> Span:
        """Return count tokens that stand nowhere else."""
        self.num_spans += 1
        return Span(self.num_spans, count)

    def length(self, median: float, spread: float, least: int, most: int) -> int:
        """Draw a length: log-normal, with spread the deviation of its logarithm."""
        drawn = self.rng.lognormal(np.log(median), spread)
        return int(min(max(drawn, least), most))

    def asked_limit(self, output: int) -> int:
        """Draw the max_tokens of a client whose answer will have output tokens."""
        above = [limit for limit in ASKED_LIMITS if limit > output] or [output + 1]
        steps = int(self.rng.integers(3))  # drawn in any case: the rest of the trace is the same
        if self.asking == "exact":
            return output
        return above[min(steps, len(above) - 1) if self.asking == "generous" else 0]

    def zipf(self, count: int, exponent: float = 1.0) -> int:
        """Draw a number below count; the k-th has a weight of k ** -exponent."""
        return int(np.searchsorted(_zipf_bounds(count, exponent), self.rng.random(), "right"))


@dataclass(slots=True)
class Program:
    """One run of an application: its requests, started at time 0."""

    name: str
    material: Material
    requests: list[TraceRequest] = field(default_factory=list)

    def add(
        self,
        prompt: tuple[Segment, ...],
        output: int,
        after: tuple[str, ...] = (),
        delay: float = 0.0,
    ) -> str:
        """Add a request; return its id."""
        name = f"{self.name}.{len(self.requests)}"
        self.requests.append(
            TraceRequest(
                id=name,
                prompt=prompt,
                output=output,
                max_tokens=self.material.asked_limit(output),
                after=after,
                delay=round(delay, 4),
                program=self.name,
            )
        )
        return name


class Workload(Protocol):
    """A kind of application; its shared prompts are drawn when it is made."""

    def write(self, program: Program) -> None:
        """Add the requests of one run of the application."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When programs start: intervals are gamma distributed, with the given mean.

    burstiness is their coefficient of variation: 1 is a Poisson process, above it bursts.
    requests_per_second None: all start at once.
    """

    requests_per_second: float | None
    burstiness: float = 1.0


def make_trace(
    name: str,
    make_workload: Callable[[Material], Workload],
    num_requests: int,
    arrivals: Arrivals,
    seed: int,
    asking: str = "generous",
) -> Trace:
    """Return whole programs with at least num_requests requests together."""
    material = Material(np.random.default_rng(seed), asking)
    workload = make_workload(material)
    programs: list[Program] = []
    total = 0
    while total < num_requests:
        program = Program(f"p{len(programs)}", material)
        workload.write(program)
        programs.append(program)
        total += len(program.requests)
    starts = _start_times(len(programs), total, arrivals, material.rng)
    requests = [
        replace(request, arrival=round(float(start), 4)) if not request.after else request
        for start, program in zip(starts, programs, strict=True)
        for request in program.requests
    ]
    return Trace(requests, name)


@lru_cache(maxsize=16)
def _zipf_bounds(count: int, exponent: float) -> NDArray[np.float64]:
    """Upper ends of the intervals of [0, 1) that belong to each number."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    bounds: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1.0
    return bounds


def _start_times(
    num_programs: int, num_requests: int, arrivals: Arrivals, rng: np.random.Generator
) -> list[float]:
    if arrivals.requests_per_second is None:
        return [0.0] * num_programs
    mean = num_requests / num_programs / arrivals.requests_per_second
    shape = arrivals.burstiness**-2
    intervals = rng.gamma(shape, mean / shape, num_programs)
    return list(np.cumsum(intervals))
