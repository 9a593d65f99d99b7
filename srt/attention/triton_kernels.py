"""TritonKernels: the kernels that TritonAttention calls, loaded together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.kernels.kernel_modules import kernel_module


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """Named as in runtime.kernels.triton, where their arguments are described."""

    decode_attention: Callable[..., None]
    choose_num_splits: Callable[[int, int, int, int, int], int]
    workspace_floats: Callable[[int, int, int, int], int]
    extend_attention: Callable[..., None]
    shared_prefix_attention: Callable[..., None]
    prefix_groups: Callable[..., Any]  # PrefixGroups(rows, cu_rows, prefix_lens)
    store_kv: Callable[..., None]


def load_triton_kernels() -> TritonKernels:
    """Raises KernelsMissing."""
    decode: Any = kernel_module("decode_attention")
    shared: Any = kernel_module("shared_prefix")
    return TritonKernels(
        decode_attention=decode.decode_attention,
        choose_num_splits=decode.choose_num_splits,
        workspace_floats=kernel_module("merge_states").workspace_floats,
        extend_attention=kernel_module("extend_attention").extend_attention,
        shared_prefix_attention=shared.shared_prefix_attention,
        prefix_groups=shared.PrefixGroups,
        store_kv=kernel_module("store_kv").store_kv,
    )
