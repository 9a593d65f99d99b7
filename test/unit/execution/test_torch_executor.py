"""A step samples and scores exactly the rows that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.model_rig import GREEDY, ModelRig
from support.tiny_models import random_prompt, save_tiny_model

from runtime.srt.execution.forward_batch import PromptLogprobRow, SampleRow
from runtime.srt.execution.selection import load_executor
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.sampling_params import LogprobOptions
from runtime.srt.server_args import ServerArgs


@pytest.fixture
def rig(tmp_path: Path) -> ModelRig:
    save_tiny_model(tmp_path, "llama-gqa")
    return ModelRig(tmp_path, max_tokens=400)


def test_only_the_rows_asked_for_are_sampled_in_their_order(rig: ModelRig) -> None:
    prompts = {row: random_prompt(10 + row, seed=row) for row in range(3)}
    expected = rig.step(prompts)
    rig.num_cached = [0] * len(rig.num_cached)

    rows = [
        SampleRow(row, GREEDY, seed=0, position=0, prompt_ids=[], output_ids=[]) for row in (2, 0)
    ]
    output = rig.executor.execute(rig.batch(prompts), rows, [])

    assert [one.token_id for one in output.sampled] == [expected[2], expected[0]]
    assert output.prompt_logprobs == []


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 299), (5, 290), (100, 128)])
def test_prompt_positions_are_scored_across_slices(rig: ModelRig, first: int, count: int) -> None:
    prompt = random_prompt(300, seed=9)
    targets = prompt[first + 1 : first + 1 + count]
    raw = torch.log_softmax(rig.logits({0: [4, 5], 1: prompt})[2:], dim=-1)
    rig.num_cached = [0] * len(rig.num_cached)

    batch = rig.batch({0: [4, 5], 1: prompt})
    row = PromptLogprobRow(1, first, targets, LogprobOptions(prompt_start=0))
    (scored,) = rig.executor.execute(batch, [], [row]).prompt_logprobs

    assert [one.token_id for one in scored] == targets
    expected = [float(raw[first + i, token]) for i, token in enumerate(targets)]
    assert [one.logprob for one in scored] == pytest.approx(expected, abs=1e-4)


def test_the_pool_holds_the_planned_tokens_and_a_dummy_page(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    args = ServerArgs(
        max_total_tokens=100,
        page_size=8,
        chunked_prefill_size=64,
        attention_backend="torch_reference",
    )

    executor = load_executor(tmp_path, ModelConfig.load(tmp_path, {}), args)

    assert executor.kv_pool.num_slots == 96 + 8
    stored = (tmp_path / "model.safetensors").stat().st_size
    assert 0 < stored - executor.weight_bytes < 10_000  # the file is weights and a header


def test_the_thread_count_is_that_of_the_flag(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    before = torch.get_num_threads()

    try:
        load_executor(
            tmp_path,
            ModelConfig.load(tmp_path, {}),
            ServerArgs(threads=1, attention_backend="torch_reference"),
        )
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
