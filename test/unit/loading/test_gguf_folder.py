"""A converted GGUF file holds the same model: weights, config and what transformers makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from support.model_rig import ModelRig
from support.tiny_gguf import write_gguf
from support.tiny_models import greedy_reference, random_prompt, tiny_model
from transformers import AutoModelForCausalLM

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading.gguf_folder import write_folder
from runtime.srt.loading.model_config import ModelConfig

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN_PROJ = "model.layers.0.mlp.down_proj.weight"


def convert(tmp_path: Path, model: Any, dtype: str = "float32", **options: Any) -> Path:
    folder = tmp_path / "converted"
    folder.mkdir()
    write_gguf(tmp_path / "model.gguf", model, **options)
    write_folder(tmp_path / "model.gguf", folder, dtype)
    return folder


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [
        ("llama", "llama-gqa"),
        ("llama", "llama-tied"),
        ("llama", "llama-head-dim"),
        ("llama", "llama-biases"),
        ("llama", "mistral"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ],
)
def test_an_unquantised_file_gives_back_the_weights_and_the_greedy_tokens(
    architecture: str, variant: str, tmp_path: Path
) -> None:
    model = tiny_model(variant)

    folder = convert(tmp_path, model, architecture=architecture)

    converted = load_file(folder / "model.safetensors")
    for name, value in converted.items():
        assert torch.equal(value, model.state_dict()[name]), name
    prompt = random_prompt(30, seed=1)
    expected = greedy_reference(model, prompt, 8)
    assert ModelRig(folder).generate(0, prompt, 8) == expected
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert greedy_reference(loaded, prompt, 8) == expected


# The gguf package can write these types, so the expected values are its own quantised ones.
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_each_type_that_can_be_written_is_dequantised_row_by_row(name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[name]
    model = tiny_model("llama-gqa")

    folder = convert(tmp_path, model, quantization=kind)

    converted = load_file(folder / "model.safetensors")
    for tensor in (Q_PROJ, DOWN_PROJ, "model.embed_tokens.weight"):
        original = model.state_dict()[tensor].numpy()
        expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
        np.testing.assert_array_equal(converted[tensor].numpy(), expected.reshape(original.shape))


def q4_k_block(values: np.random.Generator) -> tuple[bytes, np.ndarray[Any, Any]]:
    """One block of 256 values: 8 groups of 32 with a 6-bit scale and minimum, 4 bits a value."""
    d, dmin = np.float16(0.01), np.float16(0.02)
    scales, mins = values.integers(0, 64, 8), values.integers(0, 64, 8)
    codes = values.integers(0, 16, (8, 32))
    packed = _packed_scales(scales, mins)
    nibbles = b"".join(
        (codes[2 * i] | codes[2 * i + 1] << 4).astype(np.uint8).tobytes() for i in range(4)
    )
    expected = float(d) * scales[:, None] * codes - float(dmin) * mins[:, None]
    return d.tobytes() + dmin.tobytes() + packed + nibbles, expected.reshape(-1)


def q5_k_block(values: np.random.Generator) -> tuple[bytes, np.ndarray[Any, Any]]:
    """As q4_k_block with a fifth bit per value, bit g of byte i belonging to value i of group g."""
    d, dmin = np.float16(0.01), np.float16(0.02)
    scales, mins = values.integers(0, 64, 8), values.integers(0, 64, 8)
    codes = values.integers(0, 32, (8, 32))
    high = sum((codes[g] >> 4) << g for g in range(8))
    low = codes & 15
    nibbles = b"".join(
        (low[2 * i] | low[2 * i + 1] << 4).astype(np.uint8).tobytes() for i in range(4)
    )
    expected = float(d) * scales[:, None] * codes - float(dmin) * mins[:, None]
    data = d.tobytes() + dmin.tobytes() + _packed_scales(scales, mins)
    return data + np.asarray(high, dtype=np.uint8).tobytes() + nibbles, expected.reshape(-1)


def q6_k_block(values: np.random.Generator) -> tuple[bytes, np.ndarray[Any, Any]]:
    """One block of 256 values: 16 groups of 16 with an 8-bit scale, 6 bits a value, offset 32."""
    d = np.float16(0.01)
    scales = values.integers(-128, 128, 16).astype(np.int8)
    codes = values.integers(0, 64, 256)
    low, high = b"", b""
    for half in codes.reshape(2, 4, 32):
        for pair in (0, 1):
            low += ((half[pair] & 15) | (half[pair + 2] & 15) << 4).astype(np.uint8).tobytes()
        high += sum((half[i] >> 4) << 2 * i for i in range(4)).astype(np.uint8).tobytes()
    expected = float(d) * np.repeat(scales.astype(np.float64), 16) * (codes - 32)
    return low + high + scales.tobytes() + d.tobytes(), expected


def _packed_scales(scales: np.ndarray[Any, Any], mins: np.ndarray[Any, Any]) -> bytes:
    first = scales[:4] | (scales[4:] >> 4) << 6
    second = mins[:4] | (mins[4:] >> 4) << 6
    third = (scales[4:] & 15) | (mins[4:] & 15) << 4
    return np.concatenate((first, second, third)).astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("name", "block"), [("Q4_K", q4_k_block), ("Q5_K", q5_k_block), ("Q6_K", q6_k_block)]
)
def test_k_quants_are_dequantised_as_their_layout_says(
    name: str, block: Any, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    model = tiny_model("llama-gqa", hidden_size=256, head_dim=16)
    blocks = [block(generator) for _ in range(96)]
    data = np.frombuffer(b"".join(raw for raw, _ in blocks), dtype=np.uint8).reshape(96, -1)
    expected = np.stack([values for _, values in blocks])
    (tmp_path / "out").mkdir()
    gate = "blk.0.ffn_gate.weight"

    write_gguf(
        tmp_path / "model.gguf",
        model,
        without=(gate,),
        raw_tensors={gate: (data, GGMLQuantizationType[name])},
    )
    write_folder(tmp_path / "model.gguf", tmp_path / "out", "float32")

    found = load_file(tmp_path / "out" / "model.safetensors")["model.layers.0.mlp.gate_proj.weight"]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_rounds_as_torch_does(dtype: str, tmp_path: Path) -> None:
    model = tiny_model("llama-gqa")
    with torch.no_grad():  # values where rounding must carry, tie or overflow
        row = model.get_parameter("model.norm.weight")
        row[:6] = torch.tensor([1.00390625, 1.01171875, -0.0, 1e-40, 3.3895e38, 65535.0])

    folder = convert(tmp_path, model, dtype=dtype)

    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[name].to(getattr(torch, dtype))), name
    assert ModelConfig.load(folder, {}).dtype == dtype


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recovered_from_the_stored_factors(
    factor: float, tmp_path: Path
) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama-head-dim", rope_parameters=scaling, max_position_embeddings=131072)
    plain = tiny_model(
        "llama-head-dim", rope_parameters={"rope_type": "default", "rope_theta": 500000.0}
    )
    ratio = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq

    folder = convert(tmp_path, model, extra_tensors={"rope_freqs.weight": ratio.numpy()})

    rope = ModelConfig.load(folder, {}).rope
    assert (rope.kind, rope.theta, rope.factor) == ("llama3", 500000.0, factor)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    assert rope.original_context_length == 8192


def test_linear_rope_scaling_is_taken_over(tmp_path: Path) -> None:
    scaling: dict[str, Any] = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
    }

    folder = convert(tmp_path, tiny_model("llama-linear-rope"), metadata=scaling)

    rope = ModelConfig.load(folder, {}).rope
    assert (rope.kind, rope.factor) == ("linear", 2.0)


def test_end_of_sequence_ids_and_sampling_defaults_are_taken_over(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.eot_token_id": 5,
        "general.sampling.temp": 0.7,
        "general.sampling.top_k": 20,
    }

    config = ModelConfig.load(convert(tmp_path, tiny_model("llama-gqa"), metadata=metadata), {})

    assert config.eos_token_ids == (2, 5)
    assert config.generation_defaults == {"temperature": 0.7, "top_k": 20}


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
        ({"split.count": 3}, "llama-gguf-split"),
    ],
)
def test_metadata_that_cannot_be_served_is_named(
    metadata: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=named):
        convert(tmp_path, tiny_model("llama-gqa"), metadata=metadata)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="'gemma3' is not served; known are llama"):
        convert(tmp_path, tiny_model("llama-gqa"), architecture="gemma3")


def test_a_missing_embedding_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"token_embd\.weight: this tensor is missing"):
        convert(tmp_path, tiny_model("llama-gqa"), without=("token_embd.weight",))


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), dtype=np.float32)}

    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_gate_inp\.weight"):
        convert(tmp_path, tiny_model("llama-gqa"), extra_tensors=extra)


def test_a_type_that_cannot_be_dequantised_is_named_with_its_tensor(tmp_path: Path) -> None:
    gate = "blk.0.ffn_gate.weight"
    integers = np.zeros((96, 64), dtype=np.int8)

    with pytest.raises(ModelLoadError, match=r"blk\.0\.ffn_gate\.weight has type I8"):
        convert(tmp_path, tiny_model("llama-gqa"), without=(gate,), extra_tensors={gate: integers})


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf(file, tiny_model("llama-gqa"))
    file.write_bytes(file.read_bytes()[:3000])

    with pytest.raises(ModelLoadError, match="cut short or damaged"):
        write_folder(file, tmp_path, "float32")
