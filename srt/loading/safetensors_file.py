"""The safetensors container: headers read and files written as a stream, without torch.

The safetensors package maps a file or builds it in memory as a whole; both would hold a second copy
of the weights. The format is eight bytes of header length, a JSON header, then the tensors' bytes.
Source: the format description of the safetensors project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelLoadError

_MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor's bytes stand; offset counts from the start of the file."""

    name: str
    file: Path
    dtype_code: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(file: Path) -> list[StoredTensor]:
    """List the tensors of a file. Raises ModelLoadError if it is damaged or cut short."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, size - 8):
            raise ModelLoadError(f"{file} is not a safetensors file, or is cut short")
        try:
            header = json.loads(stream.read(header_bytes))
            header.pop("__metadata__", None)
            return [_stored(file, size, 8 + header_bytes, *item) for item in header.items()]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelLoadError(f"{file} has a damaged safetensors header: {error}") from error


def _stored(
    file: Path, file_bytes: int, data_start: int, name: str, entry: dict[str, Any]
) -> StoredTensor:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end or data_start + end > file_bytes:
        raise ModelLoadError(f"{file} is cut short: tensor {name} ends after the file does")
    shape = tuple(int(size) for size in entry["shape"])
    return StoredTensor(name, file, str(entry["dtype"]), shape, data_start + start, end - start)


@dataclass(frozen=True, slots=True)
class TensorStream:
    """A tensor to write: its values come in order as flat arrays, uint8 for uint8, else float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: Iterator[np.ndarray[Any, Any]]


def write_safetensors(file: Path, tensors: Iterable[TensorStream]) -> None:
    """Write tensors, each as its dtype, holding one chunk in memory at a time."""
    # Wide items first: every tensor then starts at a multiple of its item size.
    streams = sorted(tensors, key=lambda one: -_ITEM_BYTES[_CODES[one.dtype]])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in streams:
        start, end = end, end + _num_values(one.shape) * _ITEM_BYTES[_CODES[one.dtype]]
        header[one.name] = {
            "dtype": _CODES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data must start at a multiple of 8
    with file.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little"))
        stream.write(encoded)
        for one in streams:
            for chunk in one.chunks:
                stream.write(_encoded(chunk, one.dtype).data)
        written = stream.tell()
    expected = 8 + len(encoded) + end
    assert written == expected, f"wrote {written} bytes of {file}, expected {expected}"


def _num_values(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _encoded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "uint8":
        return np.ascontiguousarray(values)
    if dtype == "float32":
        return np.ascontiguousarray(values, dtype="<f4")
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype("<f2")
    return _bfloat16_bits(values)


def _bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round to nearest, ties to even, as uint16 bit patterns; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, (bits >> 16) | np.uint32(0x40), rounded).astype("<u2")
