"""load_weights: safetensors into a model's own memory, tensor by tensor, without a second copy.

Bytes are read from the file straight to their final place. Mapping the file instead would count its
pages as ours until it is closed: twice the weights at the worst moment.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from ..errors import ModelLoadError
from .gguf_blocks import BLOCK_LAYOUTS
from .safetensors_file import StoredTensor, read_header

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_STORED_DTYPES = {**_DTYPES, "U8": torch.uint8}  # U8 holds GGUF blocks
# Tensors that old checkpoints carry although they follow from the config.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_CONVERT_VALUES = 1 << 21  # values converted at a time where the stored dtype is not the model's


def load_weights(folder: Path, parameters: Mapping[str, torch.Tensor]) -> int:
    """Fill every parameter from the folder's safetensors and return the bytes filled.

    Raises ModelLoadError naming the tensor that is missing, has no place or has another shape.
    """
    stored = _stored_tensors(folder)
    _check_names(folder, stored, parameters)
    by_file: dict[Path, list[StoredTensor]] = {}
    for name in parameters:
        _check_tensor(stored[name], tuple(parameters[name].shape))
        by_file.setdefault(stored[name].file, []).append(stored[name])
    for file, tensors in by_file.items():
        with file.open("rb", buffering=0) as stream:
            for one in sorted(tensors, key=lambda tensor: tensor.offset):
                _fill(parameters[one.name], one, stream)
    return sum(parameter.nbytes for parameter in parameters.values())


def stream_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    block_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of shapes from the folder's safetensors, one at a time, as it is stored.

    For whoever packs weights into a form of its own. A matrix [N, K] named in block_types comes as
    its GGUF blocks, uint8 [N, bytes of a row]. Raises ModelLoadError as load_weights does.
    """
    stored = _stored_tensors(folder)
    _check_names(folder, stored, shapes)
    for name, shape in shapes.items():
        if block_types and name in block_types:
            _check_blocks(stored[name], shape, block_types[name])
        else:
            _check_tensor(stored[name], shape)
    for one in sorted((stored[name] for name in shapes), key=lambda t: (t.file, t.offset)):
        tensor = torch.empty(one.shape, dtype=_STORED_DTYPES[one.dtype_code])
        with one.file.open("rb", buffering=0) as stream:
            _fill(tensor, one, stream)
        yield one.name, tensor.float() if tensor.dtype == torch.float64 else tensor


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{index} cannot be read: {error!r}") from error
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(
            f"{folder} holds no *.safetensors file; convert other weight formats to it first"
        )
    stored: dict[str, StoredTensor] = {}
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file}, named in {index.name}, does not exist")
        stored.update((one.name, one) for one in read_header(file))
    return stored


def _check_names(
    folder: Path, stored: Mapping[str, StoredTensor], parameters: Mapping[str, object]
) -> None:
    missing = [name for name in parameters if name not in stored]
    if missing:
        raise ModelLoadError(f"{folder}: {_listed(missing)} missing from the checkpoint")
    # A tied checkpoint may carry its output matrix all the same.
    ignored = {"lm_head.weight"} if "lm_head.weight" not in parameters else set()
    unexpected = [
        name
        for name in stored
        if name not in parameters and name not in ignored and not _IGNORED.fullmatch(name)
    ]
    if unexpected:
        raise ModelLoadError(
            f"{folder}: {_listed(unexpected)} in the checkpoint without a place in the model"
        )


def _listed(names: list[str]) -> str:
    more = (
        f" and {len(names) - 3} more are"
        if len(names) > 3
        else " is"
        if len(names) == 1
        else " are"
    )
    kind = "tensor " if len(names) == 1 else "tensors "
    return kind + ", ".join(names[:3]) + more


def _check_tensor(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    if stored.dtype_code not in _DTYPES:
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} has type {stored.dtype_code}, which is not "
            f"served; known are {', '.join(_DTYPES)}"
        )
    if stored.shape != shape:
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} has shape {list(stored.shape)}, the config "
            f"makes it {list(shape)}"
        )
    if stored.num_bytes != math.prod(shape) * _DTYPES[stored.dtype_code].itemsize:
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} has {stored.num_bytes} bytes, not what its shape "
            "and type take"
        )


def _check_blocks(stored: StoredTensor, shape: tuple[int, ...], block_type: str) -> None:
    rows, cols = shape
    expected = (rows, BLOCK_LAYOUTS[block_type].row_bytes(cols))
    if (
        stored.dtype_code != "U8"
        or stored.shape != expected
        or stored.num_bytes != expected[0] * expected[1]
        or cols % BLOCK_LAYOUTS[block_type].num_values
    ):
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} is {stored.dtype_code} {list(stored.shape)}; as "
            f"{block_type} blocks of a matrix {list(shape)} it must be U8 {list(expected)}"
        )


def _fill(parameter: torch.Tensor, stored: StoredTensor, stream: io.FileIO) -> None:
    flat = parameter.view(-1)
    stored_dtype = _STORED_DTYPES[stored.dtype_code]
    stream.seek(stored.offset)
    if stored_dtype == parameter.dtype:
        _read_into(flat, stored, stream)
        return
    for start in range(0, len(flat), _CONVERT_VALUES):
        part = flat[start : start + _CONVERT_VALUES]
        buffer = torch.empty(len(part), dtype=stored_dtype)
        _read_into(buffer, stored, stream)
        part.copy_(buffer)


def _read_into(flat: torch.Tensor, stored: StoredTensor, stream: io.FileIO) -> None:
    # One read call returns at most 2 GiB, and may return less.
    left = flat.view(torch.uint8).numpy().data
    while left:
        num_read = stream.readinto(left)
        if not num_read:
            raise ModelLoadError(f"{stored.file} is cut short in tensor {stored.name}")
        left = left[num_read:]
