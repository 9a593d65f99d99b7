"""GraphAttention: what an attention backend adds to serve captured decode steps."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..execution.forward_batch import ForwardBatch
from .tensor_batch import TensorBatch


@runtime_checkable
class GraphAttention(Protocol):
    """An AttentionBackend whose forward can be captured; all rows have one new token then."""

    def prefers_eager(self, batch: ForwardBatch) -> bool:
        """Whether batch is done faster by other means than a captured step."""
        ...

    def plan_capture(self, size: int, batch: TensorBatch) -> None:
        """Get ready for the capture of a step of size rows, which reads batch's tensors."""
        ...

    def plan_replay(self, size: int, batch: ForwardBatch) -> None:
        """Get ready for a replay for batch's rows, padded to size."""
        ...
