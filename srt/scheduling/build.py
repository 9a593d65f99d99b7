"""Builds the one scheduler of a process from a model folder and the server's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from runtime.grammars.prepared import GrammarEngine
from runtime.grammars.vocabulary import Vocabulary

from ..device_flags import steps_in_flight
from ..execution.host_limits import usable_cores
from ..execution.selection import load_executor
from ..loading.model_config import ModelConfig
from ..memory.kv_memory import KvMemory
from ..memory.request_table import default_num_rows
from ..messages import Ready
from ..sampling_params import SamplingParams
from ..server_args import ServerArgs
from ..tokenization.eos_token import read_eos_token_id
from ..tokenization.grammar_vocabulary import grammar_vocabulary
from ..tokenization.stop_checker import StopChecker
from ..tokenization.tokenizer import Tokenizer
from .config import SchedulerConfig
from .grammar_store import CompiledGrammars
from .queue_order import CACHE_AWARE
from .scheduler import Scheduler


def build_scheduler(
    folder: Path,
    model: ModelConfig,
    args: ServerArgs,
    tokenizer_folder: Path,
    announce: Callable[[str], None],
) -> tuple[Scheduler, Ready]:
    """Load the weights, size the pool and return the scheduler with its facts.

    announce is called from another thread with the key of a grammar that is done compiling; it must
    send the scheduler a GrammarReady.

    Raises ModelLoadError or ConfigError with a text for the user.
    """
    context_length = model.served_context(args.context_length)
    executor = load_executor(folder, model, args)
    total_tokens = executor.kv_pool.num_slots - args.page_size  # less the dummy page
    max_running = args.max_running_requests or default_num_rows(total_tokens)
    eos_ids = set(model.eos_token_ids)
    eos_token_id = read_eos_token_id(tokenizer_folder)
    if eos_token_id is not None:
        eos_ids.add(eos_token_id)
    memory = KvMemory(
        total_tokens,
        args.page_size,
        max_running,
        min(context_length, total_tokens),  # no request is longer than the pool
        enable_cache=not args.disable_radix_cache,
        eviction_policy=args.radix_eviction_policy,
        pinned_share=args.pin_pool_share,
    )
    knows_no_prefix = args.disable_radix_cache and args.schedule_policy in CACHE_AWARE
    config = SchedulerConfig(
        context_length=context_length,
        max_running_requests=max_running,
        max_queued_requests=args.max_queued_requests,
        chunk_tokens=None if args.chunked_prefill_size == -1 else args.chunked_prefill_size,
        policy="fcfs" if knows_no_prefix else args.schedule_policy,
        program_order=args.program_order,
        conservativeness=args.schedule_conservativeness,
        admission=args.admission_rule,
        target_retraction_rate=args.target_retraction_rate,
        max_wait_seconds=args.max_wait_seconds,
        ageing_stride=args.ageing_stride,
        in_batch_sharing_min_tokens=args.in_batch_sharing_min_tokens,
        in_batch_sharing_max_cached_tokens=args.in_batch_sharing_max_cached_tokens,
        max_prefill_slice_ms=args.max_prefill_slice_ms,
        preemption_threshold=args.priority_scheduling_preemption_threshold,
        max_queued_tokens=args.max_queued_tokens,
        shed_ttft_seconds=args.shed_ttft_seconds,
        quotas={
            one.name: one.tokens_per_minute
            for one in args.tenants
            if one.tokens_per_minute is not None
        },
        overlap_depth=steps_in_flight(args),
        test_retract_every=args.test_retract_every,
        mix_decode_into_prefill=args.enable_mixed_chunk,
        eos_token_ids=frozenset(eos_ids),
        stream_interval=args.stream_interval,
        log_interval_steps=args.decode_log_interval,
        vocab_size=model.vocab_size,
        jump_forward=not args.disable_jump_forward,
    )

    @cache
    def tokenizer() -> Tokenizer:
        # At the first request with a stop string: the others have no need of it.
        return Tokenizer.load(tokenizer_folder)

    def make_stop_checker(params: SamplingParams, prompt_tail: tuple[int, ...]) -> StopChecker:
        return StopChecker(tokenizer(), params, prompt_tail)

    facts = Ready(
        process="scheduler",
        max_total_tokens=total_tokens,
        context_length=context_length,
        max_running_requests=max_running,
        kv_pool_bytes=executor.kv_pool.num_bytes,
        weight_bytes=executor.weight_bytes,
        weight_form=executor.weight_form,
        attention_backend=executor.backend_name,
        dtype=executor.dtype,
        device=executor.device,
        threads=args.threads or usable_cores(),
    )

    def vocabulary() -> Vocabulary:
        return grammar_vocabulary(tokenizer(), model.vocab_size, eos_ids)

    engine = (
        GrammarEngine.XGRAMMAR if args.grammar_backend == "xgrammar" else GrammarEngine.LLGUIDANCE
    )
    grammars = CompiledGrammars(vocabulary, args.grammar_cache_mib * 2**20, announce, engine)
    return Scheduler(config, memory, executor, make_stop_checker, grammars=grammars), facts
