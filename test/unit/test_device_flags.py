"""Flags that exclude each other through the device are refused, naming both."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.srt.errors import ConfigError
from runtime.srt.server_args import ServerArgs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attention_backend": "triton"}, "--attention-backend is triton, .* set --device cuda"),
        ({"attention_backend": "flashinfer", "device": "cpu"}, "--device is cpu; set --device"),
        ({"device": "cuda", "attention_backend": "cpu_native"}, "set the backend to triton"),
        ({"device": "cuda", "quantization": "w8a8"}, "--quantization is w8a8, .*--device is cuda"),
        ({"device": "cuda", "kv_cache_dtype": "int8"}, "--kv-cache-dtype is int8, .*fp8_e4m3"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype is fp8_e4m3, which needs a GPU"),
        (
            {
                "device": "cuda",
                "kv_cache_dtype": "fp8_e4m3",
                "attention_backend": "torch_reference",
            },
            "--kv-cache-dtype is fp8_e4m3, and --attention-backend is torch_reference",
        ),
        (
            {"device": "cuda", "cuda_graph_max_rows": 0},
            "max-rows is 0; .* set --disable-cuda-graph",
        ),
        ({"device": "tpu"}, "--device is 'tpu'; choose from auto, cpu, cuda"),
    ],
)
def test_a_combination_that_cannot_be_served_is_refused(
    fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        ServerArgs(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"device": "cuda"},
        {"device": "cuda", "attention_backend": "flashinfer", "disable_cuda_graph": True},
        {"device": "cuda", "attention_backend": "torch_reference"},
        {"device": "cuda", "kv_cache_dtype": "fp8_e4m3", "deterministic": True},
        {"deterministic": True},
    ],
)
def test_a_combination_that_can_be_served_is_taken(fields: dict[str, Any]) -> None:
    args = ServerArgs(**fields)
    assert {name: getattr(args, name) for name in fields} == fields
