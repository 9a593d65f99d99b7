"""--kv-cache-dtype: another type of cached keys and values, or a refusal that names the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.model_rig import ModelRig
from support.tiny_models import random_prompt, save_tiny_model

from runtime.kernels.cpu.build import NoCompiler
from runtime.srt.errors import ConfigError
from runtime.srt.execution import selection

PROMPTS = {row: random_prompt(10 + 30 * row, seed=row) for row in range(4)}
HEADS = 2 * 2 * 2  # k and v, layers, kv heads of llama-gqa
HEAD_DIM = 16


def native(folder: Path, **args: Any) -> ModelRig:
    return ModelRig(folder, attention_backend="cpu_native", **args)


# The exact cache against one of 8 bits: a value is off by 1 / 254 of its head's largest at most,
# 0.25 % in the mean square, in two layers of keys and of values. bfloat16 rounds to 0.17 %.
@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bfloat16", 0.01), ("int8", 0.02)])
def test_logits_stay_near_those_of_an_exact_cache(
    kv_dtype: str, tolerance: float, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    exact = native(tmp_path, dtype="float32").logits(PROMPTS)

    rig = native(tmp_path, dtype="float32", kv_cache_dtype=kv_dtype)
    error = (rig.logits(PROMPTS) - exact).norm() / exact.norm()

    assert 0 < error < tolerance
    assert rig.executor.dtype == "float32"


@pytest.mark.parametrize(
    ("kv_dtype", "head_bytes"),
    [("auto", 2 * HEAD_DIM), ("float32", 4 * HEAD_DIM), ("int8", HEAD_DIM + 4)],
)
def test_a_token_takes_what_its_type_says(kv_dtype: str, head_bytes: int, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")

    pool = native(tmp_path, dtype="bfloat16", kv_cache_dtype=kv_dtype).executor.kv_pool

    assert pool.num_bytes == pool.num_slots * HEADS * head_bytes


def test_torch_reference_refuses_a_type_it_does_not_compute_in(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-gqa")

    for kv_dtype in ("int8", "bfloat16"):
        with pytest.raises(
            ConfigError,
            match=f"--kv-cache-dtype is {kv_dtype}, and --attention-backend is torch_reference",
        ):
            ModelRig(tmp_path, dtype="float32", kv_cache_dtype=kv_dtype)
    ModelRig(tmp_path, dtype="float32", kv_cache_dtype="float32")


def test_no_fallback_takes_a_pool_it_cannot_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(tmp_path, "llama-biases")  # which only torch_reference computes
    with pytest.raises(ConfigError, match="--kv-cache-dtype is int8.*does not compute"):
        ModelRig(tmp_path, attention_backend="auto", kv_cache_dtype="int8")

    save_tiny_model(tmp_path, "llama-gqa")

    def no_compiler(*args: object) -> None:
        raise NoCompiler("no C++ compiler found")

    monkeypatch.setattr(selection, "load_native_model", no_compiler)
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype is int8.*no C\+\+ compiler"):
        ModelRig(tmp_path, attention_backend="auto", kv_cache_dtype="int8")
