"""A random Llama-like model, its float64 forward pass in plain torch, and ragged batches for it.

Used by the tests of kernels/cpu. The reference keeps whole sequences and recomputes them, so it
knows nothing of slots, chunks or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from runtime.kernels.cpu.abi_types import DType, TensorId, WeightFormat
from runtime.kernels.cpu.library import CpuModel, CpuModelConfig, StepInput

TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.F32: torch.float32}
# NaN everywhere, so that what was never written must never matter: these bytes make the scales of
# an 8-bit pool NaN too.
UNWRITTEN = {DType.BF16: float("nan"), DType.F32: float("nan"), DType.I8: -1}
LAYER_MATRICES = (
    TensorId.Q,
    TensorId.K,
    TensorId.V,
    TensorId.O,
    TensorId.GATE,
    TensorId.UP,
    TensorId.DOWN,
)


def tiny_config(**changes: object) -> CpuModelConfig:
    """A model small enough for a float64 reference, with no round sizes.

    compute_dtype and kv_dtype may be torch's.
    """
    fields: dict[str, object] = {
        "num_layers": 2,
        "hidden_size": 80,
        "intermediate_size": 112,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "vocab_size": 203,
        "max_positions": 1024,
        "rms_eps": 1e-5,
        "tied_embeddings": True,
    }
    fields.update(changes)
    names = {torch.bfloat16: DType.BF16, torch.float32: DType.F32, torch.int8: DType.I8}
    for name in ("compute_dtype", "kv_dtype"):
        if fields.get(name) in names:
            fields[name] = names[fields[name]]  # type: ignore[index]
    return CpuModelConfig(**fields)  # type: ignore[arg-type]


@dataclass
class RandomModel:
    """Weights by (tensor, layer); layer -1 for those of the whole model."""

    config: CpuModelConfig
    weights: dict[tuple[TensorId, int], torch.Tensor]

    def engine(
        self, config: CpuModelConfig | None = None, weight_format: WeightFormat = WeightFormat.KEEP
    ) -> CpuModel:
        """The C++ engine with these weights."""
        model = CpuModel(config or self.config)
        for (tensor, layer), data in self.weights.items():
            kept = weight_format if tensor in LAYER_MATRICES else WeightFormat.KEEP
            model.set_tensor(tensor, data, layer, kept)
        model.finalize()
        return model

    def reference_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [len(ids), V] in float64; keys and values are rounded where the pool is 8-bit."""
        return _reference_forward(self, torch.tensor(list(ids)))


def random_model(
    config: CpuModelConfig, *, seed: int = 0, biases: bool = False, qk_norm: bool = False
) -> RandomModel:
    """Random weights in the compute dtype, scaled so that activations stay near one."""
    generator = torch.Generator().manual_seed(seed)
    c = config

    def matrix(rows: int, cols: int) -> torch.Tensor:
        values: torch.Tensor = torch.randn(rows, cols, generator=generator) / cols**0.5
        return values.to(TORCH_DTYPES[c.compute_dtype])

    def vector(size: int, mean: float) -> torch.Tensor:
        return mean + 0.1 * torch.randn(size, generator=generator)

    q_width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    cos, sin = rope_tables(c)
    w: dict[tuple[TensorId, int], torch.Tensor] = {
        (TensorId.EMBEDDING, -1): matrix(c.vocab_size, c.hidden_size) * 4,
        (TensorId.FINAL_NORM, -1): vector(c.hidden_size, 1.0),
        (TensorId.ROPE_COS, -1): cos,
        (TensorId.ROPE_SIN, -1): sin,
    }
    if not c.tied_embeddings:
        w[TensorId.LM_HEAD, -1] = matrix(c.vocab_size, c.hidden_size)
    for layer in range(c.num_layers):
        w[TensorId.ATTN_NORM, layer] = vector(c.hidden_size, 1.0)
        w[TensorId.MLP_NORM, layer] = vector(c.hidden_size, 1.0)
        w[TensorId.Q, layer] = matrix(q_width, c.hidden_size) * 2
        w[TensorId.K, layer] = matrix(kv_width, c.hidden_size) * 2
        w[TensorId.V, layer] = matrix(kv_width, c.hidden_size)
        w[TensorId.O, layer] = matrix(c.hidden_size, q_width)
        w[TensorId.GATE, layer] = matrix(c.intermediate_size, c.hidden_size)
        w[TensorId.UP, layer] = matrix(c.intermediate_size, c.hidden_size)
        w[TensorId.DOWN, layer] = matrix(c.hidden_size, c.intermediate_size)
        if biases:
            w[TensorId.Q_BIAS, layer] = vector(q_width, 0.0)
            w[TensorId.K_BIAS, layer] = vector(kv_width, 0.0)
            w[TensorId.V_BIAS, layer] = vector(kv_width, 0.0)
            w[TensorId.O_BIAS, layer] = vector(c.hidden_size, 0.0)
        if qk_norm:
            w[TensorId.Q_NORM, layer] = vector(c.head_dim, 1.0)
            w[TensorId.K_NORM, layer] = vector(c.head_dim, 1.0)
    return RandomModel(config, w)


def rope_tables(config: CpuModelConfig, base: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max_positions, rotary_dim / 2] f32."""
    dim = config.rotary_dim or config.head_dim
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(config.max_positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def _reference_forward(model: RandomModel, ids: torch.Tensor) -> torch.Tensor:
    c, w = model.config, model.weights
    length, group = ids.shape[0], c.num_heads // c.num_kv_heads

    def get(tensor: TensorId, layer: int = -1) -> torch.Tensor:
        return w[tensor, layer].double()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c.rms_eps) * weight

    def biased(x: torch.Tensor, tensor: TensorId, bias: TensorId, layer: int) -> torch.Tensor:
        y = x @ get(tensor, layer).T
        return y + get(bias, layer) if (bias, layer) in w else y

    cos, sin = get(TensorId.ROPE_COS)[:length, None], get(TensorId.ROPE_SIN)[:length, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    causal = torch.full((length, length), float("-inf"), dtype=torch.float64).triu(1)
    h = get(TensorId.EMBEDDING)[ids]
    for i in range(c.num_layers):
        x = norm(h, get(TensorId.ATTN_NORM, i))
        q = biased(x, TensorId.Q, TensorId.Q_BIAS, i).view(length, c.num_heads, c.head_dim)
        k = biased(x, TensorId.K, TensorId.K_BIAS, i).view(length, c.num_kv_heads, c.head_dim)
        v = biased(x, TensorId.V, TensorId.V_BIAS, i).view(length, c.num_kv_heads, c.head_dim)
        if (TensorId.Q_NORM, i) in w:
            q, k = norm(q, get(TensorId.Q_NORM, i)), norm(k, get(TensorId.K_NORM, i))
        q, k = rotate(q), rotate(k)
        if c.pool_dtype == DType.I8:
            k, v = _rounded_to_8_bits(k), _rounded_to_8_bits(v)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * c.head_dim**-0.5 + causal
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)
        h = h + biased(mixed, TensorId.O, TensorId.O_BIAS, i)
        x = norm(h, get(TensorId.MLP_NORM, i))
        gate = x @ get(TensorId.GATE, i).T
        h = (
            h
            + (torch.nn.functional.silu(gate) * (x @ get(TensorId.UP, i).T))
            @ get(TensorId.DOWN, i).T
        )
    head = get(TensorId.EMBEDDING if c.tied_embeddings else TensorId.LM_HEAD)
    return norm(h, get(TensorId.FINAL_NORM)) @ head.T


def _rounded_to_8_bits(x: torch.Tensor) -> torch.Tensor:
    """x [T, K, D] with one scale for each token and kv head."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    rounded: torch.Tensor = (x / scale).round() * scale
    return rounded


@dataclass
class Server:
    """Keeps pools and sequences for one engine, as a scheduler would.

    Slots are handed out in order unless `allocate` says otherwise; extend() runs one ragged step.
    """

    engine: CpuModel
    num_slots: int = 4096
    max_rows: int = 64
    max_len: int = 1024
    allocate: Callable[[int], list[int]] | None = None
    share_prefixes: bool = True
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c = self.engine.config
        dtype = torch.int8 if c.pool_dtype == DType.I8 else TORCH_DTYPES[c.pool_dtype]
        shape, unwritten = c.pool_shape(self.num_slots), UNWRITTEN[c.pool_dtype]
        self.k = torch.full(shape, unwritten, dtype=dtype)
        self.v = torch.full(shape, unwritten, dtype=dtype)
        self.table = torch.zeros(self.max_rows, self.max_len, dtype=torch.int32)
        self._next = 1

    def fork(self, source: int, target: int, length: int) -> None:
        """Let row `target` start with the first `length` slots of row `source`."""
        self.table[target, :length] = self.table[source, :length]
        self.lengths[target] = length

    def batch(self, work: Sequence[tuple[int, Sequence[int]]]) -> StepInput:
        """Rows and their new ids as arrays; gives out slots and moves the rows' lengths."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        cu, kv = [0], []
        for row, new in work:
            start = self.lengths.get(row, 0)
            fresh = self.allocate(len(new)) if self.allocate else self._in_order(len(new))
            self.table[row, start : start + len(new)] = torch.tensor(fresh, dtype=torch.int32)
            ids += list(new)
            positions += range(start, start + len(new))
            slots += fresh
            cu.append(cu[-1] + len(new))
            self.lengths[row] = start + len(new)
            kv.append(self.lengths[row])
        return StepInput(
            input_ids=torch.tensor(ids, dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int64),
            out_slots=torch.tensor(slots, dtype=torch.int64),
            cu_query_lens=torch.tensor(cu, dtype=torch.int32),
            kv_lens=torch.tensor(kv, dtype=torch.int32),
            table_rows=torch.tensor([row for row, _ in work], dtype=torch.int64),
            slot_table=self.table,
        )

    def extend(self, work: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """One step; the logits [new tokens, V] of each row."""
        batch = self.batch(work)
        total = batch.input_ids.shape[0]
        logits = torch.empty(total, self.engine.config.vocab_size)
        every = torch.arange(total, dtype=torch.int32)
        self.engine.step(
            batch, self.k, self.v, every, logits=logits, share_prefixes=self.share_prefixes
        )
        return list(torch.split(logits, [len(new) for _, new in work]))

    def _in_order(self, count: int) -> list[int]:
        first = self._next
        self._next += count
        return list(range(first, first + count))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected."""
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm().clamp_min(1e-30))
