"""How much of a device is left to the KV pool, and what an error says that would work."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support.tiny_models import save_tiny_model

from runtime.srt.errors import ConfigError
from runtime.srt.execution.device_memory import (
    DeviceUse,
    device_table_bytes,
    out_of_memory_at_load,
    out_of_memory_at_profile,
    plan_device_kv_tokens,
)
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_layout import bytes_per_token
from runtime.srt.server_args import ServerArgs

MIB = 1 << 20
USE = DeviceUse(100 * MIB, weights=20 * MIB, activations=10 * MIB, graphs=5 * MIB)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, "llama-gqa")
    return ModelConfig.load(folder, {})


def _plan(config: ModelConfig, use: DeviceUse = USE, **args: Any) -> int:
    return plan_device_kv_tokens(ServerArgs(**args), config, "bfloat16", use)


def test_the_pool_gets_what_weights_steps_and_graphs_leave_of_the_fraction(
    config: ModelConfig,
) -> None:
    args = ServerArgs(mem_fraction_static=0.8, max_running_requests=4)
    tokens = plan_device_kv_tokens(args, config, "bfloat16", USE)

    taken = tokens * bytes_per_token(config, "bfloat16")
    taken += USE.total + device_table_bytes(args, config.context_length, tokens)
    assert taken <= 80 * MIB < taken + 2 * bytes_per_token(config, "bfloat16")


def test_graphs_are_paid_by_the_pool(config: ModelConfig) -> None:
    without = _plan(config, replace(USE, graphs=0))

    assert (without - _plan(config)) * bytes_per_token(config, "bfloat16") == pytest.approx(
        USE.graphs, rel=0.001
    )


def test_the_pool_is_whole_pages(config: ModelConfig) -> None:
    assert _plan(config, page_size=16, chunked_prefill_size=64) % 16 == 0
    assert _plan(config, max_total_tokens=100, page_size=16, chunked_prefill_size=64) == 96


def test_a_fraction_that_leaves_no_pool_names_one_that_does(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="--mem-fraction-static is 0.3 of 0.10 GiB") as error:
        _plan(config, mem_fraction_static=0.3)

    found = re.search(r"set it to at least (0\.\d+)", error.value.message)
    assert found is not None
    assert _plan(config, mem_fraction_static=float(found[1])) >= 16


def test_a_full_device_names_flags_that_make_room(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="lower --chunked-prefill-size or --cuda-graph-max-rows"):
        _plan(config, replace(USE, activations=79 * MIB))


def test_an_explicit_pool_that_is_too_large_names_one_that_fits(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens is 10000000, ") as error:
        _plan(config, max_total_tokens=10_000_000, max_running_requests=4)

    found = re.search(r"(\d+) would fit", error.value.message)
    assert found is not None
    assert _plan(config, max_total_tokens=int(found[1]), max_running_requests=4) == int(found[1])


def test_a_pool_below_the_smallest_is_refused(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens is 8; .* at least 16"):
        _plan(config, max_total_tokens=8)


def test_weights_that_do_not_fit_say_how_much_is_free() -> None:
    text = out_of_memory_at_load(16 << 30, 8 << 30).message
    assert "16.00 GiB" in text and "8.00 GiB free" in text and "--device cpu" in text


def test_a_step_that_does_not_fit_names_smaller_ones() -> None:
    text = out_of_memory_at_profile(8192, 256, 1, 1 << 30).message
    assert "--chunked-prefill-size to 4096" in text and "--max-running-requests to 128" in text


def test_fp8_keeps_twice_as_many_tokens(config: ModelConfig) -> None:
    args = ServerArgs(max_running_requests=1)
    fp8 = plan_device_kv_tokens(args, config, "float8_e4m3fn", USE)
    assert fp8 == pytest.approx(2 * plan_device_kv_tokens(args, config, "bfloat16", USE), rel=0.01)
