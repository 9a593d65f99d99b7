"""DecodeGraphs: decode steps captured once per batch size and replayed without the host's work.

A step whose rows all have one new token is padded to the next captured size. Padding rows read and
write slot 0, the dummy, with length 1, so they change nothing that anybody reads. Inputs and
outputs stand at fixed addresses. The largest size is captured first: the smaller ones then fit into
the memory that it needed. Some sizes are captured a second time, for steps whose rows share a long
prefix that is to be read once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..attention.backend import AttentionBackend
from ..attention.graph_attention import GraphAttention, PrefixGraphAttention, StepForm
from ..attention.tensor_batch import TensorBatch
from ..memory.kv_pool import KvPool
from ..models.causal_lm import CausalLM
from .device import Device, Graph, Stream
from .forward_batch import ForwardBatch
from .graph_buckets import bucket_for, bucket_sizes, shared_bucket_sizes
from .packed_arrays import HostArray, PackedLayout

logger = logging.getLogger(__name__)

_PREFIX = "prefix_"  # before the names of what the attention adds to a step's inputs


@dataclass(frozen=True, slots=True, order=True)
class GraphStep:
    """A captured step of size rows; shares_prefix: with shared prefixes read once."""

    size: int
    shares_prefix: bool = False


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
        self._shared_sizes: list[int] = []
        if isinstance(attention, PrefixGraphAttention) and attention.shares_prefixes:
            self._shared_sizes = shared_bucket_sizes(max_rows)
        self.steps = sorted(
            [GraphStep(size) for size in self.sizes]
            + [GraphStep(size, shares_prefix=True) for size in self._shared_sizes]
        )
        self._layouts = {step: PackedLayout(self.arrays(step, None)) for step in self.steps}
        place = device.torch_device
        num_bytes = max(layout.num_bytes for layout in self._layouts.values())
        self._inputs = torch.zeros(num_bytes, dtype=torch.uint8, device=place)
        self._starts = torch.arange(max_rows + 1, dtype=torch.int32, device=place)
        self._hidden = torch.zeros(
            max_rows, model.config.hidden_size, dtype=model.dtype, device=place
        )
        self._batches: dict[GraphStep, TensorBatch] = {}
        self._graphs: dict[GraphStep, Graph] = {}
        self._memory = device.new_graph_memory()

    @torch.inference_mode()
    def capture(self, steps: list[GraphStep] | None = None) -> None:
        """Capture the given steps, all by default, largest first."""
        began = time.monotonic()
        for step in sorted(steps or self.steps, reverse=True):
            self._capture(step)
        logger.info(
            "captured %d decode graphs of up to %d rows in %.1f s",
            len(self._graphs),
            max(self._graphs).size,
            time.monotonic() - began,
        )

    def step_for(self, batch: ForwardBatch) -> GraphStep | None:
        """The captured step to pad batch to; None where it has to run eagerly."""
        if batch.num_tokens != batch.num_rows:  # rows are never empty
            return None
        form = StepForm.PLAIN
        if isinstance(self._attention, GraphAttention):
            form = self._attention.choose_form(batch)
        if form is StepForm.EAGER:
            return None
        shares_prefix = form is StepForm.SHARED_PREFIX
        sizes = self._shared_sizes if shares_prefix else self.sizes
        size = bucket_for(batch.num_rows, sizes)
        return None if size is None else GraphStep(size, shares_prefix)

    def arrays(self, step: GraphStep, batch: ForwardBatch | None) -> dict[str, HostArray]:
        """The step's inputs for batch's rows; None: for padding alone."""
        arrays = padded_arrays(batch, step.size)
        if step.shares_prefix:
            assert isinstance(self._attention, PrefixGraphAttention)
            shared = self._attention.prefix_arrays(step.size, batch)
            arrays.update({_PREFIX + name: array for name, array in shared.items()})
        return arrays

    def load(self, step: GraphStep, batch: ForwardBatch, staged: torch.Tensor) -> TensorBatch:
        """Enqueue the copy of arrays(step, batch), uploaded, to where the graph reads them.

        staged begins with them. Returns the graph's tensors.
        """
        target = self._inputs[: self._layouts[step].num_bytes]
        self._device.copy(target, staged[: len(target)])
        if isinstance(self._attention, GraphAttention):
            self._attention.plan_replay(step.size, batch)
        return self._batches[step]

    def replay(self, step: GraphStep) -> torch.Tensor:
        """Enqueue the step; returns its hidden states [size, hidden], valid until the next one."""
        self._graphs[step].replay()
        return self._hidden[: step.size]

    def _capture(self, step: GraphStep) -> None:
        size, layout = step.size, self._layouts[step]
        host = np.zeros(layout.num_bytes, dtype=np.uint8)
        layout.fill(host)
        self._inputs[: layout.num_bytes].copy_(torch.from_numpy(host))
        tensors = layout.views(self._inputs)
        batch = TensorBatch.of_tensors(tensors, self._starts[: size + 1], self._slot_table, None)
        if step.shares_prefix:
            names = [name for name in tensors if name.startswith(_PREFIX)]
            batch = replace(batch, prefix={n.removeprefix(_PREFIX): tensors[n] for n in names})
        self._batches[step] = batch
        out = self._hidden[:size]

        def run() -> None:
            out.copy_(self._model.forward(batch, self._kv_pool, self._attention))

        self._device.synchronize()
        with self._device.running_on(self._stream):
            if isinstance(self._attention, GraphAttention):
                self._attention.plan_capture(size, batch)
            run()  # what a first run compiles or allocates must not be captured
        self._device.synchronize()
        self._graphs[step] = self._device.capture(run, self._stream, self._memory)


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
