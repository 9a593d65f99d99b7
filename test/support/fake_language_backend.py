"""A backend of the language that computes nothing: it says what it is told, or counts its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from runtime.lang.backends.protocol import Abilities, Output
from runtime.lang.choices import ChoiceScore
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import FIELDS, Sampling
from runtime.lang.transcript import Prompt

ALL_ABILITIES = Abilities(sampling_fields=frozenset(FIELDS))


class FakeBackend:
    """answer makes each text from the prompt; it may raise. delay_seconds is before each answer."""

    name = "the fake backend"

    def __init__(
        self,
        answer: Callable[[Prompt], str] = lambda prompt: "<out>",
        *,
        delay_seconds: float | None = None,
        timeout_seconds: float = 20.0,
        finish: str = "stop",
        **lacks: object,
    ) -> None:
        self.abilities = replace(ALL_ABILITIES, **lacks)  # type: ignore[arg-type]  # by name
        self.timeout_seconds = timeout_seconds
        self.prompts: list[Prompt] = []
        self.sampling: list[Sampling] = []
        self.commits: list[Prompt] = []
        self.log: list[str] = []
        self.num_cancelled = 0
        self.num_running = 0
        self.most_running = 0
        self._answer = answer
        self._delay_seconds = delay_seconds
        self._finish = finish

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        self.prompts.append(prompt)
        self.sampling.append(sampling)
        self.log.append("generate")
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            if self._delay_seconds is not None:
                await asyncio.sleep(self._delay_seconds)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
        meta = {"finish_reason": {"type": self._finish}}
        return [Output(self._answer(prompt), meta) for _ in range(sampling.n or 1)]

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        whole = (await self.generate(prompt, sampling, logprobs))[0]
        for length in range(1, len(whole.text) + 1):
            yield Output(whole.text[:length], whole.meta)

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], with_unconditional: bool
    ) -> list[ChoiceScore]:
        """A choice's score is minus its length, so that the shortest wins."""
        self.prompts.append(prompt)
        self.log.append("score")
        none = (0.0,) if with_unconditional else None
        return [ChoiceScore((i,), (-float(len(one)),), none) for i, one in enumerate(choices)]

    async def commit(self, prompt: Prompt) -> None:
        self.commits.append(prompt)
        self.log.append("commit")
