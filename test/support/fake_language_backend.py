"""A backend of the language that computes nothing: it says what it is told, or counts its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from runtime.lang.backends.protocol import Abilities, Output
from runtime.lang.choices import ChoiceScore, ChoicesMethod
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import FIELDS, Sampling
from runtime.lang.tools import ToolCall, ToolOffer
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
        self.offers: list[ToolOffer] = []
        self.pins: list[tuple[Prompt, float]] = []
        self.pin_error: Exception | None = None
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
        outputs = await self.generate(prompt, sampling, logprobs)
        for length in range(1, max(len(one.text) for one in outputs) + 1):
            for index, one in enumerate(outputs):
                yield Output(one.text[:length], one.meta, index)

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], method: ChoicesMethod, early_exit: bool
    ) -> list[ChoiceScore]:
        """A choice's score is minus its length, so that the shortest wins."""
        self.prompts.append(prompt)
        self.log.append("score")
        alone = method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        none = (0.0,) if alone else None
        return [ChoiceScore((i,), (-float(len(one)),), none) for i, one in enumerate(choices)]

    async def call_tools(
        self, prompt: Prompt, sampling: Sampling, offer: ToolOffer
    ) -> list[Output]:
        """What is answered in the form `name{...}` is a call, if the name was offered."""
        self.offers.append(offer)
        outputs = await self.generate(prompt, sampling, None)
        return [_as_call(one, f"call-{len(self.offers)}", offer) for one in outputs]

    async def commit(self, prompt: Prompt) -> None:
        self.commits.append(prompt)
        self.log.append("commit")

    async def pin(self, prompt: Prompt, seconds: float) -> None:
        self.log.append("pin")
        if self.pin_error is not None:
            raise self.pin_error
        self.pins.append((prompt, seconds))


def _as_call(output: Output, call_id: str, offer: ToolOffer) -> Output:
    name, brace, rest = output.text.partition("{")
    if not brace or name not in [one.name for one in offer.tools]:
        return output
    return replace(output, text="", calls=(ToolCall(call_id, name, brace + rest),))
