"""A step of the device's execution path that finds no memory leaves everything in order.

Wherever in a step an allocation fails: the request with most tokens ends, all others get the
answers of a device with room, and nothing of the failed step is kept.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.device_rig import device_executor, serving
from support.fake_grammar import HashGrammar
from support.recording_device import OutOfMemory, RecordingDevice
from support.scheduler_rig import SchedulerRig
from support.steps import batch_of_rows, greedy_rows
from support.tiny_models import random_prompt, save_tiny_model

from runtime.srt.errors import DeviceOutOfMemory
from runtime.srt.execution.cuda_executor import CudaExecutor, CudaStep
from runtime.srt.execution.device import CpuDevice
from runtime.srt.execution.device_sampler import DeviceSampler
from runtime.srt.execution.device_slot_table import DeviceSlotTable
from runtime.srt.execution.result_ring import ResultRing
from runtime.srt.execution.staging import StagingRing
from runtime.srt.models.decoder import Decoder
from runtime.srt.sampling_params import LogprobOptions

END_ID = 127
# What a step calls, in this order; each may find no memory.
PLACES: list[tuple[type[Any], str]] = [
    (StagingRing, "upload"),
    (DeviceSlotTable, "apply"),
    (Decoder, "forward"),
    (Decoder, "compute_logits"),
    (DeviceSampler, "enqueue"),
    (ResultRing, "download"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "llama-gqa")
    return path


class _Faults:
    """Lets calls of one method fail now and then, before or after their work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
        self.is_due: Callable[[], bool] = lambda: False
        self.num_raised = 0
        work = getattr(owner, name)
        allocates_first = name in ("upload", "download")  # and holds something when it is done

        def may_fail(*args: Any, **kwargs: Any) -> Any:
            fails = self.is_due()
            if fails and (allocates_first or self.num_raised % 2 == 0):
                self._fail()
            result = work(*args, **kwargs)
            if fails:
                self._fail()
            return result

        monkeypatch.setattr(owner, name, may_fail)

    def _fail(self) -> None:
        self.num_raised += 1
        raise OutOfMemory


def _submit_mixture(rig: SchedulerRig) -> None:
    shared = random_prompt(20, seed=3)
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "sampling_seed": 1},
        {"temperature": 1.3, "min_p": 0.05, "frequency_penalty": 0.7},
        {"logprobs": LogprobOptions(prompt_start=2, num_top=2)},
    ]
    for number in range(16):
        tail = random_prompt(1 + number, seed=number)
        prompt = shared + tail if number % 3 else tail
        fields = options[number % len(options)]
        rig.submit(f"r{number}", prompt, max_new_tokens=6 + number % 5, **fields)
        if number % 4 == 0:
            source = rig.grammars.add(f"g{number}", HashGrammar(number, 6 + number, END_ID))
            rig.submit(f"g{number}", tail, max_new_tokens=12, grammar=source)
        for _ in range(number % 3):
            rig.step()
    rig.run()


def _tokens(rig: SchedulerRig) -> dict[str, list[int]]:
    return {rid: one.token_ids for rid, one in rig.outcomes.items()}


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    rig = serving(device_executor(RecordingDevice(), folder), eos_token_ids=frozenset({END_ID}))
    _submit_mixture(rig)
    return _tokens(rig)


@pytest.mark.parametrize(("disable_cuda_graph", "overlap_depth"), [(False, 1), (True, 0)])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_one_request_ends_and_the_others_get_the_answers_of_a_device_with_room(
    folder: Path,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    name: str,
    disable_cuda_graph: bool,
    overlap_depth: int,
) -> None:
    faults = _Faults(monkeypatch, owner, name)
    executor = device_executor(RecordingDevice(), folder, disable_cuda_graph=disable_cuda_graph)
    rig = serving(executor, overlap_depth=overlap_depth, eos_token_ids=frozenset({END_ID}))
    calls = itertools.count()
    faults.is_due = lambda: next(calls) % 11 == 7

    _submit_mixture(rig)

    failed = {
        rid
        for rid, one in rig.outcomes.items()
        if one.finish is not None and one.finish.status_code == 503
    }
    assert 1 < len(failed) <= faults.num_raised
    found = _tokens(rig)
    for rid, tokens in expected.items():
        wanted = tokens[: len(found[rid])] if rid in failed else tokens
        assert found[rid] == wanted, rid
    text = rig.outcomes[min(failed)].finish
    assert text is not None and "start the server with --max-total-tokens" in str(text.message)


def test_nothing_of_a_step_that_failed_stays_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The activations of a step that was too large must not wait for a garbage collection.
    executor = device_executor(RecordingDevice(), folder, disable_cuda_graph=True)
    steps: list[weakref.ref[CudaStep]] = []
    launch = CudaExecutor.launch

    def watched(self: CudaStep, *args: Any) -> None:
        steps.append(weakref.ref(self))
        raise OutOfMemory

    gc.collect()
    gc.disable()
    try:
        monkeypatch.setattr(CudaStep, "_forward", watched)
        try:
            launch(executor, batch_of_rows([(3, 3)]), [0], [])
        except DeviceOutOfMemory as error:
            assert isinstance(error.__cause__, OutOfMemory)
        (step,) = steps
        assert step() is None
        monkeypatch.undo()
        output = executor.execute(batch_of_rows([(3, 3)]), greedy_rows(1), [])
        assert len(output.sampled) == 1
    finally:
        gc.enable()


def test_a_step_in_flight_keeps_no_logits(folder: Path) -> None:
    # The next step is launched beside it, and only one of them was measured at the start.
    executor = device_executor(CpuDevice(), folder, disable_cuda_graph=True)
    step = executor.launch(batch_of_rows([(3, 3)]), [0], [])
    assert step._logits is not None
    logits = weakref.ref(step._logits)

    step.sample(greedy_rows(1), [])

    assert logits() is None
    assert len(step.collect().sampled) == 1
