"""The C++ engine behind the executor seam: the reference's tokens, the same bits in any company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.model_rig import GREEDY, ModelRig
from support.tiny_models import VARIANTS, random_prompt, save_tiny_model

from runtime.srt.errors import ConfigError
from runtime.srt.execution.forward_batch import PromptLogprobRow, SampleRow
from runtime.srt.execution.selection import load_executor
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.messages import PositionLogprobs
from runtime.srt.sampling_params import LogprobOptions, SamplingParams
from runtime.srt.server_args import ServerArgs

SERVED = [name for name in VARIANTS if name != "llama-biases"]  # its mlp biases are torch's


@pytest.mark.parametrize("variant", SERVED)
def test_greedy_tokens_equal_the_reference_in_float32(variant: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, variant)
    native = ModelRig(tmp_path, dtype="float32", attention_backend="cpu_native")
    reference = ModelRig(tmp_path, dtype="float32")

    for sequence, length in enumerate((1, 2, 33, 90)):
        prompt = random_prompt(length, seed=length)
        assert native.generate(sequence, prompt, 12) == reference.generate(sequence, prompt, 12)


def scores(rig: ModelRig, sequence: int, prompt: list[int]) -> list[PositionLogprobs]:
    """Log-probabilities of prompt[1:], with the three most likely tokens each."""
    rig.num_cached[sequence] = 0
    row = PromptLogprobRow(0, 0, prompt[1:], LogprobOptions(prompt_start=0, num_top=3))
    (scored,) = rig.executor.execute(rig.batch({sequence: prompt}), [], [row]).prompt_logprobs
    return scored


@pytest.mark.parametrize("variant", ["llama-gqa", "qwen3"])
def test_prompt_logprobs_equal_the_reference(variant: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, variant)
    native = ModelRig(tmp_path, dtype="float32", attention_backend="cpu_native", max_tokens=400)
    reference = ModelRig(tmp_path, dtype="float32", max_tokens=400)
    prompt = random_prompt(300, seed=3)

    ours, theirs = scores(native, 0, prompt), scores(reference, 0, prompt)

    assert [one.token_id for one in ours] == prompt[1:]
    assert [one.logprob for one in ours] == pytest.approx([x.logprob for x in theirs], abs=1e-4)


def test_the_logprob_of_a_drawn_token_equals_its_score_as_a_prompt(tmp_path: Path) -> None:
    # Both ways to a log-probability: the step's own logits, and hidden states through the head.
    save_tiny_model(tmp_path, "llama-gqa")
    rig = ModelRig(tmp_path, dtype="bfloat16", attention_backend="cpu_native", max_tokens=256)
    prompt = random_prompt(150, seed=5)
    row = SampleRow(0, GREEDY, 0, 150, prompt, [], logprobs=LogprobOptions(num_top=3))

    (drawn,) = rig.executor.execute(rig.batch({0: prompt}), [row], []).sampled
    (*_, scored) = scores(rig, 1, [*prompt, drawn.token_id])

    assert drawn.logprobs == scored


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_rows_logprobs_are_the_same_bits_in_any_company(dtype: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    prompt = random_prompt(70, seed=1)
    options = LogprobOptions(num_top=20)

    def last(rig: ModelRig, rows: dict[int, list[int]], place: int) -> object:
        row = SampleRow(place, GREEDY, 0, 70, prompt, [], logprobs=options)
        return rig.executor.execute(rig.batch(rows), [row], []).sampled[0]

    def fresh(threads: int) -> ModelRig:
        return ModelRig(
            tmp_path,
            num_sequences=40,
            threads=threads,
            dtype=dtype,
            attention_backend="cpu_native",
        )

    alone = last(fresh(1), {0: prompt}, 0)
    neighbours = {i: random_prompt(1 + 3 * i % 60, seed=i) for i in range(1, 38)}
    for threads in (1, 2):
        assert last(fresh(threads), {**neighbours, 0: prompt}, 37) == alone
        for cached in (1, 7, 31, 32, 33, 64, 69):
            rig = fresh(threads)
            rig.step({0: prompt[:cached]})
            assert last(rig, {5: neighbours[5], 0: prompt[cached:]}, 1) == alone, cached


def test_nan_weights_fail_the_request_and_not_the_step(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, "llama-gqa")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    model.save_pretrained(tmp_path)
    rig = ModelRig(tmp_path, dtype="float32", attention_backend="cpu_native")

    for params in (GREEDY, SamplingParams(temperature=1.0)):
        rig.num_cached = [0] * len(rig.num_cached)
        rows = [SampleRow(i, params, 1, 3, [1, 2, 3], []) for i in range(2)]
        batch = rig.batch({0: [5, 7, 6], 1: [5, 6, 8]})
        bad, good = rig.executor.execute(batch, rows, []).sampled
        assert bad.error is not None and "NaN" in bad.error
        assert good.error is None


def test_a_forced_engine_that_cannot_serve_the_model_is_an_error(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-biases")
    config = ModelConfig.load(tmp_path, {})

    with pytest.raises(ConfigError, match="cpu_native"):
        load_executor(tmp_path, config, ServerArgs(attention_backend="cpu_native"))
    assert load_executor(tmp_path, config, ServerArgs()).backend_name == "torch_reference"


def test_rows_that_sample_and_rows_that_are_scored_share_a_step(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    rig = ModelRig(tmp_path, dtype="float32", attention_backend="cpu_native")
    prompts = {row: random_prompt(20 + row, seed=row) for row in range(3)}
    expected_tokens = rig.step(prompts)
    expected_scores = [scores(rig, row, prompts[row]) for row in (2, 0)]
    rig.num_cached = [0] * len(rig.num_cached)

    sample_rows = [SampleRow(row, GREEDY, 0, 0, [], []) for row in range(3)]
    options = LogprobOptions(prompt_start=0, num_top=3)
    score_rows = [PromptLogprobRow(row, 0, prompts[row][1:], options) for row in (2, 0)]
    output = rig.executor.execute(rig.batch(prompts), sample_rows, score_rows)

    assert [one.token_id for one in output.sampled] == expected_tokens
    assert output.prompt_logprobs == expected_scores


def test_scored_rows_get_the_same_bits_together_as_alone(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    rig = ModelRig(tmp_path, dtype="bfloat16", attention_backend="cpu_native")
    prompts = {row: random_prompt(100, seed=row) for row in range(4)}
    options = [LogprobOptions(num_top=row, token_ids=tuple(range(row))) for row in prompts]

    def scored(rows: list[int]) -> list[list[PositionLogprobs]]:
        """Two parts of each of rows, which together are more than one slice of positions."""
        rig.num_cached = [0] * len(rig.num_cached)
        parts = [
            PromptLogprobRow(rows.index(row), first, prompts[row][first + 1 : last], options[row])
            for row in rows
            for first, last in ((0, 60), (70, 100))
        ]
        batch = rig.batch({row: prompts[row] for row in rows})
        return rig.executor.execute(batch, [], parts).prompt_logprobs

    alone = [part for row in prompts for part in scored([row])]
    assert scored([0, 1, 2, 3]) == alone


@pytest.mark.parametrize("num_legal", [1, 2, 30])
def test_rows_with_few_legal_ids_draw_what_the_whole_head_would_have_them_draw(
    num_legal: int, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path, "llama-gqa")
    rig = ModelRig(tmp_path, dtype="bfloat16", attention_backend="cpu_native")
    prompts = {row: random_prompt(20 + row, seed=row) for row in range(6)}
    mask = np.zeros(-(-model.config.vocab_size // 32), dtype=np.uint32)
    for token_id in range(3, 3 + 2 * num_legal, 2):
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)
    drawn = SamplingParams(temperature=1.0, top_k=7, repetition_penalty=1.3)

    def tokens(logprobs: LogprobOptions | None) -> list[int]:
        rig.num_cached = [0] * len(rig.num_cached)
        rows = [
            SampleRow(
                row,
                GREEDY if row % 2 else drawn,
                row,
                20 + row,
                prompts[row],
                [],
                allowed_ids=mask if row % 3 else None,
                logprobs=logprobs,
            )
            for row in prompts
        ]
        sampled = rig.executor.execute(rig.batch(prompts), rows, []).sampled
        return [one.token_id for one in sampled]

    # Log-probabilities need every logit.
    assert tokens(None) == tokens(LogprobOptions(num_top=0))
