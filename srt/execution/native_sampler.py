"""NativeSampler: rows of logits to tokens and log-probabilities in the CPU engine.

The meaning is that of Sampler, its torch counterpart; this file only lays the rows out for the
engine and reads the results. Shape letters: R rows, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from runtime.kernels.cpu.abi_types import SAMPLE_ROW, SampleTask
from runtime.kernels.cpu.library import CpuModel

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions
from .forward_batch import NAN_LOGITS, PromptLogprobRow, SampledToken, SampleRow

Floats: TypeAlias = npt.NDArray[np.float32]
Records: TypeAlias = npt.NDArray[np.void]


class NativeSampler:
    """Draws next tokens and scores known ones with a model's thread team."""

    def __init__(self, model: CpuModel) -> None:
        self._model = model
        self._vocab_size = model.config.vocab_size

    def sample(self, logits: Floats, rows: list[SampleRow]) -> list[SampledToken]:
        """Draw one token per row; see Sampler.sample. logits: [R, V] float32."""
        kept: list[npt.NDArray[Any]] = []  # arrays that the records point to
        records = np.array([_record(row, kept) for row in rows], dtype=SAMPLE_ROW)
        rooms: dict[int, _LogprobRoom] = {}
        for i, row in enumerate(rows):
            if row.logprobs is not None:
                rooms[i] = _LogprobRoom(row.logprobs, 1, self._vocab_size)
                rooms[i].enter(records[i : i + 1])
        self._model.sample(logits, records)
        return [
            _sampled(token_id, records[i : i + 1], rooms[i]) if i in rooms else _drawn(token_id)
            for i, token_id in enumerate(records["token_id"].tolist())
        ]

    def score(
        self, logits: Floats, rows: Sequence[PromptLogprobRow]
    ) -> list[list[PositionLogprobs]]:
        """Raw log-probabilities of the targets of rows, one row of logits for each.

        logits: [P, V] float32, in the order of rows and their targets.
        """
        targets = [token_id for row in rows for token_id in row.target_ids]
        records = np.zeros(len(targets), dtype=SAMPLE_ROW)
        records["task"] = SampleTask.SCORE
        records["token_id"] = targets
        rooms: list[tuple[slice, _LogprobRoom]] = []
        first = 0
        for row in rows:
            part = slice(first, first + len(row.target_ids))
            room = _LogprobRoom(row.options, len(row.target_ids), self._vocab_size)
            room.enter(records[part])
            rooms.append((part, room))
            first = part.stop
        self._model.sample(logits, records)
        return [room.results(records[part]) for part, room in rooms]


class _LogprobRoom:
    """Memory for the log-probabilities that some rows with equal options ask for."""

    def __init__(self, options: LogprobOptions, num_rows: int, vocab_size: int) -> None:
        self._options = options
        self._ids = np.array(options.token_ids, dtype=np.int32)
        self._by_id = np.empty((num_rows, len(self._ids)), dtype=np.float32)
        num_top = min(options.num_top, vocab_size)
        self._top_ids = np.empty((num_rows, num_top), dtype=np.int32)
        self._top_logprobs = np.empty((num_rows, num_top), dtype=np.float32)

    def enter(self, records: Records) -> None:
        """Make records, one a row, point here."""
        records["wants_logprobs"] = 1
        records["num_score_ids"] = len(self._ids)
        records["score_ids"] = _address(self._ids)
        records["num_top"] = self._top_ids.shape[1]
        for name, array in (
            ("score_logprobs", self._by_id),
            ("top_ids", self._top_ids),
            ("top_logprobs", self._top_logprobs),
        ):
            places = np.arange(len(array), dtype=np.uintp) * np.uintp(array.strides[0])
            records[name] = places + np.uintp(_address(array))

    def results(self, records: Records) -> list[PositionLogprobs]:
        """What the engine wrote, in the order of records."""
        logprobs, token_ids = records["logprob"].tolist(), records["token_id"].tolist()
        return [
            PositionLogprobs(logprobs[i], token_ids[i], self._top(i), self._scored(i))
            for i in range(len(records))
        ]

    def _top(self, i: int) -> tuple[tuple[float, int], ...] | None:
        if not self._options.num_top:
            return None
        return tuple(zip(self._top_logprobs[i].tolist(), self._top_ids[i].tolist(), strict=True))

    def _scored(self, i: int) -> tuple[tuple[float, int], ...] | None:
        if not self._options.token_ids:
            return None
        return tuple(zip(self._by_id[i].tolist(), self._options.token_ids, strict=True))


def _record(row: SampleRow, kept: list[npt.NDArray[Any]]) -> tuple[Any, ...]:
    """The fields of a SAMPLE_ROW in order, without log-probabilities."""
    params, allowed_ids = row.params, row.allowed_ids
    suppressed_ids, biases = row.suppressed_ids, params.logit_bias
    prompt_ids, output_ids = (row.prompt_ids, row.output_ids) if params.has_penalties else ((), ())
    return (
        row.seed,
        row.position,
        0 if allowed_ids is None else _placed(allowed_ids, np.uint32, kept),
        _placed(prompt_ids, np.int32, kept) if len(prompt_ids) else 0,
        _placed(output_ids, np.int32, kept) if len(output_ids) else 0,
        _placed([token_id for token_id, _ in biases], np.int32, kept) if biases else 0,
        _placed([bias for _, bias in biases], np.float32, kept) if biases else 0,
        _placed(suppressed_ids, np.int32, kept) if suppressed_ids else 0,
        *(0, 0, 0, 0),  # the log-probabilities' places
        params.top_p,
        params.min_p,
        params.temperature,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        params.top_k or 0,
        len(prompt_ids),
        len(output_ids),
        len(biases),
        len(suppressed_ids),
        *(0, 0),  # their numbers
        SampleTask.GREEDY if params.is_greedy else SampleTask.DRAW,
        *(0, 0, 0.0),
    )


def _placed(values: Any, dtype: type[np.generic], kept: list[npt.NDArray[Any]]) -> int:
    """The address of values as an array, which stays in kept."""
    array = np.ascontiguousarray(values, dtype=dtype)
    kept.append(array)
    return _address(array)


def _drawn(token_id: int) -> SampledToken:
    return SampledToken(0, error=NAN_LOGITS) if token_id < 0 else SampledToken(token_id)


def _sampled(token_id: int, record: Records, room: _LogprobRoom) -> SampledToken:
    if token_id < 0:
        return _drawn(token_id)
    return SampledToken(token_id, logprobs=room.results(record)[0])


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
