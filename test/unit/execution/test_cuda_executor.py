"""The device's execution path equals the torch reference, token for token, whatever is asked for.

On a fake device that does copies as late as it may, and checks graphs and buffers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.device_rig import MAX_ROWS, device_executor, reference_executor, serving
from support.fake_grammar import HashGrammar
from support.recording_device import RecordingDevice
from support.scheduler_rig import Outcome, SchedulerRig
from support.steps import batch_of_rows, greedy_rows
from support.tiny_models import random_prompt, save_tiny_model
from support.torch_kernels import TorchKernels

from runtime.srt.attention import prefix_groups, triton_backend
from runtime.srt.execution.device import CpuDevice
from runtime.srt.execution.forward_batch import PromptLogprobRow
from runtime.srt.execution.staging import StagedArrays
from runtime.srt.sampling_params import LogprobOptions

VARIANT = "qwen3"  # with q and k norms
END_ID = 127
ENDS = frozenset({END_ID})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, VARIANT)
    return path


@pytest.fixture(autouse=True)
def poison_released_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever enqueues a read of staged arrays after their release finds garbage."""
    release: Callable[..., None] = StagedArrays.release

    def poisoned(self: StagedArrays, last_read: Any) -> None:
        self.whole.fill_(0x5E)
        release(self, last_read)

    monkeypatch.setattr(StagedArrays, "release", poisoned)


def _submit_mixture(rig: SchedulerRig) -> None:
    """Greedy and random rows, penalties, biases, log-probabilities, a shared prefix, grammars."""
    rng = random.Random(5)
    shared = random_prompt(20, seed=3)
    options: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "sampling_seed": 1},
        {"temperature": 0.8, "top_k": 12, "top_p": 0.9},
        {"temperature": 1.3, "min_p": 0.05, "frequency_penalty": 0.7},
        {"repetition_penalty": 1.4},
        {"temperature": 0.9, "presence_penalty": 1.0, "logit_bias": ((5, 3.0), (9, -4.0))},
        {"min_new_tokens": 4, "stop_token_ids": (7, 8, 9)},
        {"logprobs": LogprobOptions(num_top=3, token_ids=(4, 90))},
        {"temperature": 1.0, "logprobs": LogprobOptions(prompt_start=2, num_top=2)},
    ]
    for number, fields in enumerate(options):
        tail = random_prompt(rng.randint(1, 25), seed=number)
        prompt = shared + tail if number % 2 else tail
        length = rng.randint(1, 14)
        rig.submit(f"r{number}", prompt, max_new_tokens=max(length, 5), **fields)
        for _ in range(rng.choice([0, 1, 2])):
            rig.step()
    for number in range(2):
        source = rig.grammars.add(f"g{number}", HashGrammar(number, 6 + number, END_ID))
        rig.submit(f"g{number}", random_prompt(9, seed=number), max_new_tokens=12, grammar=source)
        rig.step()
    rig.run()


Answers = dict[str, tuple[list[Any], list[float]]]  # what must be exact, and log-probabilities


def _check(rig: SchedulerRig, expected: Answers) -> None:
    found = _answers(rig)
    assert {rid: exact for rid, (exact, _) in found.items()} == {
        rid: exact for rid, (exact, _) in expected.items()
    }
    for rid, (_, values) in found.items():
        # f32 sums over other batches.
        assert values == pytest.approx(expected[rid][1], abs=1e-4), rid


def _answers(rig: SchedulerRig) -> Answers:
    return {rid: _answer(outcome) for rid, outcome in rig.outcomes.items()}


def _answer(outcome: Outcome) -> tuple[list[Any], list[float]]:
    ids: list[Any] = [outcome.token_ids, outcome.finish]
    values: list[float] = []
    for one in [*outcome.output_logprobs, *(outcome.prompt_logprobs or ())]:
        pairs = [*(one.top or ()), *(one.by_id or ())]
        ids.append((one.token_id, [token_id for _, token_id in pairs]))
        values += [one.logprob or 0.0, *(value for value, _ in pairs)]
    return ids, values


@pytest.fixture(scope="module")
def expected(folder: Path) -> Answers:
    rig = serving(reference_executor(folder), eos_token_ids=ENDS)
    _submit_mixture(rig)
    assert {one.finish.type for one in rig.outcomes.values() if one.finish} <= {"length", "stop"}
    return _answers(rig)


@pytest.mark.parametrize("overlap_depth", [0, 1])
@pytest.mark.parametrize("disable_cuda_graph", [False, True])
def test_answers_are_those_of_the_torch_reference(
    folder: Path, expected: Answers, overlap_depth: int, disable_cuda_graph: bool
) -> None:
    device = RecordingDevice()
    executor = device_executor(device, folder, disable_cuda_graph=disable_cuda_graph)
    rig = serving(executor, overlap_depth=overlap_depth, eos_token_ids=ENDS)

    _submit_mixture(rig)

    _check(rig, expected)
    assert (device.num_replays > 0) == (not disable_cuda_graph)


def test_the_cpu_device_gives_the_same_answers(folder: Path, expected: Answers) -> None:
    executor = device_executor(CpuDevice(), folder)
    rig = serving(executor, overlap_depth=1, eos_token_ids=ENDS)

    _submit_mixture(rig)

    _check(rig, expected)


def test_captured_steps_that_share_prefixes_give_the_same_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that twenty tokens are long, and worth sharing.
    monkeypatch.setattr(prefix_groups, "_SHORTEST_PREFIX", 8)
    monkeypatch.setattr(prefix_groups, "LEAST_SAVED_TOKENS", 8)
    monkeypatch.setattr(triton_backend, "_LEAST_SAVED_BYTES", 1)
    device, kernels = RecordingDevice(), TorchKernels()
    executor, reference = device_executor(device, folder, kernels), reference_executor(folder)
    kernels.sharing.clear()  # captures
    kernels.calls.clear()
    shared, found = random_prompt(30, seed=9), []

    for depth, one in ((1, executor), (0, reference)):
        rig = serving(one, overlap_depth=depth)
        for number in range(5):
            rig.submit(f"r{number}", [*shared, 40 + number], max_new_tokens=6 + number)
        rig.run()
        found.append(_answers(rig))

    assert found[0] == found[1]
    assert ("shared", MAX_ROWS) in kernels.calls, "no step was padded to the captured size"
    # All rows share for a while, two of them at the end, and no padding does.
    assert [5] in kernels.sharing and kernels.sharing[-1] == [2]


def test_the_host_waits_once_a_step_and_only_for_results(folder: Path) -> None:
    device = RecordingDevice()
    rig = serving(device_executor(device, folder), overlap_depth=1)
    for number in range(3):
        rig.submit(f"r{number}", random_prompt(8, number), max_new_tokens=40)
    for _ in range(6):
        rig.step()
    device.host_waits.clear()
    synchronized = device.num_synchronized

    for _ in range(20):
        rig.step()

    assert device.host_waits == ["forward"] * 20
    assert device.num_synchronized == synchronized


def test_a_step_is_on_the_device_while_the_results_of_the_one_before_are_read(
    folder: Path,
) -> None:
    device = RecordingDevice()
    rig = serving(device_executor(device, folder), overlap_depth=1)
    rig.submit("a", random_prompt(8, 1), max_new_tokens=30)
    for _ in range(4):
        rig.step()

    replays, waits = device.num_replays, len(device.host_waits)
    rig.scheduler.plan()
    assert (device.num_replays, len(device.host_waits)) == (replays, waits)
    rig.step()

    assert device.num_replays == replays + 1


def test_steps_above_the_largest_graph_run_eagerly(folder: Path) -> None:
    device, kernels = RecordingDevice(), TorchKernels()
    rig = serving(device_executor(device, folder, kernels, cuda_graph_max_rows=2))
    for number in range(4):
        rig.submit(f"r{number}", random_prompt(8, number), max_new_tokens=6 + 6 * (number // 2))

    rig.run()

    assert ("decode", 4) in kernels.calls, "four rows are more than were captured"
    assert device.num_replays > 0, "two rows are not"


def test_a_step_with_a_table_of_its_own_leaves_the_devices_table_alone(folder: Path) -> None:
    # Rows that are no request's stand below those of the request table.
    executor, reference = device_executor(CpuDevice(), folder), reference_executor(folder)

    for table_row in (1, 5000):
        batch = batch_of_rows([(9, 9)], [table_row])
        row = PromptLogprobRow(0, 0, random_prompt(9, 2), LogprobOptions())
        (found,) = executor.execute(batch, [], [row]).prompt_logprobs
        (expected,) = reference.execute(batch, [], [row]).prompt_logprobs
        assert [one.token_id for one in found] == row.target_ids
        values = [one.logprob for one in expected]
        assert [one.logprob for one in found] == pytest.approx(values, abs=1e-5)

    assert int(executor.slot_table.slots.count_nonzero()) == 9


def test_prompt_positions_are_scored_across_slices_and_rows(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    executor = device_executor(
        RecordingDevice(), tmp_path, context_length=400, chunked_prefill_size=512
    )
    reference = reference_executor(tmp_path)
    batch = batch_of_rows([(200, 200), (1, 1), (90, 90)])
    rows = [
        PromptLogprobRow(0, 3, random_prompt(190, 1), LogprobOptions(num_top=2)),
        PromptLogprobRow(2, 0, random_prompt(89, 2), LogprobOptions(token_ids=(5, 6))),
        PromptLogprobRow(2, 89, [4], LogprobOptions(num_top=5, token_ids=(9,))),
    ]

    found = executor.execute(batch, greedy_rows(2), rows)

    expected = reference.execute(batch, greedy_rows(2), rows)
    assert found.sampled == expected.sampled
    for mine, theirs in zip(found.prompt_logprobs, expected.prompt_logprobs, strict=True):
        assert [one.token_id for one in mine] == [one.token_id for one in theirs]
        for one, other in zip(mine, theirs, strict=True):
            pairs, others = [*(one.top or ()), *(one.by_id or ())], [*(other.top or ())]
            others += other.by_id or ()
            assert [token_id for _, token_id in pairs] == [token_id for _, token_id in others]
            values, wanted = [one.logprob], [other.logprob]
            values += [value for value, _ in pairs]
            assert values == pytest.approx([*wanted, *(v for v, _ in others)], abs=1e-4)


def test_padding_writes_the_dummy_slot_alone(folder: Path) -> None:
    device = RecordingDevice()
    executor = device_executor(device, folder)
    assert executor.graphs is not None and 5 not in executor.graphs.sizes
    executor.kv_pool.k.zero_()
    executor.kv_pool.v.zero_()

    executor.execute(batch_of_rows([(1, 1)] * 5), greedy_rows(5), [])

    assert device.num_replays == 1
    for pool in (executor.kv_pool.k, executor.kv_pool.v):
        written = pool.abs().amax(dim=(0, 2, 3)).nonzero().flatten().tolist()
        assert written == [0, 1, 2, 3, 4, 5]
        assert bool(pool.isfinite().all())


def test_a_captured_step_and_an_eager_one_give_the_same_logits(folder: Path) -> None:
    batch = batch_of_rows([(1, 1)] * 5)
    options = LogprobOptions(num_top=20)
    rows = greedy_rows(5)
    for row in rows:
        row.logprobs = options

    captured, eager = (
        device_executor(RecordingDevice(), folder, disable_cuda_graph=disabled)
        .execute(batch, rows, [])
        .sampled
        for disabled in (False, True)
    )

    for one, other in zip(captured, eager, strict=True):
        assert one.logprobs is not None and other.logprobs is not None
        assert one.token_id == other.token_id
        assert _by_id(one.logprobs.top) == pytest.approx(_by_id(other.logprobs.top), abs=1e-5)


def _by_id(top: Any) -> dict[int, float]:
    return {token_id: value for value, token_id in top}
