"""config.json in both spellings becomes one ModelConfig; what cannot be served is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading.model_config import ModelConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def load(folder: Path, overrides: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    config = {name: value for name, value in {**LLAMA, **fields}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.load(folder, overrides or {})


def test_absent_optional_fields_take_the_defaults_of_the_format(tmp_path: Path) -> None:
    config = load(tmp_path)

    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert (config.rope.kind, config.rope.theta) == ("default", 10000.0)
    assert config.rms_norm_eps == 1e-6
    assert not config.tie_word_embeddings and not config.attention_bias and not config.mlp_bias
    assert config.eos_token_ids == ()
    assert config.dtype == "float32"
    assert config.generation_defaults == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": None},
        {"dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
)
def test_both_spellings_mean_the_same(fields: dict[str, Any], tmp_path: Path) -> None:
    config = load(tmp_path, **fields)

    assert config.dtype == "bfloat16"
    assert (config.rope.kind, config.rope.theta) == ("default", 5e5)


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_llama3_scaling_is_read_in_both_spellings(name: str, key: str, tmp_path: Path) -> None:
    scaling = {key: "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

    config = load(tmp_path, **{name: {**scaling, "original_max_position_embeddings": 8192}})

    assert (config.rope.kind, config.rope.factor) == ("llama3", 32.0)
    assert config.rope.original_context_length == 8192


def test_families_fix_their_biases_and_norms(tmp_path: Path) -> None:
    qwen2 = load(tmp_path, architectures=["Qwen2ForCausalLM"])
    qwen3 = load(tmp_path, architectures=["Qwen3ForCausalLM"])
    mistral = load(tmp_path, architectures=["MistralForCausalLM"], num_attention_heads=8)

    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm) == (
        True,
        False,
        False,
    )
    assert (qwen3.attention_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    assert (mistral.num_kv_heads, mistral.attention_bias) == (8, False)


def test_end_of_sequence_ids_are_the_union_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 5]}))

    assert load(tmp_path, eos_token_id=7).eos_token_ids == (5, 7, 9)


def test_sampling_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    stored = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "max_length": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))

    assert load(tmp_path).generation_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}


def test_a_greedy_generation_config_sets_no_sampling_defaults(tmp_path: Path) -> None:
    stored = {"temperature": 0.6, "do_sample": False}
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))

    assert load(tmp_path).generation_defaults == {}


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_theta": 777.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    ],
)
def test_an_override_wins_in_either_spelling(overrides: dict[str, Any], tmp_path: Path) -> None:
    stored = {"rope_type": "default", "rope_theta": 5e5}

    config = load(tmp_path, {**overrides, "max_position_embeddings": 99}, rope_parameters=stored)

    assert config.rope.theta == 777.0
    assert config.context_length == 99


def test_an_override_of_the_scaling_keeps_the_base(tmp_path: Path) -> None:
    stored = {"rope_type": "default", "rope_theta": 5e5}

    config = load(
        tmp_path, {"rope_scaling": {"type": "linear", "factor": 4.0}}, rope_parameters=stored
    )

    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 4.0, 5e5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architectures: GemmaForCausalLM is not served"),
        ({"architectures": "absent"}, "architectures: it must be a list"),
        ({"hidden_size": "absent"}, "hidden_size: it is missing"),
        ({"hidden_size": "64"}, "hidden_size: it is '64'"),
        ({"hidden_size": -64}, "hidden_size: it is -64; it must be from 1 to"),
        ({"vocab_size": 0}, "vocab_size: it is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: it is 1000000000; it must be from 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: it is -1; it must be from 1 to"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers: it is 2.5"),
        ({"max_position_embeddings": 1}, "max_position_embeddings: it is 1; it must be from 16"),
        ({"num_attention_heads": 128}, "num_attention_heads: it is above hidden_size 64"),
        ({"hidden_size": "x" * 10_000}, "hidden_size: it is 'xxxx"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: it must divide"),
        ({"head_dim": 15}, "head_dim: it is 15"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not served"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: it is 1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: it is 0"),
        ({"rope_theta": float("nan")}, "rope_theta: it is nan"),
        ({"rope_theta": float("inf")}, "rope_theta: it is inf"),
        ({"rope_theta": 10**400}, "rope_theta: it is 1000"),
        ({"rms_norm_eps": True}, "rms_norm_eps: it is True"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type: 'yarn' is not served"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type: 'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: field factor: it is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling: it must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"dtype": "float8_e4m3fn"}, "dtype: 'float8_e4m3fn' is not one of"),
        ({"eos_token_id": "</s>"}, "eos_token_id: '</s>' is not a token id"),
        ({"eos_token_id": [1, -1]}, "eos_token_id: -1 is not a token id"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="config.json") as raised:
        load(tmp_path, **fields)

    assert message in raised.value.message


SIZES = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
]


@pytest.mark.parametrize("value", [-1, 0, 2**31, 10**30, "8", None, [], True, float("nan")])
@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_limits_and_is_named(name: str, value: Any, tmp_path: Path) -> None:
    may_be_absent = name in ("num_key_value_heads", "head_dim")
    if value is None and may_be_absent:
        return

    with pytest.raises(ModelLoadError) as raised:
        load(tmp_path, **{name: value})

    assert f"{tmp_path / 'config.json'}: field {name}: it is" in raised.value.message
    assert len(raised.value.message) < 500


def test_a_window_shorter_than_the_context_is_refused_with_the_remedy(tmp_path: Path) -> None:
    mistral = {
        "architectures": ["MistralForCausalLM"],
        "num_attention_heads": 8,
        "sliding_window": 1024,
    }
    with pytest.raises(ModelLoadError, match='"max_position_embeddings": 1024'):
        load(tmp_path, **mistral)

    assert load(tmp_path, {"max_position_embeddings": 1024}, **mistral).sliding_window == 1024


def test_windows_that_a_model_has_switched_off_do_not_count(tmp_path: Path) -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16}

    assert load(tmp_path, **qwen, use_sliding_window=False).sliding_window is None


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json does not exist"):
        ModelConfig.load(tmp_path, {})

    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        ModelConfig.load(tmp_path, {})

    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        ModelConfig.load(tmp_path, {})

    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="must hold a JSON object"):
        ModelConfig.load(tmp_path, {})


def test_reading_configs_and_resolving_paths_import_no_torch() -> None:
    code = (
        "import sys, runtime.srt.loading.model_config, runtime.srt.loading.resolve;"
        "print([m for m in ('torch', 'transformers', 'gguf', 'numpy') if m in sys.modules])"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"
