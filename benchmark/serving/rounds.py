"""The order of a run: every round starts each contestant once, one after the other.

So a change in the machine's mood meets all of them, and nobody is measured beside a rival's idle
server. A case that took long is not repeated, one that took too long is cut off, and both are said.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .answers import CaseTimeout, Peer
from .cases import PromptSource, Scale, Workload, build_workload
from .child import proportional_memory_bytes
from .contestants import Contestant
from .measure import MIB, run_case
from .records import DOES_NOT_START, MACHINE, Record, ResultsFile
from .work import ModelShape, decode_bytes, total_flops

_FIRST_ANSWER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how long a case may take."""

    contestants: list[Contestant]
    cases: str
    num_rounds: int
    scale: Scale
    slow_seconds: float
    case_timeout_seconds: float
    threads: int


class Run:
    """Measures what a results file does not hold yet.

    measure_limits returns the record of the machine's limits for a round.
    """

    def __init__(
        self,
        plan: Plan,
        source: PromptSource,
        shape: ModelShape,
        results: ResultsFile,
        measure_limits: Callable[[int], Record],
    ) -> None:
        self._plan = plan
        self._source = source
        self._shape = shape
        self._results = results
        self._measure_limits = measure_limits

    def run(self) -> None:
        """Do all rounds."""
        for round_number in range(1, self._plan.num_rounds + 1):
            waiting = [
                (one, cases)
                for one in self._plan.contestants
                if (cases := self._due_cases(one, round_number))
            ]
            if waiting and not self._results.has(MACHINE, round_number, "limits"):
                self._keep(self._measure_limits(round_number))
            for contestant, cases in waiting:
                self._run_contestant(contestant, cases, round_number)

    def _due_cases(self, contestant: Contestant, round_number: int) -> str:
        """Return the cases to run now; none for one that is missing or does not start."""
        if contestant.missing is not None:
            return ""
        mine = [one for one in self._results.records if one.contestant == contestant.name]
        if any((one.problem or "").startswith(DOES_NOT_START) for one in mine):
            return ""
        slow = {
            one.case
            for one in mine
            if one.case != "F"
            and (one.problem is not None or one.figures.get("wall_s", 0) > self._plan.slow_seconds)
        }
        return "".join(
            case
            for case in self._plan.cases
            if case in contestant.cases
            and case not in slow
            and not self._results.has(contestant.name, round_number, case)
        )

    def _run_contestant(self, contestant: Contestant, cases: str, round_number: int) -> None:
        started = time.perf_counter()
        try:
            peer = contestant.start()
        except (RuntimeError, CaseTimeout, OSError) as error:
            problem = f"{DOES_NOT_START}: {_last_line(error)}"
            self._keep(Record(contestant.name, round_number, "F", {}, problem))
            return
        try:
            self._keep(self._first_answer(peer, contestant, round_number, started))
            for case in cases.replace("F", ""):
                if not self._run_case(peer, contestant, case, round_number):
                    break
        finally:
            peer.stop()

    def _first_answer(
        self, peer: Peer, contestant: Contestant, round_number: int, started: float
    ) -> Record:
        ready = time.perf_counter() - started
        prompt = self._source.text(16, f"F/{round_number}")
        answers = peer.run(Workload("F", [prompt], 8, 16), _FIRST_ANSWER_SECONDS)
        first_token = answers.wall_seconds - answers.answers[0].first_seconds
        figures = {
            "ready_s": ready,
            "first_answer_s": time.perf_counter() - started - first_token,
            "pss_mib": proportional_memory_bytes(peer.pid) / MIB,
        }
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        return Record(contestant.name, round_number, "F", figures, when=when)

    def _run_case(self, peer: Peer, contestant: Contestant, case: str, round_number: int) -> bool:
        """Measure one case; return whether the peer can go on."""
        workload = build_workload(case, round_number, self._source, self._plan.scale)
        try:
            record = run_case(
                peer, contestant.name, round_number, workload, self._plan.case_timeout_seconds
            )
        except (CaseTimeout, RuntimeError, OSError) as error:
            self._keep(Record(contestant.name, round_number, case, {}, _last_line(error)))
            return False
        share = self._limit_share(workload, record, contestant)
        if share is not None:
            record.figures["limit_share"] = share
        self._keep(record)
        return True

    def _limit_share(
        self, workload: Workload, record: Record, contestant: Contestant
    ) -> float | None:
        """Return the share of the round's limit: bytes read in case A, operations in B, C and D."""
        limits = _limits_of(self._results.records, record.round)
        threads = self._plan.threads
        if not limits or workload.schema is not None or record.problem is not None:
            return None
        if workload.case == "A":
            needed = decode_bytes(self._shape, workload, contestant.weight_bytes)
            rate = needed / 2**30 / (record.figures["ms_per_token"] / 1e3)
            return rate / limits[f"read_weights_gib_{threads}"]
        rate = total_flops(self._shape, workload) / 1e9 / record.figures["wall_s"]
        return rate / limits[f"gemm_bf16_gflops_{threads}"]

    def _keep(self, record: Record) -> None:
        self._results.append(record)
        shown = record.problem or ", ".join(
            f"{name} {value:.4g}" for name, value in record.figures.items()
        )
        print(
            f"[{record.round}] {record.contestant} {record.case}: {shown}",
            file=sys.stderr,
            flush=True,
        )


def _limits_of(records: Sequence[Record], round_number: int) -> dict[str, float]:
    for one in records:
        if one.contestant == MACHINE and one.round == round_number:
            return one.figures
    return {}


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
