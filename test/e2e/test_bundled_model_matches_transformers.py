"""The bundled GGUF model, converted, computes what transformers computes from the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.model_rig import ModelRig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.resolve import resolve_model

NUM_TOKENS = 16
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Zwei Dinge sind unendlich:",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, " * 30,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model("smollm2-135m-instruct", "float32")


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text).input_ids for text in PROMPTS]


def test_the_config_is_that_of_the_published_model(folder: Path) -> None:
    config = ModelConfig.load(folder, {})

    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (576, 1536, 64)
    assert (config.vocab_size, config.context_length) == (49152, 8192)
    assert (config.rope.theta, config.rms_norm_eps) == (100000.0, 1e-5)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)


def test_greedy_tokens_equal_in_float32(
    folder: Path, reference: PreTrainedModel, prompts: list[list[int]]
) -> None:
    rig = ModelRig(folder, num_sequences=len(prompts), max_tokens=256)

    outputs: list[list[int]] = [[] for _ in prompts]
    new_tokens = dict(enumerate(prompts))
    for _ in range(NUM_TOKENS):
        for row, token in enumerate(rig.step(new_tokens)):
            outputs[row].append(token)
            new_tokens[row] = [token]

    for prompt, generated in zip(prompts, outputs, strict=True):
        # By induction over the tokens this is transformers' own greedy text, in one pass.
        expected = reference_logits(reference, [*prompt, *generated[:-1]]).argmax(-1)
        assert generated == expected[len(prompt) - 1 :].tolist()


def test_logits_in_bfloat16_are_as_near_to_float32_as_those_of_transformers(
    reference: PreTrainedModel, prompts: list[list[int]]
) -> None:
    folder = resolve_model("smollm2-135m-instruct")
    exact = torch.cat([reference_logits(reference, prompt) for prompt in prompts])
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    peer_logits = torch.cat([reference_logits(peer, prompt) for prompt in prompts])

    logits = ModelRig(folder, len(prompts), max_tokens=256).logits(dict(enumerate(prompts)))

    # The order of roundings differs, so single logits do too; the error's size may not. One tenth
    # is the spread of its mean over different prompts.
    assert mean_relative_error(logits, exact) < 1.1 * mean_relative_error(peer_logits, exact)


def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def mean_relative_error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((logits - exact).norm(dim=-1) / exact.norm(dim=-1)).mean())
