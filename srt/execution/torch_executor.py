"""TorchExecutor: one step of the model in this process: forward, logits where wanted, sampling."""

from __future__ import annotations

from pathlib import Path

import torch

from ..attention.backend import AttentionBackend
from ..attention.tensor_batch import TensorBatch
from ..attention.torch_reference import TorchReferenceAttention
from ..loading.model_config import ModelConfig
from ..loading.weights import load_weights
from ..memory.kv_pool import KvPool
from ..messages import PositionLogprobs
from ..models.causal_lm import CausalLM
from ..models.registry import build_model
from ..server_args import ServerArgs
from .forward_batch import (
    ForwardBatch,
    PromptLogprobRow,
    SampledToken,
    SampleRow,
    StepOutput,
)
from .host_limits import usable_cores
from .sampler import Sampler

# Prompt positions scored at once: their f32 logits take 25 MB at a vocabulary of 49,152.
_SCORED_POSITIONS = 128


def load_torch_executor(
    folder: Path, config: ModelConfig, args: ServerArgs, dtype: str, num_slots: int
) -> TorchExecutor:
    """Load the model in folder for the torch reference; sets torch's threads for this process.

    Raises ModelLoadError for weights that do not match config.
    """
    torch.set_num_threads(args.threads or usable_cores())
    device = torch.device("cpu" if args.device == "auto" else args.device)
    model = build_model(config, getattr(torch, dtype))
    weight_bytes = load_weights(folder, model.parameters())
    kv_pool = KvPool(config, num_slots, model.dtype, device)
    return TorchExecutor(model, kv_pool, TorchReferenceAttention(), weight_bytes)


class TorchExecutor:
    """An Executor. Owns model, KV pool, attention backend and sampler; one step at a time."""

    def __init__(
        self, model: CausalLM, kv_pool: KvPool, attention: AttentionBackend, weight_bytes: int
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self.attention = attention
        self.weight_bytes = weight_bytes
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.device = kv_pool.k.device.type
        self.weight_form = self.dtype
        self.backend_name = attention.name
        self._sampler = Sampler(model.config.vocab_size)

    @torch.inference_mode()
    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """See Executor.execute."""
        tensors = TensorBatch.of(batch, self.kv_pool.k.device)
        hidden = self.model.forward(tensors, self.kv_pool, self.attention)  # [T, hidden]
        starts = batch.cu_query_lens.tolist()
        return StepOutput(
            sampled=self._sample(hidden, starts, sample_rows),
            prompt_logprobs=[self._score(hidden, starts, row) for row in prompt_logprob_rows],
        )

    def _sample(
        self, hidden: torch.Tensor, starts: list[int], rows: list[SampleRow]
    ) -> list[SampledToken]:
        if not rows:
            return []
        last_tokens = torch.tensor([starts[row.batch_row + 1] - 1 for row in rows])
        logits = self.model.compute_logits(hidden[last_tokens.to(hidden.device)])  # [R, V]
        return self._sampler.sample(logits, rows)

    def _score(
        self, hidden: torch.Tensor, starts: list[int], row: PromptLogprobRow
    ) -> list[PositionLogprobs]:
        scored: list[PositionLogprobs] = []
        begin = starts[row.batch_row] + row.first
        for first in range(0, len(row.target_ids), _SCORED_POSITIONS):
            targets = row.target_ids[first : first + _SCORED_POSITIONS]
            at = begin + first
            logits = self.model.compute_logits(hidden[at : at + len(targets)])  # [P, V]
            scored += self._sampler.score_positions(logits, targets, row.options)
        return scored
