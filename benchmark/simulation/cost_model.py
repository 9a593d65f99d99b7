"""How long a step takes: a roofline of a named device, or a line through measured steps.

Roofline: max(bytes of weights and KV over bandwidth, operations over peak) + a fixed overhead.
Every row reads its own context: a prefix that rows share is read once for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serving.work import ModelShape

WEIGHT_BYTES = 2  # bfloat16
COLLECTIVE_SECONDS = 8e-6  # one all-reduce of a small step over NVLink; two in each layer


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes and reads."""

    prefill_tokens: int
    decode_rows: int
    kv_tokens: int  # contexts of all rows, their new tokens included
    attended_pairs: float  # (new token, token it attends to)
    sampled_rows: int


class CostModel(Protocol):
    """Gives each step its time."""

    def seconds(self, load: StepLoad) -> float:
        """Return the time of a step; never less for a load with more of anything."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or machine; bandwidth and peak are what large kernels attain."""

    name: str
    memory_bytes: float
    bytes_per_second: float
    flops_per_second: float
    overhead_seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """A model and over how many devices its weights, KV and operations are split evenly."""

    name: str
    shape: ModelShape
    tied_embeddings: bool
    context_length: int
    num_devices: int = 1

    @property
    def weight_bytes(self) -> float:
        """Weights on one device."""
        tables = 1 if self.tied_embeddings else 2
        weights = self.shape.layer_weights + tables * self.shape.head_weights
        return weights * WEIGHT_BYTES / self.num_devices

    @property
    def read_bytes(self) -> float:
        """Weights that a step reads on one device: of the table of embeddings a few rows only."""
        return (
            (self.shape.layer_weights + self.shape.head_weights) * WEIGHT_BYTES / self.num_devices
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token on one device."""
        return self.shape.kv_bytes_per_token / self.num_devices

    def pool_tokens(self, device: Device, memory_share: float) -> int:
        """Tokens whose KV fits beside the weights in memory_share of the device's memory."""
        free = device.memory_bytes * memory_share - self.weight_bytes
        return int(free / self.kv_bytes_per_token)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The cost model of a model on a device."""

    model: Model
    device: Device

    def seconds(self, load: StepLoad) -> float:
        """Return the time of a step."""
        model, device = self.model, self.device
        shape = model.shape
        moved = model.read_bytes + load.kv_tokens * model.kv_bytes_per_token
        linear = 2.0 * (load.prefill_tokens + load.decode_rows) * shape.layer_weights
        head = 2.0 * load.sampled_rows * shape.head_weights
        attention = 4.0 * load.attended_pairs * shape.layers * shape.heads * shape.head_dim
        flops = (linear + head + attention) / model.num_devices
        collectives = 2 * shape.layers * COLLECTIVE_SECONDS if model.num_devices > 1 else 0.0
        return (
            max(moved / device.bytes_per_second, flops / device.flops_per_second)
            + device.overhead_seconds
            + collectives
        )
