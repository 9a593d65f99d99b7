"""Penalties and biases on single logits, interpreted, against the host's change of a whole row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton.grammar_mask import apply_bitmask
from runtime.kernels.triton.logit_edits import apply_edits
from runtime.srt.execution import logit_lists
from runtime.srt.execution.forward_batch import SampleRow
from runtime.srt.execution.logit_changes import changed_logits
from runtime.srt.execution.logit_lists import LogitOps, change_lists
from runtime.srt.sampling_params import SamplingParams

VOCABULARY = 700
OPS = LogitOps(apply_bitmask, apply_edits)
# More ids than a program takes, some of them twice.
PROMPT = [*range(0, 699, 2), 7, 7, 9]
OUTPUT = [3, 3, 9, 699, 9, 9]
MASK = np.full(-(-VOCABULARY // 32), 0xF0F0F0FF, dtype=np.uint32)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"frequency_penalty": 0.3, "presence_penalty": -0.7},
        {"logit_bias": ((699, 1.7), (0, -2.3), (699, 0.1))},
        {"suppressed_ids": (9, 0)},
        {
            "repetition_penalty": 1.7,
            "frequency_penalty": 1.1,
            "presence_penalty": 0.3,
            "logit_bias": ((9, 3.3), (3, -1.1), (11, 0.7)),
            "suppressed_ids": (7, 11),
            "allowed_ids": MASK,
        },
    ],
)
def test_a_row_is_changed_as_on_the_host_to_the_last_bit(fields: dict[str, Any]) -> None:
    rows = [_row(frequency_penalty=0.9), _row(**fields), _row()]
    logits = 5 * torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))

    changed = _changed(logits, rows, OPS)

    for i, row in enumerate(rows):
        assert torch.equal(changed[i], changed_logits(logits[i], row))


def test_special_logits_are_changed_as_by_the_reference() -> None:
    changes: dict[str, Any] = {"repetition_penalty": 1.8, "frequency_penalty": -0.4}
    rows = [_row(**changes, logit_bias=((2, 50.0),), suppressed_ids=(4,)) for _ in range(4)]
    logits = torch.zeros(4, VOCABULARY)
    logits[0, [0, 3, 4]] = math.nan
    logits[1] = -math.inf
    logits[2, [0, 3, 4]] = math.inf
    logits[3, 2::2] = -math.inf

    changed = _changed(logits, rows, OPS)

    assert same_bits(changed, _changed(logits, rows, logit_lists.TORCH_LOGIT_OPS))
    assert changed[0, 3].isnan() and changed[0, 4] == -math.inf
    # What the model calls impossible stays so, whatever the bias.
    assert changed[1, 2] == changed[1, 5] == logit_lists.least_logit(logits)


def test_nothing_is_written_but_the_places() -> None:
    logits = GuardedOutput.empty((2, 50), torch.float32)
    logits.tensor.copy_(torch.arange(100.0).view(2, 50))
    expected = logits.tensor.clone()
    expected[0, 0], expected[1, 49] = 0.0 - 1.0, 99.0 / 2 + 4.0

    apply_edits(
        logits.tensor,
        guarded(torch.tensor([0, 99])),
        guarded(torch.tensor([1.0, 2.0])),
        guarded(torch.tensor([1.0, 0.0])),
        guarded(torch.tensor([0.0, 4.0])),
        guarded(torch.tensor([0, 0], dtype=torch.int32)),
        floor=-math.inf,
    )

    assert same_bits(logits.tensor, expected)
    logits.assert_guards_hold()


def test_an_amount_of_another_type_is_refused() -> None:
    one, places = torch.ones(1), torch.zeros(1, dtype=torch.int64)

    with pytest.raises(AssertionError, match="suppressed is torch.float32"):
        apply_edits(torch.zeros(1, 5), places, one, one, one, one, floor=-math.inf)


def _row(**fields: Any) -> SampleRow:
    changes = {
        name: fields.pop(name) for name in ("suppressed_ids", "allowed_ids") if name in fields
    }
    return SampleRow(0, SamplingParams(**fields), 1, 40, PROMPT, OUTPUT, **changes)


def _changed(logits: torch.Tensor, rows: list[SampleRow], ops: LogitOps) -> torch.Tensor:
    lists = change_lists(rows, VOCABULARY)
    staged = {name: guarded(torch.from_numpy(array)) for name, array in lists.items()}
    return logit_lists.changed_logits(logits, staged, ops)
