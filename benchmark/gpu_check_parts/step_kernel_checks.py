"""The kernels between matrix products, and those after the logits, against their references."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from runtime.kernels.reference import rms_norm as norm_reference
from runtime.kernels.reference import rotary as rotary_reference
from runtime.kernels.reference import silu_and_mul as gate_reference
from runtime.kernels.triton import token_relay
from runtime.kernels.triton.grammar_mask import apply_bitmask
from runtime.kernels.triton.logit_edits import apply_edits
from runtime.kernels.triton.rms_norm import add_rms_norm, rms_norm
from runtime.kernels.triton.rotary import rotary
from runtime.kernels.triton.sampling import SamplingTensors, sample
from runtime.kernels.triton.silu_and_mul import silu_and_mul
from runtime.kernels.triton.store_kv import store_kv
from runtime.srt.execution import logit_lists
from runtime.srt.execution.draw import draw, uniform
from runtime.srt.sampling_params import SamplingParams

from .attention_checks import Check, relative_error
from .bench import Bench

_FP8 = torch.float8_e4m3fn
_EPS = 1e-5


def step_kernel_checks(bench: Bench) -> Iterator[tuple[str, str, Check]]:
    """(kernel, case, check); a check returns the error in shares of the tolerance."""
    f16 = torch.float16
    for dtype in bench.pick((f16,), (f16, torch.bfloat16, torch.float32)):
        name = str(dtype).removeprefix("torch.")
        for width in bench.pick((96,), (576, 4096, 5120, 16384)):
            case = f"{name}, width {width}"
            yield "norms", case, lambda d=dtype, w=width: _norms(bench, d, w)  # type: ignore[misc]
            yield "gate", case, lambda d=dtype, w=width: _gate(bench, d, w)  # type: ignore[misc]
        for dim in bench.pick((64,), (64, 80, 96, 128, 256)):
            case = f"{name}, heads of {dim}"
            yield "rotary", case, lambda d=dtype, n=dim: _rotary(bench, d, n)  # type: ignore[misc]
            yield "KV store", case, lambda d=dtype, n=dim: _store(bench, d, d, n)  # type: ignore[misc]
            case += ", fp8 pool"
            yield "KV store", case, lambda d=dtype, n=dim: _store(bench, d, _FP8, n)  # type: ignore[misc]
    yield "grammar mask", "", lambda: _mask(bench)
    yield "logit edits", "", lambda: _edits(bench)
    yield "token relay", "", lambda: _relay(bench)
    yield "fused sampling", "", lambda: _sampling(bench)


def _norms(bench: Bench, dtype: torch.dtype, width: int) -> float:
    x, residual = (bench.normal(bench.pick(3, 257), width, dtype=dtype) for _ in range(2))
    weight = bench.normal(width, dtype=dtype)
    total = residual + x
    alone = relative_error(
        rms_norm(x, weight, _EPS), norm_reference.rms_norm(x.double(), weight.double(), _EPS)
    )
    added = add_rms_norm(x, residual, weight, _EPS)
    expected = norm_reference.rms_norm(total.double(), weight.double(), _EPS)
    return max(alone, relative_error(added, expected), relative_error(residual, total))


def _gate(bench: Bench, dtype: torch.dtype, width: int) -> float:
    x = bench.normal(bench.pick(3, 257), 2 * width, dtype=dtype)
    return relative_error(silu_and_mul(x), gate_reference.silu_and_mul(x.double()))


def _rotary(bench: Bench, dtype: torch.dtype, head_dim: int) -> float:
    num_tokens, num_heads, num_kv_heads = bench.pick(3, 257), 6, 2
    qk = bench.normal(num_tokens, num_heads + num_kv_heads, head_dim, dtype=dtype)
    positions = torch.arange(num_tokens, device=bench.place).flip(0)
    angles = torch.rand(num_tokens, head_dim // 2, device=bench.place)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    cos, sin = (half[positions] for half in table.chunk(2, dim=1))
    expected = rotary_reference.rotary(qk.clone(), cos, sin)
    rotary(qk[:, :num_heads], qk[:, num_heads:], positions, table)
    return relative_error(qk, expected)


def _store(bench: Bench, dtype: torch.dtype, pool_dtype: torch.dtype, head_dim: int) -> float:
    num_tokens = bench.pick(5, 300)
    k, v = (bench.normal(num_tokens, 3, head_dim, dtype=dtype) for _ in range(2))
    if bench.is_interpreted:  # where fp8 is cut off, not rounded
        k, v = (one.to(pool_dtype).to(dtype) for one in (k, v))
    slots = torch.arange(num_tokens, device=bench.place).flip(0) + 2
    pools = [
        torch.zeros(num_tokens + 4, 3, head_dim, device=bench.place).to(pool_dtype)
        for _ in range(2)
    ]
    store_kv(k, v, pools[0], pools[1], slots)
    errors = []
    for pool, values in zip(pools, (k, v), strict=True):
        expected = torch.zeros_like(pool.float())
        expected[slots] = values.to(pool_dtype).float()
        errors.append(relative_error(pool.float(), expected, 1e-6))
    return max(errors)


def _mask(bench: Bench) -> float:
    vocab_size = bench.pick(70, 128_256)
    logits = bench.normal(5, vocab_size)
    num_words = -(-vocab_size // 32)
    bits = torch.randint(-(2**31), 2**31, (2, num_words), dtype=torch.int64, device=bench.place)
    rows = torch.tensor([3, 1], device=bench.place)
    expected = logits.clone()
    logit_lists.apply_bitmask(expected, bits.to(torch.int32), rows)
    apply_bitmask(logits, bits.to(torch.int32), rows)
    return 0.0 if torch.equal(logits, expected) else math.inf


def _edits(bench: Bench) -> float:
    """Penalties, biases and suppression of some places: the same bits as in torch."""
    vocab_size, num_places = bench.pick(70, 128_256), bench.pick(40, 3000)
    logits = bench.normal(5, vocab_size)
    places = torch.randperm(logits.numel(), device=bench.place)[:num_places]
    repetition, penalty, bias = (bench.normal(num_places).abs() + 0.1 for _ in range(3))
    suppressed = (places % 7 == 0).to(torch.int32)
    found, expected = logits.clone(), logits.clone()
    amounts = (places, repetition, penalty, bias, suppressed)
    apply_edits(found, *amounts, floor=-math.inf)
    logit_lists.apply_edits(expected, *amounts, floor=-math.inf)
    return 0.0 if torch.equal(found, expected) else math.inf


def _relay(bench: Bench) -> float:
    last_tokens = torch.zeros(9, dtype=torch.int64, device=bench.place)
    rows = torch.tensor([4, 2, 7], device=bench.place)
    token_relay.put(last_tokens, rows, torch.tensor([11, 12, 13], device=bench.place))
    input_ids = torch.zeros(5, dtype=torch.int64, device=bench.place)
    places = torch.tensor([1, 3], device=bench.place)
    token_relay.take(input_ids, last_tokens, places, rows[1:])
    return 0.0 if input_ids.tolist() == [0, 12, 0, 13, 0] else math.inf


def _sampling(bench: Bench) -> float:
    """Shares of rows that drew otherwise, a hundredth allowed: a sum may round at a border."""
    vocab_size = bench.pick(70, 128_256)
    options = [
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=3.0, min_p=0.1),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.9, top_k=50, top_p=0.9),
    ] * bench.pick(1, 40)
    logits = 3 * bench.normal(len(options), vocab_size)
    drawn = sample(logits, sampling_tensors(bench, options, vocab_size)).ids.tolist()
    on_host = logits.cpu()
    expected = [draw(on_host[i], one, uniform(i, 7)) for i, one in enumerate(options)]
    wrong = sum(a != b for a, b in zip(drawn, expected, strict=True))
    return float(wrong) / len(options) / 0.01


def sampling_tensors(
    bench: Bench, options: list[SamplingParams], vocab_size: int
) -> SamplingTensors:
    """Row i with seed i, at position 7."""

    def tensor(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=bench.place)

    return SamplingTensors(
        tensor([one.temperature for one in options], torch.float32),
        tensor([one.top_k or vocab_size for one in options], torch.int32),
        tensor([one.top_p for one in options], torch.float32),
        tensor([one.min_p for one in options], torch.float32),
        tensor(list(range(len(options))), torch.int64),
        tensor([7] * len(options), torch.int64),
    )
