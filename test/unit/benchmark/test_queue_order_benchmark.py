"""The benchmark of the waiting queue, in small."""

from __future__ import annotations

import pytest
from queue_order import PER_STEP, measure

from runtime.srt.scheduling.queue_order import POLICIES


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue_stays_full_while_the_pool_evicts(policy: str) -> None:
    figures = measure(num_waiting=200, num_steps=6, policy=policy, seed=0)

    assert figures["waiting"] == 200 and PER_STEP > 0
    assert int(str(figures["evicted_tokens"])) > 0
    assert float(str(figures["step_us"])) > 0
    if policy == "lpm":
        assert figures["order_is_exact"] is True
