"""What a program needs of a backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from ..choices import ChoiceScore
from ..expressions import LogprobRequest
from ..sampling import Sampling
from ..transcript import Prompt


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend can do; a program that needs more is refused before any call.

    goes_on_in_messages: also after text that a message has already, and in any role.
    """

    sampling_fields: frozenset[str]
    goes_on_from_text: bool = True
    takes_messages: bool = True
    goes_on_in_messages: bool = True
    scores_choices: bool = True
    gives_logprobs: bool = True
    keeps_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """What the model wrote: all text so far, and the meta info in the native API's form."""

    text: str
    meta: dict[str, Any]


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
        """Go on from prompt once; each output holds all text so far, the last has all of it."""

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], with_unconditional: bool
    ) -> list[ChoiceScore]:
        """The log-probabilities of each choice after prompt."""

    async def commit(self, prompt: Prompt) -> None:
        """Compute prompt into the cache, so that what begins with it starts from there."""
