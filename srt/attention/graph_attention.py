"""GraphAttention: what an attention backend adds to serve captured decode steps.

A captured step is replayed with other rows at the same addresses; its launches are what they were.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol, runtime_checkable

from ..execution.forward_batch import ForwardBatch
from ..execution.packed_arrays import HostArray
from .tensor_batch import TensorBatch


class StepForm(Enum):
    """How a step of decoding rows is done best."""

    PLAIN = "captured; each row reads all its keys"
    SHARED_PREFIX = "captured; a shared prefix is read once"
    EAGER = "not captured"


@runtime_checkable
class GraphAttention(Protocol):
    """An AttentionBackend whose forward can be captured; all rows have one new token then."""

    def choose_form(self, batch: ForwardBatch) -> StepForm:
        """How batch is done best. SHARED_PREFIX is for a PrefixGraphAttention."""
        ...

    def plan_capture(self, size: int, batch: TensorBatch) -> None:
        """Get ready for the capture of a step of size rows, which reads batch's tensors."""
        ...

    def plan_replay(self, size: int, batch: ForwardBatch) -> None:
        """Get ready for a replay for batch's rows, padded to size."""
        ...


@runtime_checkable
class PrefixGraphAttention(GraphAttention, Protocol):
    """A GraphAttention that can read shared prefixes once in a captured step."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether choose_form ever says SHARED_PREFIX."""
        ...

    def prefix_arrays(self, size: int, batch: ForwardBatch | None) -> dict[str, HostArray]:
        """What shares which prefix, for batch's rows padded to size; None: padding alone.

        Their tensors are TensorBatch.prefix. The shapes follow from size alone.
        """
        ...
