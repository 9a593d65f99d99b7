"""BatchBuilder: decode-only batches are laid out by a shorter way, with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.messages import GenerateRequest
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling.batch_builder import BatchBuilder
from runtime.srt.scheduling.planner import PlannedRow
from runtime.srt.scheduling.request import Request


def active(memory: KvMemory, rid: str, num_tokens: int, num_computed: int) -> Request:
    """A request with slots for its whole prompt, of which num_computed tokens are done."""
    ids = [100 * (len(rid) + i) for i in range(num_tokens)]
    message = GenerateRequest(rid=rid, input_ids=ids, sampling=SamplingParams(max_new_tokens=4))
    request = Request.of(message, lambda params, tail: pytest.fail("no stop strings here"))
    request.lease = memory.open(request.all_tokens(), None, 0)
    assert memory.grow(request.kv_lease, num_tokens)
    request.num_computed = num_computed
    return request


@pytest.mark.parametrize("copies_slots", [False, True])
def test_a_decode_row_is_laid_out_the_same_alone_and_beside_a_prompt(copies_slots: bool) -> None:
    memory = KvMemory(256, 1, 8, 64)
    builder = BatchBuilder(memory, copies_slots)
    decoding = [PlannedRow(active(memory, "a" * n, 5 + n, 4 + n), 1, True) for n in (1, 2, 3)]
    prompt = PlannedRow(active(memory, "prompt", 20, 3), 17)

    alone = builder.build(decoding).batch
    beside = builder.build([*decoding, prompt]).batch

    for name in ("input_ids", "positions", "out_slots", "kv_lens"):
        expected = getattr(beside, name)[:3]
        assert getattr(alone, name).dtype == expected.dtype, name
        np.testing.assert_array_equal(getattr(alone, name), expected, err_msg=name)
    assert alone.cu_query_lens.dtype == beside.cu_query_lens.dtype
    np.testing.assert_array_equal(alone.cu_query_lens, beside.cu_query_lens[:4])
    for row in range(3):
        end = int(alone.kv_lens[row])
        np.testing.assert_array_equal(
            alone.slot_table[alone.table_rows[row], :end],
            beside.slot_table[beside.table_rows[row], :end],
        )
