"""TorchExecutor: one step of the model in this process: forward, logits where wanted, sampling."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from ..attention.backend import AttentionBackend
from ..attention.torch_reference import TorchReferenceAttention
from ..errors import ConfigError
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
from .kv_budget import plan_kv_tokens
from .sampler import Sampler

logger = logging.getLogger(__name__)

# Prompt positions scored at once: their f32 logits take 25 MB at a vocabulary of 49,152.
_SCORED_POSITIONS = 128


class TorchExecutor:
    """An Executor. Owns model, KV pool, attention backend and sampler; one step at a time."""

    def __init__(
        self, model: CausalLM, kv_pool: KvPool, attention: AttentionBackend, weight_bytes: int
    ) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self.attention = attention
        self.weight_bytes = weight_bytes
        self.dtype = model.dtype
        self._sampler = Sampler(model.config.vocab_size)

    @torch.inference_mode()
    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """See Executor.execute."""
        hidden = self.model.forward(batch, self.kv_pool, self.attention)  # [T, hidden]
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


def load_executor(folder: Path, config: ModelConfig, args: ServerArgs) -> TorchExecutor:
    """Load the model in folder and allot its KV pool: plan_kv_tokens plus one dummy page of slots.

    Sets torch's thread count for this process. Raises ConfigError for flags that cannot be honoured
    and ModelLoadError for weights that do not match config.
    """
    device = _device(args.device)
    torch.set_num_threads(args.threads or usable_cores())
    dtype = torch_dtype(config.dtype if args.dtype == "auto" else args.dtype)
    started = time.monotonic()
    # Weights are allotted but not touched yet, so the plan still sees the memory they will take.
    model = build_model(config, dtype)
    parameters = model.parameters()
    weight_bytes = sum(parameter.nbytes for parameter in parameters.values())
    num_tokens = plan_kv_tokens(args, config, dtype, weight_bytes)
    load_weights(folder, parameters)
    kv_pool = KvPool(config, num_tokens + args.page_size, dtype, device)
    logger.info(
        "loaded %s (%s, %.0f MB of weights) in %.1f s; KV pool of %d tokens, %.0f MB",
        config.architecture,
        args.dtype if args.dtype != "auto" else config.dtype,
        weight_bytes / 1e6,
        time.monotonic() - started,
        num_tokens,
        kv_pool.num_bytes / 1e6,
    )
    return TorchExecutor(model, kv_pool, TorchReferenceAttention(), weight_bytes)


def torch_dtype(name: str) -> torch.dtype:
    """bfloat16, float16 or float32 as a torch type."""
    return {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }[name]


def _device(name: str) -> torch.device:
    if name == "cuda":
        raise ConfigError("--device is cuda, and GPU support is not built yet; use cpu or auto")
    return torch.device("cpu")
