"""A GGUF file opened for reading, with typed look-ups in its metadata that name file and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from ..errors import ModelLoadError
from .config_fields import Fields


def open_gguf(file: Path) -> gguf.GGUFReader:
    """Map the file. Raises ModelLoadError if it is damaged or one of several parts."""
    try:
        reader = gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise ModelLoadError(
            f"{file} cannot be read as a GGUF file; it may be cut short or damaged: {error}"
        ) from error
    split = reader.get_field("split.count")
    if split is not None and split.contents() > 1:
        raise ModelLoadError(
            f"{file} is one of {split.contents()} parts; merge them first, with "
            "llama-gguf-split --merge"
        )
    return reader


class Metadata(Fields):
    """The metadata of one file; own(name) is the key under the architecture's prefix."""

    def __init__(self, reader: gguf.GGUFReader, source: str) -> None:
        # Arrays (vocabulary, merges) are the tokenizer's business and slow to decode.
        scalars: dict[str, Any] = {}
        self.array_names: set[str] = set()
        for key, field in reader.fields.items():
            if field.types and field.types[0] == gguf.GGUFValueType.ARRAY:
                self.array_names.add(key)
            else:
                scalars[key] = field.contents()
        super().__init__(scalars, source)
        architecture = self.get("general.architecture")
        if not isinstance(architecture, str):
            raise self.error("general.architecture", "it is missing; this is no model file")
        self.architecture = architecture

    def own(self, name: str) -> str:
        """The full key of an architecture's own field."""
        return f"{self.architecture}.{name}"

    def scalar_count(self, name: str, default: int | None = None) -> int:
        """count(), with a clear error where the value differs by layer (an array)."""
        if name in self.array_names:
            raise self.error(name, "it differs by layer, which is not served")
        return self.count(name, default)
