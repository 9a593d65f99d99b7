"""The bytes of a GGUF file's tensors, without its vocabulary and other metadata."""

from __future__ import annotations

from pathlib import Path


def tensor_bytes(file: Path) -> int:
    """Return how many bytes one pass over all tensors of file reads."""
    from gguf import GGUFReader

    return sum(int(tensor.n_bytes) for tensor in GGUFReader(file).tensors)
