"""Models with random weights in the shapes of known ones, and executors for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from runtime.srt.execution.cuda_executor import CudaExecutor, DeviceStreams
from runtime.srt.execution.cuda_graphs import DecodeGraphs
from runtime.srt.execution.device_sampler import DeviceSampler
from runtime.srt.execution.device_slot_table import DeviceSlotTable
from runtime.srt.execution.gpu_parts import DeviceParts, gpu_parts
from runtime.srt.execution.weight_upload import WeightUpload
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.weights import load_weights
from runtime.srt.memory.kv_pool import KvPool
from runtime.srt.models.causal_lm import CausalLM
from runtime.srt.models.registry import build_model
from runtime.srt.server_args import ServerArgs

from .bench import Bench

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **_LLAMA,
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    "SmolLM2-135M": {
        **_LLAMA,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        **_LLAMA,
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
    },
}


def write_config(folder: Path, shape: str) -> ModelConfig:
    """A folder with the config.json of a shape."""
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    return ModelConfig.load(folder, {})


def write_model(folder: Path, shape: str) -> ModelConfig:
    """write_config, and random weights in float32: the same ones each time."""
    config = write_config(folder, shape)
    parameters = build_model(config, torch.float32).parameters()
    fill(parameters, torch.Generator().manual_seed(1))
    save_file({name: one.clone() for name, one in parameters.items()}, folder / "model.safetensors")
    return config


def fill(parameters: dict[str, torch.Tensor], random: torch.Generator) -> None:
    """Norms near one; matrices that keep the size of what they multiply."""
    for name, parameter in parameters.items():
        if parameter.ndim == 1:
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.1, generator=random)
        else:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=random)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on the device with its KV pool, from which executors are made."""

    bench: Bench
    args: ServerArgs
    streams: DeviceStreams
    parts: DeviceParts
    model: CausalLM
    kv_pool: KvPool
    max_rows: int

    @staticmethod
    def load(
        bench: Bench, config: ModelConfig, folder: Path | None, args: ServerArgs, max_rows: int
    ) -> LoadedModel:
        """The weights of folder; random ones where it is None."""
        dtype = str(bench.dtype).removeprefix("torch.")
        streams = DeviceStreams(bench.device)
        parts = gpu_parts(bench.device, config, args, dtype)
        with bench.place:
            model = build_model(config, bench.dtype, parts.ops)
        if folder is not None:
            load_weights(folder, model.parameters(), WeightUpload(bench.device, streams.copy))
        else:
            fill(model.parameters(), torch.Generator(bench.place).manual_seed(1))
        pool_tokens = args.max_total_tokens
        assert pool_tokens is not None
        pool = KvPool(config, pool_tokens + 1, bench.dtype, bench.place)
        for layer in range(config.num_layers):
            pool.k[layer].normal_()
            pool.v[layer].normal_()
        return LoadedModel(bench, args, streams, parts, model, pool, max_rows)

    @property
    def matrix_elements(self) -> int:
        """Of the layers' matrices: what every token is multiplied with."""
        return sum(
            one.numel()
            for name, one in self.model.parameters().items()
            if one.ndim == 2 and "layers." in name
        )

    @property
    def read_bytes(self) -> int:
        """Weights that a decode step reads: all but the embeddings, or all of them if tied."""
        head = self.model.config.vocab_size * self.model.config.hidden_size
        return (self.matrix_elements + head) * self.model.dtype.itemsize

    def executor(self, has_graphs: bool) -> CudaExecutor:
        """With graphs for up to max_rows rows, or without any."""
        config, device = self.model.config, self.bench.device
        columns = config.served_context(self.args.context_length)
        table = DeviceSlotTable(self.max_rows + 1, columns, self.bench.place)
        attention = self.parts.make_attention(
            self.max_rows, self.streams.copy, self.streams.forward
        )
        graphs = None
        if has_graphs:
            graphs = DecodeGraphs(
                device,
                self.streams.forward,
                self.model,
                self.kv_pool,
                attention,
                table.slots,
                self.max_rows,
            )
            graphs.capture()
        sampler = DeviceSampler(config.vocab_size, self.parts.draw, self.parts.logit_ops)
        return CudaExecutor(
            self.streams,
            self.model,
            self.kv_pool,
            attention,
            table,
            sampler,
            self.parts.relay_ops,
            self.read_bytes,
            graphs,
        )
