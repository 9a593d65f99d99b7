"""Builds the one scheduler of a process from a model folder and the server's settings."""

from __future__ import annotations

from pathlib import Path

from ..execution.host_limits import usable_cores
from ..execution.selection import load_executor
from ..loading.model_config import ModelConfig
from ..memory.kv_memory import KvMemory
from ..messages import Ready
from ..sampling_params import SamplingParams
from ..server_args import ServerArgs
from ..tokenization.stop_checker import StopChecker
from ..tokenization.tokenizer import Tokenizer
from .config import SchedulerConfig
from .scheduler import Scheduler

MAX_RUNNING_REQUESTS = 256
TOKENS_PER_RUNNING_REQUEST = 64  # a pool smaller than this times the rows could not feed them


def build_scheduler(
    folder: Path, model: ModelConfig, args: ServerArgs, tokenizer: Tokenizer
) -> tuple[Scheduler, Ready]:
    """Load the weights, size the pool and return the scheduler with its facts.

    Raises ModelLoadError or ConfigError with a text for the user.
    """
    context_length = model.served_context(args.context_length)
    executor = load_executor(folder, model, args)
    total_tokens = executor.kv_pool.num_slots - args.page_size  # less the dummy page
    max_running = args.max_running_requests or max(
        1, min(MAX_RUNNING_REQUESTS, total_tokens // TOKENS_PER_RUNNING_REQUEST)
    )
    eos_ids = set(model.eos_token_ids)
    if tokenizer.eos_token_id is not None:
        eos_ids.add(tokenizer.eos_token_id)
    memory = KvMemory(
        total_tokens,
        args.page_size,
        max_running,
        context_length,
        enable_cache=not args.disable_radix_cache,
    )
    config = SchedulerConfig(
        context_length=context_length,
        max_running_requests=max_running,
        max_queued_requests=args.max_queued_requests,
        chunk_tokens=None if args.chunked_prefill_size == -1 else args.chunked_prefill_size,
        policy="fcfs" if args.disable_radix_cache else args.schedule_policy,
        conservativeness=args.schedule_conservativeness,
        mix_decode_into_prefill=args.enable_mixed_chunk,
        eos_token_ids=frozenset(eos_ids),
        stream_interval=args.stream_interval,
        log_interval_steps=args.decode_log_interval,
    )

    def make_stop_checker(params: SamplingParams, prompt_tail: tuple[int, ...]) -> StopChecker:
        return StopChecker(tokenizer, params, prompt_tail)

    facts = Ready(
        process="scheduler",
        max_total_tokens=total_tokens,
        context_length=context_length,
        max_running_requests=max_running,
        kv_pool_bytes=executor.kv_pool.num_bytes,
        weight_bytes=executor.weight_bytes,
        weight_form=executor.weight_form,
        attention_backend=executor.backend_name,
        dtype=str(executor.dtype).removeprefix("torch."),
        device=executor.kv_pool.k.device.type,
        threads=args.threads or usable_cores(),
    )
    return Scheduler(config, memory, executor, make_stop_checker), facts
