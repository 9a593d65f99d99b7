"""Frequencies, cosines and sines of the rotary embedding, with its scalings, in numpy.

Sources: RoFormer (Su et al., 2021); linear scaling (Chen et al., 2023, "Extending Context Window of
Large Language Models via Positional Interpolation"); llama3 scaling (Llama 3.1 model description).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..loading.model_config import RopeConfig

Floats = npt.NDArray[np.float32]


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Floats, Floats]:
    """cos and sin of every position, each [num_positions, D/2] f32."""
    # The angle is rounded to f32, as those who trained the models did.
    positions = np.arange(num_positions, dtype=np.float32)
    angles = (positions[:, None] * scaled_frequencies(rope, head_dim)).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def scaled_frequencies(rope: RopeConfig, head_dim: int) -> Floats:
    """Angle per position of each pair, [D/2] f32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = (np.float64(rope.theta) ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1.0) / powers
    if rope.kind == "linear":
        return frequencies / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3_scaled(frequencies, rope)
    return frequencies


def _llama3_scaled(frequencies: Floats, rope: RopeConfig) -> Floats:
    """Keep short wavelengths, divide long ones by the factor, blend in between."""
    turns = np.float32(rope.original_context_length) * frequencies / np.float32(2 * math.pi)
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    share_kept = np.clip((turns - low) / (high - low), 0.0, 1.0).astype(np.float32)
    one = np.float32(1.0)
    scaled: Floats = frequencies * ((one - share_kept) / np.float32(rope.factor) + share_kept)
    return scaled
