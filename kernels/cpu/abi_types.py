"""The C interface of abi.h as ctypes: structs, enums, and the loaded library.

Field order and numbers mirror abi.h; nothing else here.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np


class DType(enum.IntEnum):
    """Types of matrices and of the KV pool; ggml's own numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    I8 = 24  # of the KV pool only
    BF16 = 30


class WeightFormat(enum.IntEnum):
    """KEEP: as source and compute dtype say. W8A8: 8-bit, one scale per row on both sides. W8A16:
    the weights of W8A8 with bf16 activations."""

    KEEP = 0
    W8A8 = 1
    W8A16 = 2


class Level(enum.IntEnum):
    """Instruction sets, worst to best."""

    AUTO = -1
    SCALAR = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX = 4


class TensorId(enum.IntEnum):
    """What rt_set_tensor can be given."""

    EMBEDDING = 0
    LM_HEAD = 1
    FINAL_NORM = 2
    ROPE_COS = 3
    ROPE_SIN = 4
    ATTN_NORM = 10
    Q = 11
    K = 12
    V = 13
    Q_BIAS = 14
    K_BIAS = 15
    V_BIAS = 16
    Q_NORM = 17
    K_NORM = 18
    O = 19  # noqa: E741
    O_BIAS = 20
    MLP_NORM = 21
    GATE = 22
    UP = 23
    DOWN = 24


class ConfigStruct(ctypes.Structure):
    """RtConfig."""

    _fields_ = [
        *[
            (name, c_int32)
            for name in (
                "num_layers",
                "hidden_size",
                "intermediate_size",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "vocab_size",
                "max_positions",
                "rotary_dim",
                "compute_dtype",
                "kv_dtype",
                "tied_embeddings",
                "num_threads",
                "level",
            )
        ],
        ("rms_eps", c_float),
        ("attention_scale", c_float),
    ]


class StepStruct(ctypes.Structure):
    """RtStep."""

    _fields_ = [
        ("num_rows", c_int32),
        ("num_tokens", c_int32),
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("out_slots", c_void_p),
        ("cu_query_lens", c_void_p),
        ("kv_lens", c_void_p),
        ("table_rows", c_void_p),
        ("slot_table", c_void_p),
        ("slot_table_rows", c_int64),
        ("slot_table_stride", c_int64),
        ("k_pool", c_void_p),
        ("v_pool", c_void_p),
        ("num_slots", c_int64),
        ("kv_layer_stride", c_int64),
        ("kv_slot_stride", c_int64),
        ("share_prefixes", c_int32),
        ("num_logit_tokens", c_int32),
        ("logit_tokens", c_void_p),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("argmax", c_void_p),
        ("hidden_out", c_void_p),
        ("allowed_ids", c_void_p),
        ("logit_rows", c_void_p),
    ]


class SampleTask(enum.IntEnum):
    """What rt_sample does with a row."""

    GREEDY = 0
    DRAW = 1
    SCORE = 2


# RtSampleRow as a numpy record: an array of them is filled a row at a time, with one tuple each.
SAMPLE_ROW = np.dtype(
    [
        *[(name, np.int64) for name in ("seed", "position")],
        *[
            (name, np.uintp)
            for name in (
                "allowed_ids",
                "prompt_ids",
                "output_ids",
                "bias_ids",
                "biases",
                "suppressed_ids",
                "score_ids",
                "score_logprobs",
                "top_ids",
                "top_logprobs",
            )
        ],
        *[(name, np.float64) for name in ("top_p", "min_p")],
        *[
            (name, np.float32)
            for name in (
                "temperature",
                "repetition_penalty",
                "frequency_penalty",
                "presence_penalty",
            )
        ],
        *[
            (name, np.int32)
            for name in (
                "top_k",
                "num_prompt_ids",
                "num_output_ids",
                "num_biases",
                "num_suppressed_ids",
                "num_score_ids",
                "num_top",
                "task",
                "wants_logprobs",
                "token_id",
            )
        ],
        ("logprob", np.float32),
    ],
    align=True,
)


@cache
def load_library(path: Path) -> ctypes.CDLL:
    """Load the engine and declare its functions."""
    lib = ctypes.CDLL(str(path))
    model = c_void_p
    _declare(lib, "rt_last_error", c_char_p, [])
    _declare(lib, "rt_best_level", c_int32, [])
    _declare(lib, "rt_model_create", model, [POINTER(ConfigStruct)])
    _declare(lib, "rt_model_free", None, [model])
    _declare(lib, "rt_model_level", c_int32, [model])
    _declare(lib, "rt_model_weight_bytes", c_int64, [model])
    _declare(
        lib,
        "rt_set_tensor",
        c_int32,
        [model, c_int32, c_int32, c_void_p, c_int32, c_int64, c_int64, c_int32],
    )
    _declare(lib, "rt_finalize", c_int32, [model])
    _declare(lib, "rt_step", c_int32, [model, POINTER(StepStruct)])
    _declare(lib, "rt_sample", c_int32, [model, c_void_p, c_int64, c_void_p, c_int32])
    _declare(lib, "rt_linear", c_int32, [model, c_int32, c_int32, c_void_p, c_int64, c_void_p])
    _declare(
        lib,
        "rt_logits_stats",
        c_int32,
        [model, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p],
    )
    _declare(lib, "rt_measure_limits", c_int32, [model, POINTER(c_double), POINTER(c_double)])
    return lib


def _declare(lib: ctypes.CDLL, name: str, result: object, arguments: list[object]) -> None:
    function = getattr(lib, name)
    function.restype = result
    function.argtypes = arguments
