"""Safetensors fill a model exactly, or the tensor that is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import edit_config, save_tiny_model

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.weights import load_weights
from runtime.srt.models.registry import build_model

K_PROJ = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path, "llama-gqa")
    return tmp_path


def load(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    parameters = build_model(ModelConfig.load(folder, {}), dtype).parameters()
    num_bytes = load_weights(folder, parameters)
    assert num_bytes == sum(parameter.nbytes for parameter in parameters.values())
    return parameters


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of the stored file; __ stands for a dot."""
    file = folder / "model.safetensors"
    stored = {name: value.clone() for name, value in load_file(file).items()}
    for name, value in tensors.items():
        stored.pop(name.replace("__", "."), None)
        if value is not None:
            stored[name.replace("__", ".")] = value
    save_file(stored, file)


def test_every_parameter_gets_its_stored_value(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")

    loaded = load(folder)

    assert loaded.keys() == stored.keys()
    assert all(torch.equal(loaded[name], stored[name]) for name in stored)


@pytest.mark.parametrize("stored_dtype", [torch.float64, torch.float32, torch.float16])
def test_other_stored_dtypes_are_converted(folder: Path, stored_dtype: torch.dtype) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({n: v.to(stored_dtype) for n, v in stored.items()}, folder / "model.safetensors")

    loaded = load(folder, torch.bfloat16)

    for name, value in stored.items():
        assert torch.equal(loaded[name], value.to(stored_dtype).to(torch.bfloat16)), name


def test_sharded_checkpoints_are_read_through_their_index(folder: Path) -> None:
    whole = folder / "model.safetensors"
    stored = load_file(whole)
    names = sorted(stored)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: stored[name] for name in part}, folder / file)
    whole.unlink()
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    # A file that the index does not name does not count.
    save_file({"stray": torch.zeros(1)}, folder / "stray.safetensors")

    loaded = load(folder)

    assert all(torch.equal(loaded[name], stored[name]) for name in stored)


def test_a_shard_that_does_not_exist_is_named(folder: Path) -> None:
    index = {"weight_map": {K_PROJ: "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ModelLoadError, match=r"gone\.safetensors.*does not exist"):
        load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change(folder, model__layers__1__self_attn__k_proj__weight=None)

    with pytest.raises(ModelLoadError, match=f"tensor {K_PROJ} is missing"):
        load(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)

    with pytest.raises(ModelLoadError, match="model.layers.2.* and 6 more are missing"):
        load(folder)


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__q_norm__weight=torch.ones(16))

    with pytest.raises(ModelLoadError, match=r"q_norm\.weight is in the checkpoint without"):
        load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    change(folder, model__layers__1__self_attn__k_proj__weight=torch.zeros(16, 64))

    with pytest.raises(ModelLoadError, match=rf"{K_PROJ} has shape \[16, 64\].*\[32, 64\]"):
        load(folder)


def test_a_type_that_is_not_served_is_named(folder: Path) -> None:
    change(
        folder, model__layers__1__self_attn__k_proj__weight=torch.zeros(32, 64, dtype=torch.int8)
    )

    with pytest.raises(ModelLoadError, match=f"{K_PROJ} has type I8"):
        load(folder)


def test_leftovers_of_old_checkpoints_are_ignored(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))

    load(folder)


def test_a_tied_model_ignores_a_stored_output_matrix(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-tied")
    change(tmp_path, lm_head__weight=torch.zeros(128, 64))

    assert "lm_head.weight" not in load(tmp_path)


def test_a_file_cut_short_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(ModelLoadError, match="is cut short: tensor"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0not json at all.", b"\xff" * 64])
def test_a_damaged_file_is_named(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)

    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load(folder)


def test_a_folder_without_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelLoadError, match="holds no .*safetensors file"):
        load(folder)
