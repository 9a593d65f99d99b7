"""Run one case against one peer and turn the answers into figures."""

from __future__ import annotations

import statistics
import time

from .answers import Answers, CaseTimeout, NotAvailable, Peer
from .cases import Workload
from .child import Usage, proportional_memory_bytes, read_usage
from .records import Record
from .shipment import is_valid_shipment

MIB = 1 << 20


def run_case(
    peer: Peer, contestant: str, round_number: int, workload: Workload, timeout_seconds: float
) -> Record:
    """Send the untimed first prompt, then the workload; return its record.

    A peer that cannot do the work gives a record with a problem. Raises CaseTimeout with the peer
    still busy: it must be stopped.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    figures: dict[str, float] = {}
    problem = None
    try:
        if workload.first_prompt is not None:
            first = peer.run(_first_of(workload), timeout_seconds)
            figures["first_ttft_ms"] = first.answers[0].first_seconds * 1e3
        before = read_usage(peer.pid)
        answers = peer.run(workload, timeout_seconds)
        after = read_usage(peer.pid)
    except NotAvailable as error:
        problem = f"not available ({error})"
    except CaseTimeout as error:
        error.add_note(f"case {workload.case}")
        raise
    else:
        figures |= figures_of(workload, answers)
        figures |= _cpu_figures(before, after)
        figures["pss_mib"] = proportional_memory_bytes(peer.pid) / MIB
        problem = find_problem(workload, answers)
    return Record(contestant, round_number, workload.case, figures, problem, when)


def figures_of(workload: Workload, answers: Answers) -> dict[str, float]:
    """Return the figures that follow from the answers' times and counts."""
    each = answers.answers
    outputs = sum(one.output_tokens for one in each)
    figures = {
        "wall_s": answers.wall_seconds,
        "ttft_ms": statistics.mean(one.first_seconds for one in each) * 1e3,
        "ttft_max_ms": max(one.first_seconds for one in each) * 1e3,
        "output_tokens": outputs,
        "output_tok_s": outputs / answers.wall_seconds,
        "requests_s": len(each) / answers.wall_seconds,
    }
    steps = [
        (one.last_seconds - one.first_seconds) / (one.output_tokens - 1) * 1e3
        for one in each
        if one.output_tokens > 1
    ]
    if steps:
        figures["ms_per_token"] = statistics.mean(steps)
    if workload.prompt_tokens is not None and len(each) == 1:
        figures["prompt_tok_s"] = workload.prompt_tokens / each[0].first_seconds
    cached = [one.cached_tokens for one in each if one.cached_tokens is not None]
    if cached:
        figures["cached_tokens"] = statistics.median(cached)
    if workload.schema is not None:
        figures["valid_share"] = statistics.mean(is_valid_shipment(one.text) for one in each)
    return figures


def find_problem(workload: Workload, answers: Answers) -> str | None:
    """Return what makes the run incomparable: other token counts than the case asks for."""
    for one in answers.answers:
        expected = workload.prompt_tokens
        if expected is not None and one.prompt_tokens not in (None, expected):
            return f"prompt of {one.prompt_tokens} tokens, {expected} expected"
        if workload.schema is None and one.output_tokens != workload.max_tokens:
            return f"output of {one.output_tokens} tokens, {workload.max_tokens} expected"
    return None


def _first_of(workload: Workload) -> Workload:
    assert workload.first_prompt is not None
    return Workload(
        workload.case,
        [workload.first_prompt],
        workload.first_max_tokens,
        workload.prompt_tokens,
        schema=workload.schema,
    )


def _cpu_figures(before: Usage, after: Usage) -> dict[str, float]:
    peer, client = after.tree - before.tree, after.own - before.own
    others = after.machine - before.machine - peer - client
    return {"peer_cpu_s": peer, "client_cpu_s": client, "other_cpu_s": max(0.0, others)}
