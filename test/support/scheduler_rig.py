"""A scheduler on a fake model and a fake clock, for tests that watch requests from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.fake_executor import FakeExecutor
from support.fake_grammar import HashGrammars

from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.messages import (
    ChoiceLogprobs,
    ChoiceSet,
    FinishReason,
    GenerateRequest,
    GrammarSource,
    PositionLogprobs,
    PrefixPin,
    TokenDelta,
)
from runtime.srt.sampling_params import LogprobOptions, SamplingParams
from runtime.srt.scheduling.config import SchedulerConfig
from runtime.srt.scheduling.request import StopMatch
from runtime.srt.scheduling.scheduler import Scheduler


class NoStops:
    """A stop checker that never finds anything."""

    def push(self, token_id: int, may_stop: bool) -> StopMatch | None:
        return None


@dataclass
class Outcome:
    """What came out of one request so far."""

    token_ids: list[int] = field(default_factory=list)
    output_logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish: FinishReason | None = None
    pin: PrefixPin | None = None
    choice_logprobs: list[ChoiceLogprobs] | None = None
    cached_tokens: int = 0
    num_deltas: int = 0
    num_retractions: int = 0
    finished_at_step: int = 0
    first_token_seconds: list[float | None] = field(default_factory=list)  # of each delta

    def add(self, delta: TokenDelta, step: int) -> None:
        progress = delta.progress
        assert self.finish is None, "a delta after the finish"
        assert (delta.options is not None) == (self.num_deltas == 0)
        self.num_deltas += 1
        self.token_ids += progress.token_ids
        assert progress.completion_tokens == len(self.token_ids)
        self.output_logprobs += progress.output_logprobs or []
        if progress.prompt_logprobs is not None:
            self.prompt_logprobs = progress.prompt_logprobs
        self.finish = progress.finish
        self.pin = progress.pin
        self.choice_logprobs = progress.choice_logprobs
        self.first_token_seconds.append(progress.first_token_seconds)
        self.cached_tokens = progress.cached_tokens
        self.num_retractions = progress.num_retractions
        self.finished_at_step = step


class SchedulerRig:
    """Feeds requests to a scheduler and checks the accounting identity after every step."""

    def __init__(
        self,
        total_tokens: int = 256,
        page_size: int = 1,
        vocab_size: int = 50,
        enable_cache: bool = True,
        eviction_policy: str = "lru",
        pinned_share: float = 0.25,
        make_stop_checker: Any = None,
        make_executor: Callable[[int, int], FakeExecutor] = FakeExecutor,
        **config: Any,
    ) -> None:
        config = {
            "context_length": 128,
            "vocab_size": vocab_size,
            "max_running_requests": 8,
            "chunk_tokens": 16,
            **config,
        }
        self.memory = KvMemory(
            total_tokens,
            page_size,
            config["max_running_requests"],
            config["context_length"],
            enable_cache=enable_cache,
            eviction_policy=eviction_policy,
            pinned_share=pinned_share,
        )
        self.executor = make_executor(total_tokens + page_size, vocab_size)
        self.grammars = HashGrammars()
        self.now = 0.0
        self.seconds_per_token = 0.0  # that a step takes
        self.executor.on_step = self._pass_time
        self.scheduler = Scheduler(
            SchedulerConfig(**config),
            self.memory,
            self.executor,
            make_stop_checker or (lambda params, tail: NoStops()),
            clock=lambda: self.now,
            grammars=self.grammars,
        )
        self.outcomes: dict[str, Outcome] = {}
        self.num_steps = 0

    def submit(
        self,
        rid: str,
        prompt: list[int],
        *,
        logprobs: LogprobOptions | None = None,
        stream: bool = True,
        namespace: str | None = None,
        priority: int = 0,
        tenant: str | None = None,
        program_id: str | None = None,
        timeout_seconds: float | None = None,
        grammar: GrammarSource | None = None,
        pin_seconds: float | None = None,
        choices: ChoiceSet | None = None,
        **sampling: Any,
    ) -> None:
        sampling.setdefault("max_new_tokens", 4)
        sampling.setdefault("temperature", 0.0)
        self.outcomes[rid] = Outcome()
        self.now += 0.001
        self.scheduler.receive(
            GenerateRequest(
                rid=rid,
                input_ids=prompt,
                sampling=SamplingParams(**sampling),
                logprobs=logprobs,
                stream=stream,
                namespace=namespace,
                priority=priority,
                arrival_seconds=self.now,
                tenant=tenant,
                program_id=program_id,
                pin_seconds=pin_seconds,
                choices=choices,
                grammar=grammar,
                deadline_seconds=None if timeout_seconds is None else self.now + timeout_seconds,
            )
        )
        self._collect()

    def _pass_time(self, num_tokens: int) -> None:
        self.now += num_tokens * self.seconds_per_token

    def step(self) -> bool:
        ran = self.scheduler.step()
        self.num_steps += 1
        self.now += 0.01
        self._collect()
        self.memory.check_identity()
        return ran

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left; then everything but pins must have been given back."""
        self._collect()
        for _ in range(max_steps):
            if self.scheduler.is_idle:
                break
            self.step()
        assert self.scheduler.is_idle, "the scheduler does not come to rest"
        self.step()
        stats = self.memory.stats()
        assert stats.protected == stats.pinned and stats.held == 0, stats
        assert stats.available + stats.evictable + stats.pinned == stats.total, stats

    def _collect(self) -> None:
        for delta in self.scheduler.take_token_deltas():
            self.outcomes[delta.progress.rid].add(delta, self.num_steps)
