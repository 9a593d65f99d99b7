"""CpuModel: the C++ engine as Python sees it. Tensors in, logits out; one call per step.

Shape letters: B rows, T new tokens, L tokens whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .abi_types import (
    SAMPLE_ROW,
    ConfigStruct,
    DType,
    Level,
    StepStruct,
    TensorId,
    WeightFormat,
    load_library,
)
from .arrays import Array, ArrayView, contiguous, view_of
from .build import library_path

# numpy has no bfloat16: there uint16 holds its bits.
_FLOAT_TYPES = {
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "uint16": DType.BF16,
}
_POOL_TYPES = {**_FLOAT_TYPES, "int8": DType.I8}
Floats = npt.NDArray[np.float32]


class EngineError(RuntimeError):
    """The C++ engine refused an argument; the text says which."""


@dataclass(frozen=True, slots=True)
class CpuModelConfig:
    """Shape and mode of one Llama-like model.

    compute_dtype is BF16 or F32: activations and float weights. kv_dtype is BF16, F32 or I8: the KV
    pool; None means compute_dtype.
    attention_scale None means head_dim ** -0.5; rotary_dim None means head_dim.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    tied_embeddings: bool
    compute_dtype: DType = DType.BF16
    kv_dtype: DType | None = None
    num_threads: int = 1
    level: Level = Level.AUTO
    attention_scale: float | None = None
    rotary_dim: int | None = None

    @property
    def pool_dtype(self) -> DType:
        """Type of the KV pool's elements."""
        return self.compute_dtype if self.kv_dtype is None else self.kv_dtype

    def pool_shape(self, num_slots: int) -> tuple[int, int, int, int]:
        """[num_layers, num_slots, num_kv_heads, elements of a head] of k, and of v.

        A head of an I8 pool has head_dim bytes and four more for its f32 scale.
        """
        scale = 4 if self.pool_dtype == DType.I8 else 0
        return self.num_layers, num_slots, self.num_kv_heads, self.head_dim + scale


@dataclass(frozen=True, slots=True)
class StepInput:
    """The arrays of a ForwardBatch, numpy's or torch's, on the CPU and contiguous.

    Row b's new tokens are [cu_query_lens[b], cu_query_lens[b + 1]) and are the last ones of its
    context, which stands in slot_table[table_rows[b], :kv_lens[b]] in position order.
    """

    input_ids: Array  # [T] int64
    positions: Array  # [T] int64
    out_slots: Array  # [T] int64
    cu_query_lens: Array  # [B + 1] int32
    kv_lens: Array  # [B] int32
    table_rows: Array  # [B] int64
    slot_table: Array  # [R, C] int32


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Read bandwidth from memory in bytes a second, arithmetic from registers in FLOP a second."""

    read_bandwidth: float
    peak_flops: float


class CpuModel:
    """Packed weights and a thread team; runs whole steps over a caller-owned KV pool.

    Raises NoCompiler or BuildFailed from build.py where the engine cannot be compiled. Not thread
    safe: one step at a time. The GIL is free while a step runs.
    """

    def __init__(self, config: CpuModelConfig) -> None:
        self.config = config
        self._lib = load_library(library_path())
        scale = config.attention_scale
        struct = ConfigStruct(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            rotary_dim=config.head_dim if config.rotary_dim is None else config.rotary_dim,
            compute_dtype=config.compute_dtype,
            kv_dtype=config.pool_dtype,
            tied_embeddings=config.tied_embeddings,
            num_threads=config.num_threads,
            level=config.level,
            rms_eps=config.rms_eps,
            attention_scale=config.head_dim**-0.5 if scale is None else scale,
        )
        self._model = self._lib.rt_model_create(ctypes.byref(struct))
        if not self._model:
            raise EngineError(self._last_error())

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._lib.rt_model_free(self._model)
            self._model = None

    @property
    def level(self) -> Level:
        """The instruction set in use."""
        return Level(self._lib.rt_model_level(self._model))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return int(self._lib.rt_model_weight_bytes(self._model))

    def set_tensor(
        self,
        tensor: TensorId,
        data: Array,
        layer: int = -1,
        weight_format: WeightFormat = WeightFormat.KEEP,
    ) -> None:
        """Copy a tensor into the engine: matrices [N, K] f32, f16 or bf16, vectors f32.

        A numpy matrix of uint16 holds bf16 bits.

        data may be freed afterwards. The rope tables are [max_positions, rotary_dim / 2] f32.
        """
        data = contiguous(data)
        view = view_of(data)
        rows, cols = (1, view.shape[0]) if len(view.shape) == 1 else view.shape
        self._set(tensor, layer, view.address, _FLOAT_TYPES[view.dtype], rows, cols, weight_format)

    def set_blocks(
        self, tensor: TensorId, blocks: Array, dtype: DType, cols: int, layer: int = -1
    ) -> None:
        """Copy a matrix of GGUF blocks: blocks [N, bytes per row] uint8, cols values a row."""
        blocks = contiguous(blocks)
        address = view_of(blocks).address
        self._set(tensor, layer, address, dtype, blocks.shape[0], cols, WeightFormat.KEEP)

    def finalize(self) -> None:
        """Check that every tensor is there; step may be called from then on."""
        self._check(self._lib.rt_finalize(self._model))

    def step(
        self,
        batch: StepInput,
        k_pool: Array,
        v_pool: Array,
        logit_tokens: Array,
        *,
        logits: Array | None = None,
        argmax: Array | None = None,
        hidden_out: Array | None = None,
        allowed_ids: Sequence[Array | None] | None = None,
        logit_rows: Array | None = None,
        share_prefixes: bool = True,
    ) -> None:
        """Run one step: writes the new tokens' K and V into the pools and fills what is asked for.

        k_pool, v_pool: of config.pool_shape, contiguous.
        logit_tokens: [L] int32 indices into T. logits: [L, V] f32. argmax: [L] int32, the lowest id
        among equals, -1 where every logit is NaN. hidden_out: [L, hidden] f32 after the final norm.
        allowed_ids: [L] bitmasks of ceil(V / 32) uint32 each, None where every id is legal. A row
        of logits with few legal ids is filled at those alone (a single one with 0), and rows change
        places: logit_rows [L] int32 receives the row of each logit token.
        share_prefixes False reads equal prefixes once per row; the results are the same bits.
        """
        slot_table = _rows(batch.slot_table, "int32")
        pools = [self._pool(k_pool), self._pool(v_pool)]
        logit_view = None if logits is None else _rows(logits, "float32")
        masks = None if allowed_ids is None else self._masks(allowed_ids, logit_tokens.shape[0])
        struct = StepStruct(
            num_rows=batch.kv_lens.shape[0],
            num_tokens=batch.input_ids.shape[0],
            input_ids=_address(batch.input_ids, "int64"),
            positions=_address(batch.positions, "int64"),
            out_slots=_address(batch.out_slots, "int64"),
            cu_query_lens=_address(batch.cu_query_lens, "int32"),
            kv_lens=_address(batch.kv_lens, "int32"),
            table_rows=_address(batch.table_rows, "int64"),
            slot_table=slot_table.address,
            slot_table_rows=slot_table.shape[0],
            slot_table_stride=slot_table.strides[0],
            k_pool=pools[0].address,
            v_pool=pools[1].address,
            num_slots=pools[0].shape[1],
            kv_layer_stride=pools[0].strides[0],
            kv_slot_stride=pools[0].strides[1],
            share_prefixes=share_prefixes,
            num_logit_tokens=logit_tokens.shape[0],
            logit_tokens=_address(logit_tokens, "int32"),
            logits=None if logit_view is None else logit_view.address,
            logits_stride=0 if logit_view is None else logit_view.strides[0],
            argmax=None if argmax is None else _address(argmax, "int32"),
            hidden_out=None if hidden_out is None else _address(hidden_out, "float32"),
            allowed_ids=None if masks is None else view_of(masks).address,
            logit_rows=None if logit_rows is None else _address(logit_rows, "int32"),
        )
        self._check(self._lib.rt_step(self._model, ctypes.byref(struct)))

    def sample(self, logits: Floats, rows: npt.NDArray[np.void]) -> None:
        """Fill the results of rows (SAMPLE_ROW records), row i with logits[i].

        logits: [R, V] f32; changed meanwhile, and as before afterwards.
        """
        view = _rows(logits, "float32")
        if view.shape != (len(rows), self.config.vocab_size) or rows.dtype != SAMPLE_ROW:
            raise EngineError(f"{len(rows)} rows to sample, logits are {_described(view)}")
        status = self._lib.rt_sample(
            self._model, view.address, view.strides[0], view_of(rows).address, len(rows)
        )
        self._check(status)

    def linear(self, tensor: TensorId, x: Array, layer: int = -1) -> Floats:
        """Return x [M, K] f32 times one of the model's matrices, [M, N] f32, without bias."""
        x = contiguous(x)
        out = np.empty((x.shape[0], self._num_outputs(tensor)), dtype=np.float32)
        status = self._lib.rt_linear(
            self._model, tensor, layer, _address(x, "float32"), x.shape[0], view_of(out).address
        )
        self._check(status)
        return out

    def logits_stats(self, logits: Array) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Return (log-sum-exp [L] f32, arg-max [L] int32) of logits [L, V] f32."""
        rows = _rows(logits, "float32")
        log_sum_exp = np.empty(rows.shape[0], dtype=np.float32)
        argmax = np.empty(rows.shape[0], dtype=np.int32)
        status = self._lib.rt_logits_stats(
            self._model,
            rows.address,
            *rows.shape,
            rows.strides[0],
            view_of(log_sum_exp).address,
            view_of(argmax).address,
        )
        self._check(status)
        return log_sum_exp, argmax

    def measure_limits(self) -> MachineLimits:
        """Measure what the machine can do at most with this model's threads; takes about 0.2 s."""
        read, flops = ctypes.c_double(), ctypes.c_double()
        status = self._lib.rt_measure_limits(self._model, ctypes.byref(read), ctypes.byref(flops))
        self._check(status)
        return MachineLimits(read.value, flops.value)

    def _pool(self, pool: Array) -> ArrayView:
        view = view_of(pool)
        dtype = self.config.pool_dtype
        shape = self.config.pool_shape(view.shape[1]) if len(view.shape) == 4 else None
        if _POOL_TYPES.get(view.dtype) != dtype or view.shape != shape or not view.is_contiguous:
            wanted = f"{dtype.name} KV pool of shape {list(self.config.pool_shape(-1))}"
            raise EngineError(f"expected a contiguous {wanted}, got {_described(view)}")
        return view

    def _masks(self, allowed_ids: Sequence[Array | None], count: int) -> npt.NDArray[np.uintp]:
        """The addresses of bitmasks, 0 for none."""
        words = -(-self.config.vocab_size // 32)
        if len(allowed_ids) != count:
            raise EngineError(f"{len(allowed_ids)} bitmasks for {count} rows of logits")
        for mask in allowed_ids:
            if mask is not None and mask.shape != (words,):
                raise EngineError(f"a bitmask has shape {list(mask.shape)}, expected [{words}]")
        masks = [0 if mask is None else _address(mask, "uint32") for mask in allowed_ids]
        return np.array(masks, dtype=np.uintp)

    def _num_outputs(self, tensor: TensorId) -> int:
        c = self.config
        sizes = {
            TensorId.EMBEDDING: c.vocab_size,
            TensorId.LM_HEAD: c.vocab_size,
            TensorId.Q: c.num_heads * c.head_dim,
            TensorId.K: c.num_kv_heads * c.head_dim,
            TensorId.V: c.num_kv_heads * c.head_dim,
            TensorId.GATE: c.intermediate_size,
            TensorId.UP: c.intermediate_size,
        }
        return sizes.get(tensor, c.hidden_size)

    def _set(
        self,
        tensor: TensorId,
        layer: int,
        address: int,
        dtype: DType,
        rows: int,
        cols: int,
        weight_format: WeightFormat,
    ) -> None:
        self._check(
            self._lib.rt_set_tensor(
                self._model, tensor, layer, address, dtype, rows, cols, weight_format
            )
        )

    def _check(self, status: int) -> None:
        if status != 0:
            raise EngineError(self._last_error())

    def _last_error(self) -> str:
        return str(self._lib.rt_last_error().decode())


def _address(array: Array, dtype: str) -> int:
    view = view_of(array)
    if view.dtype != dtype or not view.is_contiguous:
        raise EngineError(f"expected a contiguous array of {dtype}, got {_described(view)}")
    return view.address


def _rows(array: Array, dtype: str) -> ArrayView:
    """A matrix whose rows may lie apart."""
    view = view_of(array)
    if view.dtype != dtype or len(view.shape) != 2 or view.strides[1] != 1:
        raise EngineError(f"expected rows of {dtype}, got {_described(view)}")
    return view


def _described(view: ArrayView) -> str:
    return f"{view.dtype} {list(view.shape)} with strides {list(view.strides)}"
