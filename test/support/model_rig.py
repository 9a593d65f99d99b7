"""ModelRig: a loaded model driven step by step, as a scheduler would; slots in random order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.kernels.cpu.library import StepInput
from runtime.srt.attention.tensor_batch import TensorBatch
from runtime.srt.execution.forward_batch import ForwardBatch, SampleRow
from runtime.srt.execution.native_executor import NativeExecutor
from runtime.srt.execution.selection import LoadedExecutor, load_executor
from runtime.srt.execution.torch_executor import TorchExecutor
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.server_args import ServerArgs

GREEDY = SamplingParams(temperature=0.0)


class ModelRig:
    """Rows of the slot table are sequences; their slots are scattered over the pool."""

    def __init__(
        self,
        folder: Path,
        num_sequences: int = 8,
        max_tokens: int = 128,
        threads: int = 1,
        attention_backend: str = "torch_reference",
        **args: Any,
    ) -> None:
        num_slots = num_sequences * max_tokens
        self.config = ModelConfig.load(folder, {})
        args = {"threads": threads, "attention_backend": attention_backend, **args}
        self.executor: LoadedExecutor = load_executor(
            folder, self.config, ServerArgs(max_total_tokens=num_slots, **args)
        )
        order = np.random.default_rng(0).permutation(num_slots).astype(np.int32)
        self.slot_table = (1 + order).reshape(num_sequences, max_tokens)
        self.num_cached = [0] * num_sequences

    def batch(self, rows: dict[int, list[int]]) -> ForwardBatch:
        """The step that appends the given new tokens to each sequence."""
        input_ids: list[int] = []
        positions: list[int] = []
        out_slots: list[int] = []
        cu_query_lens = [0]
        kv_lens = []
        for sequence, tokens in rows.items():
            start = self.num_cached[sequence]
            end = start + len(tokens)
            input_ids += tokens
            positions += range(start, end)
            out_slots += self.slot_table[sequence, start:end].tolist()
            cu_query_lens.append(len(input_ids))
            kv_lens.append(end)
            self.num_cached[sequence] = end
        return ForwardBatch(
            input_ids=np.array(input_ids, dtype=np.int64),
            positions=np.array(positions, dtype=np.int64),
            out_slots=np.array(out_slots, dtype=np.int64),
            cu_query_lens=np.array(cu_query_lens, dtype=np.int32),
            kv_lens=np.array(kv_lens, dtype=np.int32),
            table_rows=np.array(list(rows), dtype=np.int64),
            slot_table=self.slot_table,
        )

    def step(self, rows: dict[int, list[int]]) -> list[int]:
        """Append tokens to sequences and return the greedy next token of each."""
        sample_rows = [
            SampleRow(index, GREEDY, seed=0, position=0, prompt_ids=[], output_ids=[])
            for index in range(len(rows))
        ]
        sampled = self.executor.execute(self.batch(rows), sample_rows, []).sampled
        assert all(one.error is None for one in sampled), sampled
        return [one.token_id for one in sampled]

    def generate(self, sequence: int, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy continuation of prompt on a fresh sequence."""
        self.num_cached[sequence] = 0
        tokens = self.step({sequence: prompt})
        while len(tokens) < num_tokens:
            tokens += self.step({sequence: tokens[-1:]})
        return tokens

    @torch.inference_mode()
    def logits(self, rows: dict[int, list[int]]) -> torch.Tensor:
        """Append tokens and return the logits of every new token, [T, V] f32."""
        executor = self.executor
        if isinstance(executor, NativeExecutor):
            batch = self.batch(rows)
            fields = {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}
            logits = torch.empty(batch.num_tokens, self.config.vocab_size)
            every = torch.arange(batch.num_tokens, dtype=torch.int32)
            k, v = executor.kv_pool.k, executor.kv_pool.v
            executor.model.step(StepInput(**fields), k, v, every, logits=logits)
            return logits
        assert isinstance(executor, TorchExecutor)
        tensors = TensorBatch.of(self.batch(rows), torch.device("cpu"))
        hidden = executor.model.forward(tensors, executor.kv_pool, executor.attention)
        return executor.model.compute_logits(hidden)
