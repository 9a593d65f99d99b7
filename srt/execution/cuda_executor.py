"""CudaExecutor: steps of a model on a device that works while the host plans the next one.

Two streams: arrays go up on one while the forward pass of the step before runs on the other; events
order them, and the host waits for results alone. Decode steps replay captured graphs. The same code
runs on CpuDevice, where everything is done at once.

Shape letters: B rows, T new tokens of all rows, R sampled rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import torch

from ..attention.backend import AttentionBackend
from ..attention.tensor_batch import TensorBatch
from ..errors import ConfigError
from ..memory.kv_pool import KvPool
from ..models.causal_lm import CausalLM
from .cuda_graphs import DecodeGraphs, GraphStep
from .device import Device, Stream
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
        try:
            step = CudaStep(self, batch, sampled, relayed)
            step.forward()
        except self.streams.device.out_of_memory as error:
            self.refuse(batch, error)
        return step

    @torch.inference_mode()
    def correct_relayed(self, token_ids: Mapping[int, int]) -> None:
        """See LaunchingExecutor.correct_relayed. Seldom: it waits for the upload."""
        rows = torch.tensor(list(token_ids), dtype=torch.int64)
        tokens = torch.tensor(list(token_ids.values()), dtype=torch.int64)
        device = self.streams.device
        with device.running_on(self.streams.forward):
            self.relay.put(rows.to(device.torch_device), tokens.to(device.torch_device))

    def refuse(self, batch: ForwardBatch, error: BaseException) -> NoReturn:
        """Raise ConfigError for a step that found no memory."""
        device = self.streams.device
        raise ConfigError(
            f"the device ran out of memory in a step of {batch.num_tokens} tokens and "
            f"{batch.num_rows} rows, beside a KV pool of {_gib(self.kv_pool.num_bytes)}, with "
            f"{_gib(device.free_bytes())} left: set --max-total-tokens to "
            f"{int(self.kv_pool.num_slots * 0.9)} or lower --chunked-prefill-size"
        ) from error


class CudaStep:
    """A LaunchedStep of a CudaExecutor."""

    def __init__(
        self, executor: CudaExecutor, batch: ForwardBatch, sampled: list[int], relayed: list[int]
    ) -> None:
        self._executor = executor
        self._batch = batch
        self._num_sampled = len(sampled)
        self._has_own_table = not executor.slot_table.holds(batch)
        self._graph_step: GraphStep | None = None
        if executor.graphs is not None and not self._has_own_table:
            self._graph_step = executor.graphs.step_for(batch)
        self._inputs = executor.inputs.upload(self._arrays(sampled, relayed))
        self._hidden: torch.Tensor | None = None  # [T, hidden], or a graph's rows
        self._logits: torch.Tensor | None = None  # [R, V]
        self._plan: SamplingPlan | None = None
        self._scored: list[ScoreSlice] = []
        self._num_scored: list[int] = []  # positions of each prompt row
        self._results: ResultsToCome | None = None
        forward = executor.streams.forward
        forward.wait_for(self._inputs.uploaded)
        with executor.streams.device.running_on(forward):
            executor.slot_table.apply(self._inputs.tensors)
            self._tensors = self._tensor_batch()

    def forward(self) -> None:
        """Enqueue relay, forward pass and logits; to be run in inference mode."""
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
            if self._num_sampled:
                last = self._hidden.index_select(0, staged["last_places"])
                self._logits = executor.model.compute_logits(last)  # [R, V]

    @torch.inference_mode()
    def run_forward_again(self) -> None:
        """See LaunchedStep.run_forward_again."""
        self.forward()

    @torch.inference_mode()
    def sample(
        self, sample_rows: list[SampleRow], prompt_logprob_rows: list[PromptLogprobRow]
    ) -> None:
        """See LaunchedStep.sample."""
        try:
            self._sample(sample_rows, prompt_logprob_rows)
        except self._executor.streams.device.out_of_memory as error:
            self._executor.refuse(self._batch, error)

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
        assert len(sample_rows) == self._num_sampled, "other rows than were launched"
        arrays: dict[str, HostArray] = {}
        if sample_rows:
            self._plan = executor.sampler.plan(sample_rows)
            arrays.update(self._plan.arrays)
        self._num_scored = [len(row.target_ids) for row in prompt_logprob_rows]
        starts = self._batch.cu_query_lens.tolist()
        self._scored = list(slices_of_prompts(prompt_logprob_rows, starts))
        for one in self._scored:
            arrays.update(one.arrays())
        staged = executor.sampling_inputs.upload(arrays) if arrays else None
        if staged is not None:
            forward.wait_for(staged.uploaded)
        with executor.streams.device.running_on(forward):
            self._results = executor.results.download(self._enqueue(staged))
        last_read = forward.record()
        self._inputs.release(last_read)
        if staged is not None:
            staged.release(last_read)

    def _enqueue(self, staged: StagedArrays | None) -> dict[str, torch.Tensor]:
        """Everything after the forward pass; returns what is to come back."""
        executor = self._executor
        tensors = {} if staged is None else staged.tensors
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

    def _arrays(self, sampled: list[int], relayed: list[int]) -> dict[str, HostArray]:
        """What the forward pass needs, the graph's own inputs first."""
        batch, step = self._batch, self._graph_step
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


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
