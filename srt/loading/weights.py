"""load_weights: safetensors into a torch model's own memory, tensor by tensor, without a copy.

Memory of another device is filled through a WeightCopier, part by part.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from .safetensors_file import StoredTensor
from .stored_weights import check_names, check_tensor, read_into, stored_tensors

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CONVERT_VALUES = 1 << 21  # values converted at a time where the stored dtype is not the model's


class WeightCopier(Protocol):
    """Takes parts of tensors to a device."""

    def host_buffer(self) -> torch.Tensor:
        """[N] uint8 on the host, to be filled before send()."""
        ...

    def send(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy source [N], the beginning of host_buffer() in any type, to destination [N]."""
        ...

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        ...


def load_weights(
    folder: Path, parameters: Mapping[str, torch.Tensor], copier: WeightCopier | None = None
) -> int:
    """Fill every parameter from the folder's safetensors and return the bytes filled.

    copier None: parameters are on the CPU. Raises ModelLoadError naming the tensor that is missing,
    has no place or has another shape.
    """
    stored = stored_tensors(folder)
    check_names(folder, stored, parameters)
    by_file: dict[Path, list[StoredTensor]] = {}
    for name in parameters:
        check_tensor(stored[name], tuple(parameters[name].shape))
        by_file.setdefault(stored[name].file, []).append(stored[name])
    for file, tensors in by_file.items():
        with file.open("rb", buffering=0) as stream:
            for one in sorted(tensors, key=lambda tensor: tensor.offset):
                if copier is None:
                    _fill(parameters[one.name], one, stream)
                else:
                    _send(parameters[one.name], one, stream, copier)
    if copier is not None:
        copier.finish()
    return sum(parameter.nbytes for parameter in parameters.values())


def _fill(parameter: torch.Tensor, stored: StoredTensor, stream: io.FileIO) -> None:
    flat = parameter.view(-1)
    stored_dtype = _DTYPES[stored.dtype_code]
    stream.seek(stored.offset)
    if stored_dtype == parameter.dtype:
        _read_flat(flat, stored, stream)
        return
    for start in range(0, len(flat), _CONVERT_VALUES):
        part = flat[start : start + _CONVERT_VALUES]
        buffer = torch.empty(len(part), dtype=stored_dtype)
        _read_flat(buffer, stored, stream)
        part.copy_(buffer)


def _send(
    parameter: torch.Tensor, stored: StoredTensor, stream: io.FileIO, copier: WeightCopier
) -> None:
    flat = parameter.view(-1)
    dtype = _DTYPES[stored.dtype_code]
    stream.seek(stored.offset)
    start = 0
    while start < len(flat):
        buffer = copier.host_buffer()
        buffer = buffer[: len(buffer) // dtype.itemsize * dtype.itemsize].view(dtype)
        part = flat[start : start + len(buffer)]
        buffer = buffer[: len(part)]
        _read_flat(buffer, stored, stream)
        copier.send(part, buffer)
        start += len(part)


def _read_flat(flat: torch.Tensor, stored: StoredTensor, stream: io.FileIO) -> None:
    read_into(flat.view(torch.uint8).numpy().data, stored, stream)
