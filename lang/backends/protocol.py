"""What a program needs of a backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from ..choices import ChoiceScore, ChoicesMethod
from ..expressions import LogprobRequest
from ..sampling import Sampling
from ..tools import ToolCall, ToolOffer
from ..transcript import Prompt


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend can do; a program that needs more is refused before any call.

    goes_on_in_messages: also after text that a message has already, and in any role;
    goes_on_in_assistant: the same, but in messages of the assistant only. scores_unconditionally:
    select compares by what the text before raises. scoring_hint ends the refusal where
    scores_choices is false. gives_prompt_logprobs: also of the prompt.
    """

    sampling_fields: frozenset[str]
    goes_on_from_text: bool = True
    takes_messages: bool = True
    goes_on_in_messages: bool = True
    goes_on_in_assistant: bool = False
    scores_choices: bool = True
    scoring_hint: str = ""
    scores_unconditionally: bool = True
    gives_logprobs: bool = True
    gives_prompt_logprobs: bool = True
    keeps_prefixes: bool = True
    pins_prefixes: bool = True
    calls_tools: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """What the model wrote: all text so far, and the meta info in the native API's form.

    index tells the samples of one call apart; calls are those of tools that were offered.
    """

    text: str
    meta: dict[str, Any]
    index: int = 0
    calls: tuple[ToolCall, ...] = ()


class Backend(Protocol):
    """Computes on the shared loop. Calls raise BackendError; cancelling one ends the request."""

    @property
    def name(self) -> str:
        """What error messages call it."""

    @property
    def abilities(self) -> Abilities:
        """What it can do."""

    @property
    def timeout_seconds(self) -> float:
        """Longest time for one call."""

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        """Go on from prompt; one output for each of sampling.n."""

    def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        """Go on from prompt; each output holds all text so far, the last of an index has all."""

    async def call_tools(
        self, prompt: Prompt, sampling: Sampling, offer: ToolOffer
    ) -> list[Output]:
        """Answer prompt, which opens an empty message of the assistant, or call what is offered."""

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], method: ChoicesMethod, early_exit: bool
    ) -> list[ChoiceScore]:
        """The log-probabilities of each choice after prompt, as far as method needs them.

        early_exit: what cannot change the winner may be left out.
        """

    async def commit(self, prompt: Prompt) -> None:
        """Compute prompt into the cache, so that what begins with it starts from there."""

    async def pin(self, prompt: Prompt, seconds: float) -> None:
        """The same, and keep it there for so long."""
