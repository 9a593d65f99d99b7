"""What a planned step costs and who gets a token in it."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.srt.scheduling.planner import StepPlan
from runtime.srt.scheduling.request import Request

from .cost_model import StepLoad


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A plan, its load, and the requests that draw a token in it."""

    plan: StepPlan
    load: StepLoad
    sampled: list[Request]

    @classmethod
    def of(cls, plan: StepPlan) -> PlannedStep:
        """Look through plan once, before it is launched."""
        prefill_tokens = decode_rows = kv_tokens = 0
        pairs = 0.0
        sampled: list[Request] = []
        for row in plan.rows:
            request, num_new = row.request, row.num_new
            context = request.num_computed + num_new
            kv_tokens += context
            if num_new == 1 and request.output_ids:
                decode_rows += 1
                pairs += context
            else:
                prefill_tokens += num_new
                pairs += num_new * (context - (num_new - 1) / 2)
            if context == request.num_tokens:
                sampled.append(request)
        load = StepLoad(prefill_tokens, decode_rows, kv_tokens, pairs, len(sampled))
        return cls(plan, load, sampled)
