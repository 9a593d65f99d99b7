"""Devices and models by name.

Bandwidths and peaks of GPUs are data sheet figures for dense bf16 times what large kernels commonly
attain of them, ATTAINED_BANDWIDTH and ATTAINED_PEAK; the overhead is a guess at what a step costs
besides. They are assumptions, not measurements: calibrate where absolute times matter. cpu is the
machine of benchmark/README.md: two cores with AMX, as measured there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from serving.work import ModelShape

from .cost_model import Device, Model

ATTAINED_BANDWIDTH = 0.85
ATTAINED_PEAK = 0.6
GPU_OVERHEAD_SECONDS = 1e-3

DEVICES = {
    "h100": Device(
        "h100", 80e9, 3.35e12 * ATTAINED_BANDWIDTH, 989e12 * ATTAINED_PEAK, GPU_OVERHEAD_SECONDS
    ),
    "h200": Device(
        "h200", 141e9, 4.8e12 * ATTAINED_BANDWIDTH, 989e12 * ATTAINED_PEAK, GPU_OVERHEAD_SECONDS
    ),
    "cpu": Device("cpu", 4e9, 14e9, 1e12, 5e-4),
}

MODELS = {
    "smollm2-135m": Model(
        "smollm2-135m",
        ModelShape(
            hidden=576,
            intermediate=1536,
            layers=30,
            heads=9,
            kv_heads=3,
            head_dim=64,
            vocabulary=49_152,
        ),
        tied_embeddings=True,
        context_length=8_192,
    ),
    "llama-3-8b": Model(
        "llama-3-8b",
        ModelShape(
            hidden=4096,
            intermediate=14_336,
            layers=32,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocabulary=128_256,
        ),
        tied_embeddings=False,
        context_length=32_768,
    ),
    "llama-3-70b": Model(
        "llama-3-70b",
        ModelShape(
            hidden=8192,
            intermediate=28_672,
            layers=80,
            heads=64,
            kv_heads=8,
            head_dim=128,
            vocabulary=128_256,
        ),
        tied_embeddings=False,
        context_length=32_768,
        num_devices=4,
    ),
}


def find_model(name: str, num_devices: int | None) -> Model:
    """Return a preset, or the model whose config.json name is; raises ValueError or OSError."""
    if name in MODELS:
        model = MODELS[name]
    elif name.endswith(".json"):
        model = _from_config(Path(name))
    else:
        raise ValueError(f"model {name!r} is none of {', '.join(MODELS)} nor a config.json file")
    return model if num_devices is None else replace(model, num_devices=num_devices)


def _from_config(file: Path) -> Model:
    config = json.loads(file.read_text(encoding="utf-8"))
    return Model(
        file.stem,
        ModelShape.from_config(file),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        context_length=int(config["max_position_embeddings"]),
    )
