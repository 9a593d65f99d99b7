"""Times each workload on each contestant, in turns, and keeps what the programs wrote."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from runtime import ProgramState

from .contestants import NO_TREE, TREE, Contestant
from .workloads import WORKLOADS, Arguments, Workload


@dataclass(slots=True)
class Result:
    """One workload on one contestant: programs per second by the number of the round."""

    workload: Workload
    contestant: str
    rates: dict[int, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Programs per second in the middle round."""
        return statistics.median(self.rates.values())


class OutputsDiffer(Exception):
    """The tree changed what a program wrote; the text shows where."""


def run_rounds(
    workloads: Sequence[Workload], contestants: Sequence[Contestant], rounds: range, quick: bool
) -> Iterator[Result]:
    """Yield a Result for each workload and contestant that can run it, workload by workload.

    The texts follow from the number of the round, so that no cache knows them in its first run; the
    order of the contestants turns around from round to round. Raises OutputsDiffer if two of our
    own servers disagree.
    """
    _warm_up(contestants)
    for workload in workloads:
        results = [
            Result(workload, one.name)
            for one in contestants
            if one.backend_for(workload) is not None
        ]
        by_name = {one.name: one.backend_for(workload) for one in contestants}
        count = 2 if quick else workload.num_programs
        if workload.has_grammar:
            _compile_grammars(workload, by_name.values())
        for number in rounds:
            arguments = workload.arguments(Random(f"{workload.name} {number}"), count)
            outputs: dict[str, list[str]] = {}
            for result in results if number % 2 == 0 else reversed(results):
                backend = by_name[result.contestant]
                started = time.perf_counter()
                states = _run(workload, arguments, backend)
                result.rates[number] = count / (time.perf_counter() - started)
                outputs[result.contestant] = [_output(one) for one in states]
            _compare(workload, outputs)
        yield from results


def _warm_up(contestants: Sequence[Contestant]) -> None:
    """Make connections, and whatever a server makes at its first request."""
    workload = WORKLOADS["few-shot"]
    for one in contestants:
        _run(workload, workload.arguments(Random("warm-up"), 2), one.backend_for(workload))


def _compile_grammars(workload: Workload, backends: Iterable[Any]) -> None:
    """Let each server meet the grammars once, as the paper's own benchmark of them does."""
    for backend in backends:
        if backend is not None:
            _run(workload, workload.arguments(Random("warm-up"), 1), backend)


def _run(workload: Workload, arguments: Arguments, backend: Any) -> list[ProgramState]:
    states: list[ProgramState] = workload.program.run_batch(arguments, backend=backend)
    return states


def _output(state: ProgramState) -> str:
    return repr((state.text(), state.ret_value, state.variables()))


def _compare(workload: Workload, outputs: dict[str, list[str]]) -> None:
    if TREE not in outputs or NO_TREE not in outputs:
        return
    pairs = zip(outputs[TREE], outputs[NO_TREE], strict=True)
    for number, (one, other) in enumerate(pairs):
        if one != other:
            place = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            raise OutputsDiffer(
                f"{workload.name}, program {number}: with the tree {one[place - 40 : place + 40]!r}"
                f", without {other[place - 40 : place + 40]!r}"
            )
