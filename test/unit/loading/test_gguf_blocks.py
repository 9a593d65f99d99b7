"""--quantization gguf: the converted folder holds the file's own blocks, and only the engine's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from support.tiny_gguf import k_quant_blocks, write_gguf
from support.tiny_models import save_tiny_model, tiny_model

from runtime.srt.errors import ConfigError, ModelLoadError
from runtime.srt.loading import gguf_folder
from runtime.srt.loading.gguf_blocks import BLOCK_LAYOUTS, BLOCK_TYPES_FILE, read_block_types
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.resolve import resolve_model
from runtime.srt.loading.stored_weights import stream_weights
from runtime.srt.loading.weights import load_weights
from runtime.srt.models.registry import build_model

GATE, UP = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
KEPT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # those that the gguf package can write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def convert(tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """The same GGUF file as a folder of blocks and as one of float32."""
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny_model("llama-gqa"), **options)
    return resolve_model(str(file), "auto", True), resolve_model(str(file), "float32")


@pytest.mark.parametrize("kind", KEPT)
def test_blocks_stand_for_exactly_the_values_of_the_dequantised_folder(
    kind: str, tmp_path: Path
) -> None:
    blocks, floats = convert(tmp_path, quantization=GGMLQuantizationType[kind])

    values = load_file(floats / "model.safetensors")
    types = read_block_types(blocks)
    assert set(types) == {name for name, value in values.items() if value.dim() == 2}
    assert set(types.values()) == {kind}
    for name, stored in load_file(blocks / "model.safetensors").items():
        if name in types:
            # The order of q and k rows is part of this: llama files interleave them.
            read = gguf.quants.dequantize(stored.numpy(), GGMLQuantizationType[kind])
            np.testing.assert_array_equal(read, values[name].numpy())
        else:
            assert torch.equal(stored, values[name]), name  # vectors, float32


def test_layouts_are_those_of_the_gguf_package() -> None:
    for name, layout in BLOCK_LAYOUTS.items():
        sizes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        assert (layout.num_values, layout.num_bytes) == sizes


@pytest.mark.parametrize("kind", ["F16", "F32"])
def test_types_the_engine_does_not_take_are_stored_as_bfloat16(kind: str, tmp_path: Path) -> None:
    blocks, floats = convert(tmp_path, quantization=GGMLQuantizationType[kind])

    assert read_block_types(blocks) == {}
    values = load_file(floats / "model.safetensors")
    for name, stored in load_file(blocks / "model.safetensors").items():
        expected = values[name].bfloat16() if values[name].dim() == 2 else values[name]
        assert torch.equal(stored, expected), name


def test_gate_and_up_of_different_types_are_stored_as_bfloat16(tmp_path: Path) -> None:
    up = tiny_model("llama-gqa").state_dict()[UP].numpy()
    other = gguf.quants.quantize(up, GGMLQuantizationType.Q8_0)

    blocks, _ = convert(
        tmp_path,
        quantization=GGMLQuantizationType.Q4_0,
        without=("blk.0.ffn_up.weight",),
        raw_tensors={"blk.0.ffn_up.weight": (other, GGMLQuantizationType.Q8_0)},
    )

    assert not {GATE, UP} & set(read_block_types(blocks))
    stored = load_file(blocks / "model.safetensors")
    assert stored[GATE].dtype == stored[UP].dtype == torch.bfloat16


def test_k_quants_are_kept_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    kind = GGMLQuantizationType.Q6_K
    data = k_quant_blocks(256, 256, kind, seed=1)
    name = "blk.1.attn_output.weight"
    model = tiny_model("llama-gqa", hidden_size=256, num_attention_heads=16)
    write_gguf(file, model, without=(name,), raw_tensors={name: (data, kind)})

    folder = resolve_model(str(file), "auto", True)

    stored = load_file(folder / "model.safetensors")["model.layers.1.self_attn.o_proj.weight"]
    np.testing.assert_array_equal(stored.numpy(), data)


def test_blocks_have_a_folder_of_their_own_that_a_second_start_only_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, floats = convert(tmp_path, quantization=GGMLQuantizationType.Q4_0)

    def refuse(*arguments: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(gguf_folder, "write_folder", refuse)
    file = str(tmp_path / "tiny.gguf")
    assert blocks != floats
    assert resolve_model(file, "auto", True) == blocks
    assert resolve_model(str(blocks), "auto", True) == blocks
    assert ModelConfig.load(blocks, {}).dtype == "bfloat16"


def test_a_model_of_floats_has_no_blocks_to_use(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama-gqa")

    with pytest.raises(ConfigError, match=r"--quantization is gguf.*is not a GGUF file"):
        resolve_model(str(tmp_path / "model"), "auto", True)


def test_a_folder_of_blocks_is_no_folder_of_floats(tmp_path: Path) -> None:
    blocks, _ = convert(tmp_path, quantization=GGMLQuantizationType.Q4_0)
    parameters = build_model(ModelConfig.load(blocks, {}), torch.float32).parameters()

    with pytest.raises(ModelLoadError, match="has type U8"):
        load_weights(blocks, parameters)


@pytest.mark.parametrize("wrong", [{GATE: "Q8_0"}, {GATE: "Q4_K"}, {GATE: "Q9"}])
def test_a_wrong_type_beside_the_weights_is_named(wrong: dict[str, str], tmp_path: Path) -> None:
    blocks, _ = convert(tmp_path, quantization=GGMLQuantizationType.Q4_0)
    file = blocks / BLOCK_TYPES_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    parameters = build_model(ModelConfig.load(blocks, {}), torch.bfloat16).parameters()
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}

    with pytest.raises(ModelLoadError, match=GATE):
        list(stream_weights(blocks, shapes, read_block_types(blocks)))
