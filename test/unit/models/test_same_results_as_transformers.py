"""Every architecture computes what transformers computes, on small random models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.model_rig import ModelRig
from support.tiny_models import (
    VARIANTS,
    greedy_reference,
    random_prompt,
    save_tiny_model,
    tiny_model,
)

from runtime.srt.execution.torch_executor import TorchExecutor


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_in_float32(variant: str, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, variant)
    rig = ModelRig(tmp_path)

    for seed, length in enumerate((1, 2, 17, 90)):
        prompt = random_prompt(length, seed)
        assert rig.generate(seed, prompt, 12) == greedy_reference(model, prompt, 12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_in_float32_at_every_position(variant: str, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, variant)
    prompt = random_prompt(100, seed=3)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]

    logits = ModelRig(tmp_path).logits({0: prompt})

    # Sums of up to 96 terms in another order: some 1e-6 of values of order ten.
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", ["llama-gqa", "mistral", "qwen2", "qwen3"])
def test_logits_in_half_precision_stay_near_the_float32_result_of_the_same_weights(
    variant: str, dtype: str, tmp_path: Path
) -> None:
    torch_dtype = getattr(torch, dtype)
    tiny_model(variant, torch_dtype).save_pretrained(tmp_path)
    exact = tiny_model(variant, torch_dtype).float()
    prompt = random_prompt(60, seed=4)
    with torch.inference_mode():
        expected = exact(torch.tensor([prompt])).logits[0]

    logits = ModelRig(tmp_path).logits({0: prompt})

    # Each layer rounds about ten times, by up to half an ulp (bf16: 2**-9); over two layers these
    # add up like a random walk to about 2**-9 * sqrt(20) = 0.9 %. Three times that is allowed.
    relative_error = (logits - expected).norm() / expected.norm()
    assert relative_error < 0.03 * torch.finfo(torch_dtype).eps / torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_dtype_argument_converts_the_stored_weights(dtype: str, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, "llama-gqa")

    rig = ModelRig(tmp_path, dtype=dtype)

    assert isinstance(rig.executor, TorchExecutor)
    assert rig.executor.dtype == dtype
    assert rig.executor.kv_pool.dtype == getattr(torch, dtype)
    stored = model.state_dict()["model.layers.1.self_attn.k_proj.weight"]
    loaded = rig.executor.model.parameters()["model.layers.1.self_attn.k_proj.weight"]
    assert torch.equal(loaded, stored.to(loaded.dtype))


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    prompt = random_prompt(100, seed=5)
    rig = ModelRig(tmp_path)
    whole = rig.logits({0: prompt})

    parts = []
    for start, end in ((0, 1), (1, 3), (3, 64), (64, 99), (99, 100)):
        parts.append(rig.logits({1: prompt[start:end]}))

    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


def test_a_ragged_batch_gives_each_row_what_it_gets_alone(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    rig = ModelRig(tmp_path, num_sequences=16)
    prompts = {row: random_prompt(3 + 11 * row, seed=row) for row in range(8)}
    # Row 1 of each pair decodes, row 2 extends a cached prefix, row 3 starts, and so on.
    new_tokens = {row: [1, 9, len(prompts[row])][row % 3] for row in prompts}
    for row, prompt in prompts.items():
        if cached := prompt[: -new_tokens[row]]:
            rig.logits({row: cached})
            rig.logits({row + 8: cached})

    together = rig.logits({row: prompt[-new_tokens[row] :] for row, prompt in prompts.items()})

    alone = [rig.logits({row + 8: prompt[-new_tokens[row] :]}) for row, prompt in prompts.items()]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
