"""Quantised weights in the engine: near the exact model, reproducible to the bit, and small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from support.model_rig import ModelRig
from support.tiny_gguf import k_quant_blocks, write_gguf
from support.tiny_models import VOCAB_SIZE, random_prompt, save_tiny_model, tiny_model
from transformers import PreTrainedModel

from runtime.kernels.cpu.build import NoCompiler
from runtime.srt.errors import ConfigError, ModelLoadError
from runtime.srt.execution import kv_budget, selection
from runtime.srt.execution.weight_forms import plan_weight_forms, total_bytes
from runtime.srt.loading.gguf_blocks import BLOCK_LAYOUTS
from runtime.srt.loading.gguf_folder import write_folder

Q4_0, Q5_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q5_0
Q8_0, Q6_K = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q6_K
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
FORMS = [*KINDS, "w8a8", "w8a16"]
# Of full size in every dimension that blocks of 256 divide.
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 16}

# Relative error of logits against the float32 model of the same values. Rounding 32 normal inputs
# to 8 bits of the largest, 2.4 deviations, makes an error of 2.4 / 127 / sqrt(12) = 0.55 % in a
# product; w8a8 rounds inputs and weights by whole rows, 0.9 %, and w8a16 the weights alone, 0.65 %.
# Nine products follow each other, sqrt(9); softmax and the tails of silu * up double it.
TOLERANCES = dict.fromkeys(KINDS, 0.035) | {"w8a8": 0.055, "w8a16": 0.04}


def sized_model(variant: str) -> PreTrainedModel:
    """A tiny model whose scores and logits are of ordinary size, so no rounding is amplified."""
    model = tiny_model(variant, **SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(0.4)
    return model


def converted(file: Path, dtype: str, keep_blocks: bool = False) -> Path:
    """The folder made of a GGUF file, beside it."""
    folder = file.with_name(f"{file.stem}-{dtype}-{keep_blocks}")
    folder.mkdir()
    write_folder(file, folder, dtype, keep_blocks)
    return folder


def write_model(file: Path, kind: str, variant: str) -> None:
    """A GGUF file with every matrix of one type."""
    model = sized_model(variant)
    quantization = GGMLQuantizationType[kind]
    if not kind.endswith("_K"):
        write_gguf(file, model, quantization=quantization)
        return
    write_gguf(file.with_name("names.gguf"), model)
    matrices = [
        (one.name, int(one.shape[1]), int(one.shape[0]))
        for one in gguf.GGUFReader(file.with_name("names.gguf")).tensors
        if len(one.shape) == 2
    ]
    raw = {
        name: (k_quant_blocks(rows, cols, quantization, seed), quantization)
        for seed, (name, rows, cols) in enumerate(matrices)
    }
    write_gguf(file, model, without=tuple(raw), raw_tensors=raw)


def folders(tmp_path: Path, form: str, variant: str = "llama-gqa") -> tuple[Path, Path, str]:
    """The folder to serve, the float32 folder of the same values, and --quantization."""
    if form.startswith("w8"):
        sized_model(variant).save_pretrained(tmp_path)
        return tmp_path, tmp_path, form
    file = tmp_path / "tiny.gguf"
    write_model(file, form, variant)
    return converted(file, "bfloat16", True), converted(file, "float32"), "gguf"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", ["llama-gqa", "llama-tied"])
def test_logits_are_near_those_of_the_float32_model(
    form: str, variant: str, tmp_path: Path
) -> None:
    served, exact, quantization = folders(tmp_path, form, variant)
    prompts = {row: random_prompt(length, seed=length) for row, length in enumerate((1, 20, 45))}

    logits = ModelRig(served, quantization=quantization, attention_backend="auto").logits(prompts)

    expected = ModelRig(exact, dtype="float32").logits(prompts)
    error = float((logits - expected).norm() / expected.norm())
    assert error < TOLERANCES[form]


# Every kernel; the types left out share theirs with one of these.
@pytest.mark.parametrize("form", ["Q4_0", "Q4_1", "Q8_0", "Q5_K", "Q6_K", "w8a8", "w8a16"])
def test_a_rows_logits_are_the_same_bits_in_any_company(form: str, tmp_path: Path) -> None:
    served, _, quantization = folders(tmp_path, form)
    prompt = random_prompt(70, seed=1)
    neighbours = {row: random_prompt(1 + 3 * row % 60, seed=row) for row in range(1, 38)}

    def fresh(threads: int) -> ModelRig:
        return ModelRig(
            served, 40, threads=threads, quantization=quantization, attention_backend="auto"
        )

    alone = fresh(1).logits({0: prompt})

    for threads in (1, 2):
        assert torch.equal(fresh(threads).logits({**neighbours, 0: prompt})[-70:], alone)
        rig = fresh(threads)
        for cached in (1, 7, 31, 32, 33, 64, 69):
            rig.num_cached = [0] * len(rig.num_cached)
            first = rig.logits({0: prompt[:cached]})
            rest = rig.logits({5: neighbours[5], 0: prompt[cached:]})[len(neighbours[5]) :]
            assert torch.equal(torch.cat([first, rest]), alone), cached


@pytest.mark.parametrize("form", FORMS)
def test_planned_bytes_are_those_of_the_engine(form: str, tmp_path: Path) -> None:
    served, _, quantization = folders(tmp_path, form, "llama-tied")

    rig = ModelRig(served, quantization=quantization, attention_backend="auto")

    forms = plan_weight_forms(served, rig.config, "bfloat16", quantization)
    vectors = sum(form.num_bytes for form in forms.values() if len(form.shape) == 1)
    assert total_bytes(forms) - vectors == rig.executor.weight_bytes
    assert rig.executor.weight_form == form


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_take_the_memory_they_take_in_the_file(kind: str, tmp_path: Path) -> None:
    served, _, _ = folders(tmp_path, kind, "llama-tied")
    d, i, kv = SIZES["hidden_size"], SIZES["intermediate_size"], 2 * 16
    num_values = VOCAB_SIZE * d + 2 * (2 * d * d + 2 * d * kv + 3 * d * i)

    rig = ModelRig(served, quantization="gguf", attention_backend="auto")

    # A tied embedding counts once: its blocks are the head too.
    layout = BLOCK_LAYOUTS[kind]
    assert rig.executor.weight_bytes == num_values // layout.num_values * layout.num_bytes


def test_the_kv_pool_is_planned_beside_the_quantised_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _, _ = folders(tmp_path, "Q4_0", "llama-tied")
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda: 2_000_000)

    def load(folder: Path, **args: Any) -> ModelRig:
        return ModelRig(folder, 1, max_tokens=64, attention_backend="auto", **args)

    assert load(served, quantization="gguf").executor.weight_bytes < 1_000_000
    # As bf16 the same weights take 2.4 MB.
    with pytest.raises(ConfigError, match="not even the weights fit"):
        load(converted(tmp_path / "tiny.gguf", "bfloat16"))


def test_files_with_several_types_are_served(tmp_path: Path) -> None:
    model = sized_model("llama-gqa")
    head = gguf.quants.quantize(model.get_parameter("lm_head.weight").detach().numpy(), Q8_0)
    down = model.get_parameter("model.layers.0.mlp.down_proj.weight").detach().numpy()
    raw = {
        "output.weight": (head, Q8_0),
        "blk.0.ffn_down.weight": (gguf.quants.quantize(down, Q5_0), Q5_0),
        "blk.1.attn_q.weight": (k_quant_blocks(256, 256, Q6_K, seed=3), Q6_K),
    }
    file = tmp_path / "mixed.gguf"
    write_gguf(file, model, quantization=Q4_0, without=tuple(raw), raw_tensors=raw)
    prompt = random_prompt(40, seed=2)

    served = converted(file, "bfloat16", True)
    rig = ModelRig(served, quantization="gguf", attention_backend="auto")

    assert rig.executor.weight_form == "Q4_0 + Q5_0 + Q6_K + Q8_0"
    expected = ModelRig(converted(file, "float32"), dtype="float32").logits({0: prompt})
    error = float((rig.logits({0: prompt}) - expected).norm() / expected.norm())
    assert error < TOLERANCES["Q4_0"]


def test_a_float_checkpoint_of_any_dtype_can_be_quantised_at_load(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "f32", "qwen3")
    save_tiny_model(tmp_path / "f16", "qwen3", dtype=torch.float16)
    prompt = random_prompt(40, seed=4)

    for folder in (tmp_path / "f32", tmp_path / "f16"):
        rig = ModelRig(folder, quantization="w8a8", attention_backend="auto")
        expected = ModelRig(folder, dtype="float32").logits({0: prompt})
        assert rig.executor.dtype == "bfloat16"
        error = float((rig.logits({0: prompt}) - expected).norm() / expected.norm())
        assert error < TOLERANCES["w8a8"]


def test_without_a_compiler_quantised_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model(tmp_path, "llama-gqa")

    def no_compiler(*arguments: object) -> None:
        raise NoCompiler("no C++ compiler found")

    monkeypatch.setattr(selection, "load_native_model", no_compiler)

    with pytest.raises(ConfigError, match=r"--quantization is w8a8.*no C\+\+ compiler"):
        ModelRig(tmp_path, quantization="w8a8", attention_backend="auto")


def test_a_model_that_only_torch_computes_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama-biases")

    with pytest.raises(ConfigError, match=r"--quantization is w8a8.*does not compute"):
        ModelRig(tmp_path, quantization="w8a8", attention_backend="auto")


def test_flag_and_folder_must_agree(tmp_path: Path) -> None:
    served, exact, _ = folders(tmp_path, "Q8_0")

    with pytest.raises(ConfigError, match="are floats"):
        ModelRig(exact, quantization="gguf", attention_backend="auto")
    with pytest.raises(ModelLoadError, match="holds GGUF blocks, and --quantization is none"):
        ModelRig(served, attention_backend="auto")
