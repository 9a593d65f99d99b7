"""Launches of the kernels around attention that are compiled: every dtype, width and switch."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from support.kernel_compiler import KernelLaunch

from runtime.kernels.triton.grammar_mask import apply_bitmask
from runtime.kernels.triton.logit_edits import apply_edits
from runtime.kernels.triton.rms_norm import MAX_WIDTH, add_rms_norm, rms_norm
from runtime.kernels.triton.rotary import rotary
from runtime.kernels.triton.sampling import SamplingTensors, sample
from runtime.kernels.triton.silu_and_mul import silu_and_mul
from runtime.kernels.triton.token_relay import put, take

_TOKENS = 100
_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def _meta(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _norm(width: int, dtype: torch.dtype) -> None:
    rms_norm(_meta(_TOKENS, width, dtype=dtype), _meta(width, dtype=dtype), 1e-6)


def _add_norm(width: int, dtype: torch.dtype) -> None:
    x, residual = _meta(_TOKENS, width, dtype=dtype), _meta(_TOKENS, width, dtype=dtype)
    add_rms_norm(x, residual, _meta(width, dtype=dtype), 1e-6)


def _rotate(head_dim: int, heads: tuple[int, int], has_norm: bool, dtype: torch.dtype) -> None:
    num_heads, num_kv_heads = heads
    qk = _meta(_TOKENS, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
    q, k, _ = qk.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)
    norm = _meta(head_dim, dtype=dtype) if has_norm else None
    rotary(
        q,
        k,
        _meta(_TOKENS),
        _meta(4096, head_dim, dtype=torch.float32),
        q_norm=norm,
        k_norm=norm,
    )


def _gate(act: Literal["silu", "gelu_tanh"], dtype: torch.dtype) -> None:
    silu_and_mul(_meta(_TOKENS, 2 * 14336, dtype=dtype), act=act)


def _take() -> None:
    take(_meta(_TOKENS), _meta(257), _meta(64), _meta(64))


def _put() -> None:
    put(_meta(257), _meta(64), _meta(64))


def _mask() -> None:
    logits = _meta(64, 128256, dtype=torch.float32)
    apply_bitmask(logits, _meta(16, 4008, dtype=torch.int32), _meta(16))


def _edits() -> None:
    logits, places = _meta(64, 128256, dtype=torch.float32), _meta(1000)
    amounts = [_meta(1000, dtype=torch.float32) for _ in range(3)]
    apply_edits(logits, places, *amounts, _meta(1000, dtype=torch.int32), floor=-3e38)


def _sample(dtype: torch.dtype, with_logprobs: bool) -> None:
    f32, rows = torch.float32, 64
    params = SamplingTensors(
        temperature=_meta(rows, dtype=f32),
        top_k=_meta(rows, dtype=torch.int32),
        top_p=_meta(rows, dtype=f32),
        min_p=_meta(rows, dtype=f32),
        seed=_meta(rows),
        position=_meta(rows),
    )
    sample(_meta(rows, 128256, dtype=dtype), params, with_logprobs=with_logprobs)


def _launches_of(name: str) -> list[KernelLaunch]:
    dtype = _DTYPES[name]
    return [
        *(
            KernelLaunch(f"{kind} {name} width {width}", partial(norm, width, dtype))
            for kind, norm in (("norm", _norm), ("add norm", _add_norm))
            for width in (576, 4096, MAX_WIDTH)
        ),
        *(
            KernelLaunch(
                f"rotary {name} head_dim {head_dim} norm {has_norm}",
                partial(_rotate, head_dim, heads, has_norm, dtype),
            )
            for head_dim, heads in ((64, (9, 3)), (80, (32, 32)), (128, (32, 8)), (256, (8, 1)))
            for has_norm in (False, True)
        ),
        KernelLaunch(f"silu {name}", partial(_gate, "silu", dtype)),
        KernelLaunch(f"gelu {name}", partial(_gate, "gelu_tanh", dtype)),
    ]


STEP_LAUNCHES: list[KernelLaunch] = [
    *(launch for name in _DTYPES for launch in _launches_of(name)),
    KernelLaunch("sample f32", partial(_sample, torch.float32, with_logprobs=False)),
    KernelLaunch("sample bf16", partial(_sample, torch.bfloat16, with_logprobs=False)),
    KernelLaunch("sample logprobs f32", partial(_sample, torch.float32, with_logprobs=True)),
    KernelLaunch("token relay take", _take),
    KernelLaunch("token relay put", _put),
    KernelLaunch("grammar mask", _mask),
    KernelLaunch("logit edits", _edits),
]
