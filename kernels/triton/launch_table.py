"""Launch parameters by GPU generation: one table instead of autotuning at run time.

The figures follow from shared memory, registers and the matrix unit of a generation, as `make
test-kernels` reads them off the compiled kernels. Where a block would fit in several ways, the one
with more bytes in flight was taken for decode and the larger tile for extend.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeVar

import torch

_Parameters = TypeVar("_Parameters")

_AMPERE, _HOPPER, _BLACKWELL = 80, 90, 100
# Capability 12 has the name of Blackwell, but the shared memory and matrix unit of the older ones.
_FIRST_SMALL_BLACKWELL = 120


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """block_m query rows (heads of a group packed in) meet block_n keys at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# Decode: (block_n, warps, stages) by generation and bytes of a key's head. Small heads take more
# keys at a time, so that about as many bytes are in flight.
_DECODE: dict[int, dict[int, tuple[int, int, int]]] = {
    _AMPERE: {128: (64, 4, 3), 256: (64, 4, 3), 512: (32, 4, 3), 1024: (16, 4, 2)},
    _HOPPER: {128: (128, 4, 3), 256: (64, 4, 3), 512: (32, 4, 3), 1024: (16, 4, 2)},
    _BLACKWELL: {128: (128, 4, 3), 256: (64, 4, 3), 512: (32, 4, 3), 1024: (16, 4, 2)},
}

# Extend: (block_m, block_n, warps, stages) likewise. Loads of keys depend on loads of slots, so two
# stages go to each buffer of keys in flight: five stages are three buffers.
_EXTEND: dict[int, dict[int, tuple[int, int, int, int]]] = {
    _AMPERE: {
        128: (128, 64, 8, 3),
        192: (64, 32, 8, 3),
        256: (64, 32, 4, 3),
        512: (64, 32, 8, 2),
    },
    _HOPPER: {128: (128, 128, 8, 5), 256: (128, 64, 8, 5), 512: (128, 32, 8, 5)},
    _BLACKWELL: {
        128: (128, 128, 8, 3),
        192: (128, 128, 8, 2),
        256: (128, 64, 8, 3),
        512: (128, 32, 8, 3),
    },
}

_FEW_ROWS = 64  # prompts of no more take a tile of that size

# The shared part of a cascade: groups are small, more than 64 rows would mostly be padding.
_PREFIX: dict[int, tuple[int, int, int, int]] = {
    128: (64, 64, 8, 3),
    256: (64, 32, 4, 3),
    512: (64, 32, 8, 3),
}

# float32 is computed without the matrix unit, for exact comparisons rather than for speed.
_EXTEND_F32 = AttentionLaunch(32, 16, 8, 1)
_PREFIX_F32 = AttentionLaunch(32, 16, 4, 1)


@functools.cache
def capability(device: torch.device) -> int:
    """Compute capability as 80, 90, 100, ...; 90 for devices that are no GPU (interpreted)."""
    if device.type != "cuda":
        return _HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def has_fp8_type(device: torch.device) -> bool:
    """Whether kernels may name float8_e4m3fn; on older GPUs they take its bytes apart."""
    return capability(device) >= 89


def decode_launch(
    device: torch.device, head_dim: int, element_bytes: int, tile_rows: int, widens: bool
) -> AttentionLaunch:
    """For decode over heads of head_dim; element_bytes of what the tiles are computed in.

    tile_rows: query heads of a tile. widens: the pool holds fp8, which passes through registers on
    its way to the matrix unit.
    """
    table = _DECODE[_generation(device)]
    block_n, num_warps, num_stages = _for_width(table, head_dim, element_bytes)
    if widens or tile_rows > 32:
        block_n = max(block_n // 2, 16)
    return AttentionLaunch(tile_rows, block_n, num_warps, num_stages)


def extend_launch(
    device: torch.device, head_dim: int, element_bytes: int, packed_rows: int, widens: bool
) -> AttentionLaunch:
    """For extend; packed_rows: the most query rows of one request, times the heads of a group."""
    if element_bytes == 4:
        return _EXTEND_F32
    generation = _generation(device)
    table = _EXTEND[generation]
    block_m, block_n, num_warps, num_stages = _for_width(table, head_dim, element_bytes)
    # Blackwell's accumulators are not in registers: there is room for what passes through them.
    if widens and generation != _BLACKWELL:
        block_n = max(block_n // 2, 16)
    if packed_rows <= _FEW_ROWS < block_m:
        if generation != _AMPERE and head_dim * element_bytes <= 256:
            num_warps = 4  # all that one matrix instruction of 64 rows takes
        return AttentionLaunch(_FEW_ROWS, min(block_n, 64), num_warps, num_stages)
    return AttentionLaunch(block_m, block_n, num_warps, num_stages)


def prefix_launch(
    head_dim: int, element_bytes: int, packed_rows: int, widens: bool
) -> AttentionLaunch:
    """For the shared part of a cascade; packed_rows: rows of all groups times heads of a group."""
    if element_bytes == 4:
        return _PREFIX_F32
    block_m, block_n, num_warps, num_stages = _for_width(_PREFIX, head_dim, element_bytes)
    if packed_rows <= 16:
        return AttentionLaunch(16, block_n, 4, num_stages)
    if widens and block_n < 64:
        block_n, num_warps = 16, 8
    return AttentionLaunch(block_m, block_n, num_warps, num_stages)


def _generation(device: torch.device) -> int:
    number = capability(device)
    if number < _HOPPER or number >= _FIRST_SMALL_BLACKWELL:
        return _AMPERE
    return _HOPPER if number < _BLACKWELL else _BLACKWELL


def _for_width(table: dict[int, _Parameters], head_dim: int, element_bytes: int) -> _Parameters:
    for most_bytes, parameters in table.items():
        if head_dim * element_bytes <= most_bytes:
            return parameters
    widest = max(table) // element_bytes
    raise ValueError(
        f"head_dim {head_dim} is not supported by the triton kernels, at most {widest}"
    )
