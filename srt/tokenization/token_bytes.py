"""What bytes a token stands for, by the kind of the vocabulary.

Byte-level BPE spells each byte as one printable character (GPT-2); sentencepiece vocabularies spell
a space as U+2581 and lone bytes as <0xNN>. In both, decoding is joining bytes, which makes
streaming exact and cheap. A vocabulary with any other decoder has no such rule and is decoded by
the tokenizers library.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import cache
from typing import Any

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
# The bytes that occur in valid UTF-8.
_UTF8_BYTES = [byte for byte in range(0xF5) if byte not in (0xC0, 0xC1)]
SPACE_MARK = "\u2581"


class VocabularyKind(Enum):
    """How token strings map to bytes."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"
    OTHER = "other"


def vocabulary_kind(backend: Backend) -> tuple[VocabularyKind, bool]:
    """The kind of backend's vocabulary, and whether decoding drops one leading space."""
    steps = _flat_steps(component_state(backend.decoder), "decoders")
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return VocabularyKind.BYTE_LEVEL, False
    strips = names[3:] == ["Strip"]
    if names[:3] == ["Replace", "ByteFallback", "Fuse"] and (strips or len(names) == 3):
        replace = steps[0]
        plain = replace["pattern"] == {"String": SPACE_MARK} and replace["content"] == " "
        one_space = not strips or _strips_one_space(steps[3])
        if plain and one_space:
            return VocabularyKind.SENTENCEPIECE, strips
    return VocabularyKind.OTHER, False


def component_state(component: Any) -> dict[str, Any]:
    """The serialized form of a tokenizers component (decoder, normalizer, ...); {} for None.

    component is Any: the library's classes share no typed base with __getstate__.
    """
    if component is None:
        return {}
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def normalizer_steps(backend: Backend) -> list[dict[str, Any]]:
    """The normalizer's steps, sequences flattened."""
    return _flat_steps(component_state(backend.normalizer), "normalizers")


def droppable_bytes(
    backend: Backend, kind: VocabularyKind, vocabulary: dict[str, int]
) -> frozenset[int] | None:
    """The bytes of UTF-8 that have no token and vanish when text is encoded.

    None if more than single bytes may vanish, or a whole run may become one unknown token.
    """
    steps = _flat_steps(component_state(backend.pre_tokenizer), "pretokenizers")
    if not all(_keeps_text(step) for step in steps):
        return None
    if kind is VocabularyKind.BYTE_LEVEL:
        missing = frozenset(b for b in _UTF8_BYTES if char_of_byte()[b] not in vocabulary)
        has_unknown = getattr(backend.model, "unk_token", None) is not None
        return None if missing and has_unknown else missing
    if kind is VocabularyKind.SENTENCEPIECE and getattr(backend.model, "byte_fallback", False):
        if all(f"<0x{byte:02X}>" in vocabulary for byte in _UTF8_BYTES):
            return frozenset()
    return None


def byte_level_bytes(text: str) -> bytes:
    """Bytes of a byte-level token: one per character, or UTF-8 if any other character occurs."""
    table = _byte_of_char()
    try:
        return bytes([table[char] for char in text])
    except KeyError:
        return text.encode("utf-8")


def sentencepiece_bytes(text: str) -> bytes:
    """Bytes of a sentencepiece token: that of <0xNN>, or UTF-8 with U+2581 read as a space."""
    if match := _BYTE_TOKEN.match(text):
        return bytes([int(match.group(1), 16)])
    return text.replace(SPACE_MARK, " ").encode("utf-8")


@cache
def char_of_byte() -> dict[int, str]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in table]
    table.update({byte: chr(0x100 + index) for index, byte in enumerate(others)})
    return table


@cache
def _byte_of_char() -> dict[str, int]:
    return {char: byte for byte, char in char_of_byte().items()}


def _flat_steps(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if state.get("type") == "Sequence":
        return [flat for step in state[key] for flat in _flat_steps(step, key)]
    return [state] if state else []


def _keeps_text(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return str(step["behavior"]).lower() != "removed"
    return step["type"] in ("ByteLevel", "Digits", "Metaspace")


def _strips_one_space(step: dict[str, Any]) -> bool:
    return bool(step["content"] == " " and step["start"] == 1 and step["stop"] == 0)
