"""The pool's size follows the flags and the memory there is, or the flag to change is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import save_tiny_model

from runtime.srt.errors import ConfigError
from runtime.srt.execution import kv_budget
from runtime.srt.execution.kv_budget import plan_kv_tokens
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.server_args import MIN_CONTEXT_LENGTH, ServerArgs

TOKEN_BYTES = 2 * 2 * 2 * 16 * 2  # k and v, layers, kv heads, head_dim, bytes
WEIGHT_BYTES = 1_000_000
CONTEXT = 512
ANGLE_BYTES = CONTEXT * 16 * 4  # head_dim, bytes
ROW_BYTES = CONTEXT * 4


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    save_tiny_model(tmp_path, "llama-gqa")
    return ModelConfig.load(tmp_path, {})


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda: 10_000_000)
    return 10_000_000


def plan(config: ModelConfig, **args: Any) -> int:
    return plan_kv_tokens(ServerArgs(**args), config, "bfloat16", WEIGHT_BYTES)


def test_max_total_tokens_is_taken_in_whole_pages(config: ModelConfig, free: int) -> None:
    assert plan(config, max_total_tokens=1000) == 1000
    assert plan(config, max_total_tokens=1000, page_size=16, chunked_prefill_size=512) == 992


def test_the_fraction_covers_weights_and_pool(config: ModelConfig, free: int) -> None:
    tokens = plan(config, mem_fraction_static=0.3)

    tables = ANGLE_BYTES + (4096 // 64 + 1) * ROW_BYTES
    assert tokens == (3_000_000 - WEIGHT_BYTES - tables) // TOKEN_BYTES


def test_8_bit_tokens_take_five_eighths_at_this_head_size(config: ModelConfig, free: int) -> None:
    args = ServerArgs(mem_fraction_static=0.3, max_running_requests=8)

    wide = plan_kv_tokens(args, config, "bfloat16", WEIGHT_BYTES)
    narrow = plan_kv_tokens(args, config, "int8", WEIGHT_BYTES)

    assert narrow / wide == pytest.approx(2 * 16 / (16 + 4), rel=0.01)


def test_without_flags_the_pool_is_capped_at_eight_contexts(config: ModelConfig, free: int) -> None:
    assert config.context_length == 512
    assert plan(config) == 8 * 512
    assert plan(config, context_length=100) == 800


def test_a_context_above_the_models_is_refused_before_the_pool_is_sized(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda: pytest.fail("sized the pool"))

    with pytest.raises(ConfigError) as raised:
        plan(config, context_length=513)

    assert "--context-length is 513, more than the model's 512" in raised.value.message
    remedy = "--json-model-override-args '{\"max_position_embeddings\": 513}'"
    assert remedy in raised.value.message


def test_the_remedy_for_a_longer_context_works(tmp_path: Path, free: int) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    config = ModelConfig.load(tmp_path, {"max_position_embeddings": 600})

    assert plan(config, context_length=600) == 8 * 600


def test_without_flags_half_of_the_memory_is_the_limit(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda: 2_600_000)

    tables = ANGLE_BYTES + (4096 // 64 + 1) * ROW_BYTES
    assert plan(config) == (300_000 - tables) // TOKEN_BYTES


def test_a_pool_that_does_not_fit_is_refused_with_one_that_would(
    config: ModelConfig, free: int
) -> None:
    with pytest.raises(ConfigError, match=r"--max-total-tokens is 100000.* (\d+) would fit") as e:
        plan(config, max_total_tokens=100_000)

    would_fit = int(e.value.message.split(": ")[-1].split(" would fit")[0])
    assert plan(config, max_total_tokens=would_fit) == would_fit
    with pytest.raises(ConfigError):
        plan(config, max_total_tokens=would_fit + 1)


def test_a_pool_too_small_to_serve_is_refused(config: ModelConfig, free: int) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens is 15; .*must be at least 16"):
        plan(config, max_total_tokens=15)
    with pytest.raises(ConfigError, match="with --page-size 64 it must be at least 64"):
        plan(config, max_total_tokens=63, page_size=64, chunked_prefill_size=64)


def test_a_fraction_too_small_is_refused_with_one_that_would_do(
    config: ModelConfig, free: int
) -> None:
    with pytest.raises(ConfigError, match="--mem-fraction-static is 0.05.*set it to at least 0.13"):
        plan(config, mem_fraction_static=0.05)

    assert plan(config, mem_fraction_static=0.13) >= 16


def test_a_host_too_small_is_told_what_is_needed(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda: 900_000)

    with pytest.raises(ConfigError, match="free some memory"):
        plan(config)
    with pytest.raises(ConfigError, match="not even the weights fit"):
        plan(config, max_total_tokens=100)


def test_tables_of_too_many_requests_are_refused_with_a_number_that_fits(
    config: ModelConfig, free: int
) -> None:
    with pytest.raises(
        ConfigError, match=r"--max-running-requests is 60000.* (\d+) would fit"
    ) as e:
        plan(config, max_running_requests=60_000)

    would_fit = int(e.value.message.split("at most ")[-1].split(" would fit")[0])
    with pytest.raises(ConfigError, match="--max-running-requests"):
        plan(config, max_running_requests=would_fit + 1)
    share = {"mem_fraction_static": 0.3}
    assert plan(config, max_running_requests=200, **share) < plan(config, **share)


def test_a_context_whose_tables_do_not_fit_is_refused(tmp_path: Path, free: int) -> None:
    save_tiny_model(tmp_path, "llama-gqa")
    config = ModelConfig.load(tmp_path, {"max_position_embeddings": 2**24})

    with pytest.raises(ConfigError, match="a context of 16777216 tokens .*lower --context-length"):
        plan(config)


@pytest.mark.parametrize("flags", [{"page_size": 2**20}, {"page_size": 2**30}])
def test_a_page_that_does_not_fit_is_blamed_itself(
    config: ModelConfig, free: int, flags: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="--page-size is .*lower it"):
        plan(config, **flags, chunked_prefill_size=-1)


def test_the_shortest_context_has_a_pool(config: ModelConfig, free: int) -> None:
    assert plan(config, context_length=MIN_CONTEXT_LENGTH) >= MIN_CONTEXT_LENGTH
