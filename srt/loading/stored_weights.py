"""Weights as they are stored: a folder's safetensors checked against a model, and streamed.

Imports no torch. Bytes are read from the file, not mapped: the pages of a mapping would count as
ours until it is closed, twice the weights at the worst moment.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelLoadError
from .gguf_blocks import BLOCK_LAYOUTS
from .safetensors_file import StoredTensor, read_header

# Bytes of a value, for the float types that are served.
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# numpy has no bfloat16: its bits come as uint16. U8 holds GGUF blocks.
_NUMPY_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1"}
# Tensors that old checkpoints carry although they follow from the config.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def stream_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    block_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield every tensor of shapes from the folder's safetensors, one at a time, as it is stored.

    For whoever packs weights into a form of its own. bfloat16 comes as its bits in uint16, float64
    as float32; a matrix [N, K] named in block_types as its GGUF blocks, uint8 [N, bytes of a row].
    An array is valid until the next is asked for: they share one buffer. Raises ModelLoadError
    naming the tensor that is missing, has no place or has another shape.
    """
    stored = stored_tensors(folder)
    check_names(folder, stored, shapes)
    for name, shape in shapes.items():
        if block_types and name in block_types:
            _check_blocks(stored[name], shape, block_types[name])
        else:
            check_tensor(stored[name], shape)
    wanted = sorted((stored[name] for name in shapes), key=lambda t: (t.file, t.offset))
    # A fresh array for each would cost a page fault every 4 KiB.
    buffer = np.empty(max((one.num_bytes for one in wanted), default=0), dtype=np.uint8)
    stream: io.FileIO | None = None
    try:
        for one in wanted:
            if stream is None or stream.name != one.file:
                if stream is not None:
                    stream.close()
                stream = io.FileIO(one.file)
            values = buffer[: one.num_bytes]
            stream.seek(one.offset)
            read_into(values.data, one, stream)
            array = values.view(_NUMPY_DTYPES[one.dtype_code]).reshape(one.shape)
            yield one.name, array.astype(np.float32) if one.dtype_code == "F64" else array
    finally:
        if stream is not None:
            stream.close()


def read_into(left: memoryview, stored: StoredTensor, stream: io.FileIO) -> None:
    """Fill left from the stream's position. Raises ModelLoadError where the file ends before."""
    # One read call returns at most 2 GiB, and may return less.
    while left:
        num_read = stream.readinto(left)
        if not num_read:
            raise ModelLoadError(f"{stored.file} is cut short in tensor {stored.name}")
        left = left[num_read:]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Name -> place of every tensor in the folder's files. Raises ModelLoadError."""
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


def check_names(
    folder: Path, stored: Mapping[str, StoredTensor], parameters: Mapping[str, object]
) -> None:
    """Raise ModelLoadError unless the checkpoint holds parameters and nothing unknown."""
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


def check_tensor(stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Raise ModelLoadError unless stored is a float tensor of this shape."""
    if stored.dtype_code not in ITEM_BYTES:
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} has type {stored.dtype_code}, which is not "
            f"served; known are {', '.join(ITEM_BYTES)}"
        )
    if stored.shape != shape:
        raise ModelLoadError(
            f"{stored.file}: tensor {stored.name} has shape {list(stored.shape)}, the config "
            f"makes it {list(shape)}"
        )
    if stored.num_bytes != math.prod(shape) * ITEM_BYTES[stored.dtype_code]:
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
