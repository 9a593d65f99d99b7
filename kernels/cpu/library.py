"""CpuModel: the C++ engine as Python sees it. Tensors in, logits out; one call per step.

Shape letters: B rows, T new tokens, L tokens whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from .abi_types import (
    ConfigStruct,
    DType,
    Level,
    StepStruct,
    TensorId,
    WeightFormat,
    load_library,
)
from .build import library_path

_FLOAT_TYPES = {torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16}


class EngineError(RuntimeError):
    """The C++ engine refused an argument; the text says which."""


@dataclass(frozen=True, slots=True)
class CpuModelConfig:
    """Shape and mode of one Llama-like model.

    compute_dtype is torch.bfloat16 or torch.float32: activations, float weights and the KV pool.
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
    compute_dtype: torch.dtype = torch.bfloat16
    num_threads: int = 1
    level: Level = Level.AUTO
    attention_scale: float | None = None
    rotary_dim: int | None = None


@dataclass(frozen=True, slots=True)
class StepInput:
    """The arrays of a ForwardBatch, on the CPU and contiguous.

    Row b's new tokens are [cu_query_lens[b], cu_query_lens[b + 1]) and are the last ones of its
    context, which stands in slot_table[table_rows[b], :kv_lens[b]] in position order.
    """

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    out_slots: torch.Tensor  # [T] int64
    cu_query_lens: torch.Tensor  # [B + 1] int32
    kv_lens: torch.Tensor  # [B] int32
    table_rows: torch.Tensor  # [B] int64
    slot_table: torch.Tensor  # [R, C] int32


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
            compute_dtype=_FLOAT_TYPES[config.compute_dtype],
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
        data: torch.Tensor,
        layer: int = -1,
        weight_format: WeightFormat = WeightFormat.KEEP,
    ) -> None:
        """Copy a tensor into the engine: matrices [N, K] f32, f16 or bf16, vectors f32.

        data may be freed afterwards. The rope tables are [max_positions, rotary_dim / 2] f32.
        """
        rows, cols = (1, data.numel()) if data.dim() == 1 else (data.shape[0], data.shape[1])
        data = data.contiguous()
        self._set(
            tensor, layer, data.data_ptr(), _FLOAT_TYPES[data.dtype], rows, cols, weight_format
        )

    def set_blocks(
        self, tensor: TensorId, blocks: torch.Tensor, dtype: DType, cols: int, layer: int = -1
    ) -> None:
        """Copy a matrix of GGUF blocks: blocks [N, bytes per row] uint8, cols values a row."""
        blocks = blocks.contiguous()
        self._set(tensor, layer, blocks.data_ptr(), dtype, blocks.shape[0], cols, WeightFormat.KEEP)

    def finalize(self) -> None:
        """Check that every tensor is there; step may be called from then on."""
        self._check(self._lib.rt_finalize(self._model))

    def step(
        self,
        batch: StepInput,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        logit_tokens: torch.Tensor,
        *,
        logits: torch.Tensor | None = None,
        argmax: torch.Tensor | None = None,
        hidden_out: torch.Tensor | None = None,
        share_prefixes: bool = True,
    ) -> None:
        """Run one step: writes the new tokens' K and V into the pools and fills what is asked for.

        k_pool, v_pool: [num_layers, num_slots, num_kv_heads, head_dim] in compute_dtype.
        logit_tokens: [L] int32 indices into T. logits: [L, V] f32. argmax: [L] int32, the lowest id
        among equals, -1 where every logit is NaN. hidden_out: [L, hidden] f32 after the final norm.
        share_prefixes False reads equal prefixes once per row; the results are the same bits.
        """
        struct = StepStruct(
            num_rows=batch.kv_lens.shape[0],
            num_tokens=batch.input_ids.shape[0],
            input_ids=_pointer(batch.input_ids, torch.int64),
            positions=_pointer(batch.positions, torch.int64),
            out_slots=_pointer(batch.out_slots, torch.int64),
            cu_query_lens=_pointer(batch.cu_query_lens, torch.int32),
            kv_lens=_pointer(batch.kv_lens, torch.int32),
            table_rows=_pointer(batch.table_rows, torch.int64),
            slot_table=_rows_pointer(batch.slot_table, torch.int32),
            slot_table_rows=batch.slot_table.shape[0],
            slot_table_stride=batch.slot_table.stride(0),
            k_pool=_pointer(k_pool, self.config.compute_dtype),
            v_pool=_pointer(v_pool, self.config.compute_dtype),
            num_slots=k_pool.shape[1],
            kv_layer_stride=k_pool.stride(0),
            kv_slot_stride=k_pool.stride(1),
            share_prefixes=share_prefixes,
            num_logit_tokens=logit_tokens.shape[0],
            logit_tokens=_pointer(logit_tokens, torch.int32),
            logits=None if logits is None else _rows_pointer(logits, torch.float32),
            logits_stride=0 if logits is None else logits.stride(0),
            argmax=None if argmax is None else _pointer(argmax, torch.int32),
            hidden_out=None if hidden_out is None else _pointer(hidden_out, torch.float32),
        )
        self._check(self._lib.rt_step(self._model, ctypes.byref(struct)))

    def linear(self, tensor: TensorId, x: torch.Tensor, layer: int = -1) -> torch.Tensor:
        """Return x [M, K] f32 times one of the model's matrices, [M, N] f32, without bias."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], self._num_outputs(tensor), dtype=torch.float32)
        status = self._lib.rt_linear(
            self._model, tensor, layer, _pointer(x, torch.float32), x.shape[0], out.data_ptr()
        )
        self._check(status)
        return out

    def logits_stats(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log-sum-exp [L] f32, arg-max [L] int32) of logits [L, V] f32."""
        log_sum_exp = torch.empty(logits.shape[0], dtype=torch.float32)
        argmax = torch.empty(logits.shape[0], dtype=torch.int32)
        status = self._lib.rt_logits_stats(
            self._model,
            _rows_pointer(logits, torch.float32),
            logits.shape[0],
            logits.shape[1],
            logits.stride(0),
            log_sum_exp.data_ptr(),
            argmax.data_ptr(),
        )
        self._check(status)
        return log_sum_exp, argmax

    def measure_limits(self) -> MachineLimits:
        """Measure what the machine can do at most with this model's threads; takes about 0.2 s."""
        read, flops = ctypes.c_double(), ctypes.c_double()
        status = self._lib.rt_measure_limits(self._model, ctypes.byref(read), ctypes.byref(flops))
        self._check(status)
        return MachineLimits(read.value, flops.value)

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


def _pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise EngineError(f"expected a contiguous CPU tensor of {dtype}, got {tensor.dtype}")
    return tensor.data_ptr()


def _rows_pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """As _pointer, but rows may lie apart."""
    if tensor.dtype != dtype or tensor.dim() != 2 or tensor.stride(1) != 1:
        raise EngineError(f"expected rows of {dtype}, got {tensor.dtype} {tuple(tensor.shape)}")
    return tensor.data_ptr()
