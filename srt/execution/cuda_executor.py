"""CudaExecutor: steps of a model on a device that works while the host plans the next one.

Two streams: arrays go up on one while the forward pass of the step before runs on the other; events
order them, and the host waits for results alone. Decode steps replay captured graphs. The same code
runs on CpuDevice, where everything is done at once.

Shape letters: B rows, T new tokens of all rows, R sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from ..attention.backend import AttentionBackend
from ..attention.tensor_batch import TensorBatch
from ..errors import DeviceOutOfMemory
from ..memory.kv_pool import KvPool
from ..models.causal_lm import CausalLM
from .cuda_graphs import DecodeGraphs, GraphStep
from .device import Device, Stream
from .device_memory import gib
from .device_sampler import DeviceSampler, SamplingPlan
from .device_slot_table import DeviceSlotTable
from .forward_batch import ForwardBatch, PromptLogprobRow, SampleRow, StepOutput
from .packed_arrays import HostArray
from .result_ring import ResultRing, ResultsToCome
from .score_slices import ScoreSlice, slices_of_prompts
from .staging import StagedArrays, StagingRing
from .token_relay import RelayOps, TokenRelay


class DeviceStreams:
    """The two streams of a device: copy carries arrays up, forward computes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.copy: Stream = device.new_stream("copy")
        self.forward: Stream = device.new_stream("forward")


class CudaExecutor:
    """A LaunchingExecutor. Owns model, KV pool, slot table, sampler, graphs and streams."""

    def __init__(
        self,
        streams: DeviceStreams,
        model: CausalLM,
        kv_pool: KvPool,
        attention: AttentionBackend,
        slot_table: DeviceSlotTable,
        sampler: DeviceSampler,
        relay_ops: RelayOps,
        weight_bytes: int,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.streams = streams
        self.model = model
        self.kv_pool = kv_pool
        self.attention = attention
        self.slot_table = slot_table
        self.sampler = sampler
        self.graphs = graphs
        device = streams.device
        self.relay = TokenRelay(len(slot_table.slots), device.torch_device, relay_ops)
        self.weight_bytes = weight_bytes
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.weight_form = self.dtype
        self.device = device.torch_device.type
        self.backend_name = attention.name
        self.inputs = StagingRing(device, streams.copy)
        self.sampling_inputs = StagingRing(device, streams.copy)
        self.results = ResultRing(device, streams.forward)
        # Pool, table and relay were filled with zeros on the default stream.
        device.synchronize()

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """See Executor.execute."""
        step = self.launch(batch, [row.batch_row for row in sample_rows], [])
        step.sample(sample_rows, prompt_logprob_rows)
        return step.collect()

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch, sampled: list[int], relayed: list[int]) -> CudaStep:
        """See LaunchingExecutor.launch."""
        step = CudaStep(self, batch, sampled, relayed)
        step.launch()
        return step

    def out_of_memory(self, batch: ForwardBatch) -> DeviceOutOfMemory:
        """For a step that found no memory."""
        return DeviceOutOfMemory(
            f"the device ran out of memory in a step of {batch.num_tokens} tokens and "
            f"{batch.num_rows} rows, beside a KV pool of {gib(self.kv_pool.num_bytes)}, with "
            f"{gib(self.streams.device.free_bytes())} left: start the server with "
            f"--max-total-tokens {int(self.kv_pool.num_slots * 0.9)} or less, or a lower "
            "--chunked-prefill-size"
        )


class CudaStep:
    """A LaunchedStep of a CudaExecutor; launch() comes first.

    Where the device has no memory left its methods raise DeviceOutOfMemory, and the step is over:
    the executor is as it was before, but for what was the step's to write: slots of KV, and the
    relayed tokens of its rows.
    """

    def __init__(
        self, executor: CudaExecutor, batch: ForwardBatch, sampled: list[int], relayed: list[int]
    ) -> None:
        self._executor = executor
        self._batch = batch
        self._has_own_table = not executor.slot_table.holds(batch)
        self._graph_step: GraphStep | None = None
        if executor.graphs is not None and not self._has_own_table:
            self._graph_step = executor.graphs.step_for(batch)
        self._sampled, self._relayed = sampled, relayed
        self._open: list[StagedArrays] = []  # uploaded, and not yet released
        self._hidden: torch.Tensor | None = None  # [T, hidden], or a graph's rows
        self._logits: torch.Tensor | None = None  # [R, V]
        self._plan: SamplingPlan | None = None
        self._scored: list[ScoreSlice] = []
        self._num_scored: list[int] = []  # positions of each prompt row
        self._results: ResultsToCome | None = None

    def launch(self) -> None:
        """Send the inputs up and enqueue all but the draws; to be run in inference mode."""
        executor = self._executor
        with self._ending_where_memory_ends():
            self._inputs = self._upload(executor.inputs, self._arrays())
            with executor.streams.device.running_on(executor.streams.forward):
                executor.slot_table.apply(self._inputs.tensors)
                self._tensors = self._tensor_batch()
            self._forward()

    def _forward(self) -> None:
        """Enqueue relay, forward pass and logits."""
        executor, staged = self._executor, self._inputs.tensors
        with executor.streams.device.running_on(executor.streams.forward):
            executor.relay.take(
                self._tensors.input_ids, staged["relay_places"], staged["relay_rows"]
            )
            if self._graph_step is not None:
                assert executor.graphs is not None
                self._hidden = executor.graphs.replay(self._graph_step)
            else:
                self._hidden = executor.model.forward(
                    self._tensors, executor.kv_pool, executor.attention
                )
            if self._sampled:
                last = self._hidden.index_select(0, staged["last_places"])
                self._logits = executor.model.compute_logits(last)  # [R, V]

    @torch.inference_mode()
    def run_forward_again(self, corrected: Mapping[int, int]) -> None:
        """See LaunchedStep.run_forward_again."""
        executor, device = self._executor, self._executor.streams.device
        rows = torch.tensor(list(corrected), dtype=torch.int64)
        tokens = torch.tensor(list(corrected.values()), dtype=torch.int64)
        with self._ending_where_memory_ends():
            with device.running_on(executor.streams.forward):
                executor.relay.put(rows.to(device.torch_device), tokens.to(device.torch_device))
            self._forward()

    @torch.inference_mode()
    def sample(
        self, sample_rows: list[SampleRow], prompt_logprob_rows: list[PromptLogprobRow]
    ) -> None:
        """See LaunchedStep.sample."""
        with self._ending_where_memory_ends():
            self._sample(sample_rows, prompt_logprob_rows)

    def collect(self) -> StepOutput:
        """See LaunchedStep.collect."""
        assert self._results is not None, "sample() must come first"
        results = self._results.read()
        sampled = [] if self._plan is None else self._executor.sampler.read(self._plan, results)
        scores = iter([p for one in self._scored for p in one.read(results, one.targets)])
        scored = [[next(scores) for _ in range(count)] for count in self._num_scored]
        return StepOutput(sampled, scored)

    def _sample(
        self, sample_rows: list[SampleRow], prompt_logprob_rows: list[PromptLogprobRow]
    ) -> None:
        executor = self._executor
        forward = executor.streams.forward
        assert len(sample_rows) == len(self._sampled), "other rows than were launched"
        arrays: dict[str, HostArray] = {}
        if sample_rows:
            self._plan = executor.sampler.plan(sample_rows)
            arrays.update(self._plan.arrays)
        self._num_scored = [len(row.target_ids) for row in prompt_logprob_rows]
        starts = self._batch.cu_query_lens.tolist()
        self._scored = list(slices_of_prompts(prompt_logprob_rows, starts))
        for one in self._scored:
            arrays.update(one.arrays())
        tensors = self._upload(executor.sampling_inputs, arrays).tensors if arrays else {}
        with executor.streams.device.running_on(forward):
            self._results = executor.results.download(self._enqueue(tensors))
        # While this step is in flight the next one needs the room.
        self._hidden = self._logits = None
        self._release()

    def _upload(self, ring: StagingRing, arrays: Mapping[str, HostArray]) -> StagedArrays:
        """arrays on the device, for what is enqueued on the forward stream until _release()."""
        staged = ring.upload(arrays)
        self._open.append(staged)
        self._executor.streams.forward.wait_for(staged.uploaded)
        return staged

    def _release(self) -> None:
        last_read = self._executor.streams.forward.record()
        for staged in self._open:
            staged.release(last_read)
        self._open.clear()

    @contextmanager
    def _ending_where_memory_ends(self) -> Iterator[None]:
        executor = self._executor
        try:
            yield
        except Exception as error:
            if not executor.streams.device.is_out_of_memory(error):
                raise
            self._release()
            executor.slot_table.forget(self._batch)
            self._hidden = self._logits = None  # before it is counted what is left
            # Counting waits for the device: what plans and uploads were to read is read.
            raise executor.out_of_memory(self._batch) from error

    def _enqueue(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Everything after the forward pass; returns what is to come back."""
        executor = self._executor
        results: dict[str, torch.Tensor] = {}
        if self._plan is not None:
            assert self._logits is not None
            tokens, results = executor.sampler.enqueue(self._logits, self._plan, tensors)
            executor.relay.put(self._inputs.tensors["sampled_rows"], tokens)
        for one in self._scored:
            assert self._hidden is not None
            hidden = self._hidden.index_select(0, one.staged(tensors, "places"))
            logits = executor.model.compute_logits(hidden)  # [P, V]
            results.update(one.compute(logits, one.staged(tensors, "targets"), tensors))
        return results

    def _arrays(self) -> dict[str, HostArray]:
        """What the forward pass needs, the graph's own inputs first."""
        batch, step = self._batch, self._graph_step
        sampled, relayed = self._sampled, self._relayed
        ends = batch.cu_query_lens[1:].astype(np.int64)
        if step is not None:
            assert self._executor.graphs is not None
            arrays = self._executor.graphs.arrays(step, batch)
        else:
            arrays = {name: getattr(batch, name) for name in _EAGER_FIELDS}
        table = self._executor.slot_table
        return {
            **arrays,
            "last_places": ends[sampled] - 1,
            "sampled_rows": batch.table_rows[sampled],
            "relay_places": ends[relayed] - 1,
            "relay_rows": batch.table_rows[relayed],
            **(table.own_table(batch) if self._has_own_table else table.changes(batch)),
        }

    def _tensor_batch(self) -> TensorBatch:
        """The step's tensors; a graph's are filled here, and stand where they were captured."""
        executor, staged = self._executor, self._inputs.tensors
        if self._graph_step is not None:
            assert executor.graphs is not None
            return executor.graphs.load(self._graph_step, self._batch, self._inputs.whole)
        table = staged["own_table"] if self._has_own_table else executor.slot_table.slots
        return TensorBatch.of_tensors(staged, staged["cu_query_lens"], table, self._batch)


_EAGER_FIELDS = (
    "input_ids",
    "positions",
    "out_slots",
    "table_rows",
    "kv_lens",
    "cu_query_lens",
)
