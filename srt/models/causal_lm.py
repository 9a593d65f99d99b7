"""CausalLM: what execution asks of a model, whatever its architecture."""

from __future__ import annotations

from typing import Protocol

import torch

from ..attention.backend import AttentionBackend
from ..attention.tensor_batch import TensorBatch
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import KvPool


class CausalLM(Protocol):
    """A decoder whose cached keys and values live in a KvPool; to be run in inference mode."""

    config: ModelConfig
    dtype: torch.dtype

    def parameters(self) -> dict[str, torch.Tensor]:
        """Checkpoint name -> the tensor to fill."""
        ...

    def forward(
        self, batch: TensorBatch, kv_pool: KvPool, attention: AttentionBackend
    ) -> torch.Tensor:
        """Final-norm hidden states [T, hidden]; stores the new tokens' K and V."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, V] f32."""
        ...
