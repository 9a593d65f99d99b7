"""DecodeGraphs: decode steps captured once per batch size and replayed without the host's work.

A step whose rows all have one new token is padded to the next captured size. Padding rows read and
write slot 0, the dummy, with length 1, so they change nothing that anybody reads. Inputs and
outputs stand at fixed addresses. The largest size is captured first: the smaller ones then fit into
the memory that it needed.
"""

from __future__ import annotations

import logging
import time

import numpy as np
import torch

from ..attention.backend import AttentionBackend
from ..attention.graph_attention import GraphAttention
from ..attention.tensor_batch import TensorBatch
from ..memory.kv_pool import KvPool
from ..models.causal_lm import CausalLM
from .device import Device, Graph, Stream
from .forward_batch import ForwardBatch
from .graph_buckets import bucket_for, bucket_sizes
from .packed_arrays import HostArray, PackedLayout

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """Graphs of model over kv_pool for up to max_rows rows. capture() comes first."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: CausalLM,
        kv_pool: KvPool,
        attention: AttentionBackend,
        slot_table: torch.Tensor,
        max_rows: int,
    ) -> None:
        self._device = device
        self._stream = stream
        self._model = model
        self._kv_pool = kv_pool
        self._attention = attention
        self._slot_table = slot_table
        self.sizes = bucket_sizes(max_rows)
        self._layouts = {size: PackedLayout(padded_arrays(None, size)) for size in self.sizes}
        place = device.torch_device
        num_bytes = self._layouts[max_rows].num_bytes
        self._inputs = torch.zeros(num_bytes, dtype=torch.uint8, device=place)
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=place)
        self._hidden = torch.zeros(
            max_rows, model.config.hidden_size, dtype=model.dtype, device=place
        )
        self._batches: dict[int, TensorBatch] = {}
        self._graphs: dict[int, Graph] = {}
        self._memory = device.new_graph_memory()

    @torch.inference_mode()
    def capture(self, sizes: list[int] | None = None) -> None:
        """Capture the given sizes, all by default, largest first."""
        began = time.monotonic()
        for size in sorted(sizes or self.sizes, reverse=True):
            self._capture(size)
        logger.info(
            "captured %d decode graphs of up to %d rows in %.1f s",
            len(self._graphs),
            max(self._graphs),
            time.monotonic() - began,
        )

    def size_for(self, batch: ForwardBatch) -> int | None:
        """The captured size to pad batch to; None where it has to run eagerly."""
        if batch.num_tokens != batch.num_rows:  # rows are never empty
            return None
        if isinstance(self._attention, GraphAttention) and self._attention.prefers_eager(batch):
            return None
        return bucket_for(batch.num_rows, self.sizes)

    def load(self, size: int, batch: ForwardBatch, staged: torch.Tensor) -> TensorBatch:
        """Enqueue the copy of padded_arrays, uploaded, to where the graph reads them.

        staged begins with them. Returns the graph's tensors.
        """
        target = self._inputs[: self._layouts[size].num_bytes]
        self._device.copy(target, staged[: len(target)])
        if isinstance(self._attention, GraphAttention):
            self._attention.plan_replay(size, batch)
        return self._batches[size]

    def replay(self, size: int) -> torch.Tensor:
        """Enqueue the step; returns its hidden states [size, hidden], valid until the next one."""
        self._graphs[size].replay()
        return self._hidden[:size]

    def _capture(self, size: int) -> None:
        layout = self._layouts[size]
        host = np.zeros(layout.num_bytes, dtype=np.uint8)
        layout.fill(host)
        self._inputs[: layout.num_bytes].copy_(torch.from_numpy(host))
        batch = TensorBatch.of_tensors(
            layout.views(self._inputs), self._starts[: size + 1], self._slot_table, None
        )
        self._batches[size] = batch
        out = self._hidden[:size]

        def run() -> None:
            out.copy_(self._model.forward(batch, self._kv_pool, self._attention))

        self._device.synchronize()
        with self._device.running_on(self._stream):
            if isinstance(self._attention, GraphAttention):
                self._attention.plan_capture(size, batch)
            run()  # what a first run compiles or allocates must not be captured
        self._device.synchronize()
        self._graphs[size] = self._device.capture(run, self._stream, self._memory)


def padded_arrays(batch: ForwardBatch | None, size: int) -> dict[str, HostArray]:
    """A graph's inputs: batch's rows, then padding up to size. None: padding alone."""
    num_rows = 0 if batch is None else batch.num_rows
    arrays: dict[str, HostArray] = {
        # Padding: token 0 at position 0 of table row 0, whose slots are all the dummy's.
        "input_ids": np.zeros(size, dtype=np.int64),
        "positions": np.zeros(size, dtype=np.int64),
        "out_slots": np.zeros(size, dtype=np.int64),
        "table_rows": np.zeros(size, dtype=np.int64),
        "kv_lens": np.ones(size, dtype=np.int32),
    }
    if batch is not None:
        for name, array in arrays.items():
            array[:num_rows] = getattr(batch, name)
    return arrays
