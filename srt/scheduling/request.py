"""Request: one prompt and its completion while the scheduler holds it.

State only; the scheduler changes it. A request is at any time either waiting (no lease) or active
(it holds a KV lease: prefilling while more than its last token is uncomputed, decoding after).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..memory.kv_memory import KvLease
from ..messages import FinishReason, GenerateRequest, PositionLogprobs
from ..sampling_params import SamplingParams
from ..tokenization.incremental import PROMPT_TAIL_TOKENS


class StopMatch(Protocol):
    """A stop string or regex found in the output text, by character offsets."""

    @property
    def matched(self) -> str: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class StopChecker(Protocol):
    """Looks for stop strings in the text that output tokens decode to."""

    def push(self, token_id: int, may_stop: bool) -> StopMatch | None:
        """Take one more token; return a stop that ends in its text, if stopping is allowed."""
        ...


MakeStopChecker = Callable[[SamplingParams, tuple[int, ...]], StopChecker]


@dataclass(slots=True, eq=False)
class Request:
    """Everything the scheduler knows of one request."""

    message: GenerateRequest
    stop_checker: StopChecker | None
    tokens: npt.NDArray[np.int32]  # prompt and output; only the first num_tokens are meant
    num_tokens: int
    output_ids: list[int] = field(default_factory=list)
    lease: KvLease | None = None
    num_computed: int = 0  # leading tokens whose KV stands in the lease's slots
    match_hint: int = 0  # cached prefix when last looked up, for the queue order
    cached_tokens: int | None = None  # prefix found at first admission
    queue_seconds: float | None = None
    first_token_seconds: float | None = None  # when it was drawn
    num_retractions: int = 0
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    output_logprobs: list[PositionLogprobs] = field(default_factory=list)
    num_sent: int = 0  # output tokens the detokenizer has got
    options_sent: bool = False
    finish: FinishReason | None = None

    @classmethod
    def of(cls, message: GenerateRequest, make_stop_checker: MakeStopChecker) -> Request:
        """A waiting request for message."""
        tokens = np.asarray(message.input_ids, dtype=np.int32)
        checker = None
        if message.sampling.needs_text_to_stop:
            checker = make_stop_checker(
                message.sampling, tuple(message.input_ids[-PROMPT_TAIL_TOKENS:])
            )
        request = cls(message, checker, tokens, len(tokens))
        if message.logprobs is not None and message.logprobs.prompt_start == 0:
            # Nothing predicts the first token; all other positions are scored by the model.
            request.prompt_logprobs.append(PositionLogprobs(None, message.input_ids[0]))
        return request

    @property
    def rid(self) -> str:
        """The id that clients, logs and aborts use."""
        return self.message.rid

    @property
    def params(self) -> SamplingParams:
        """How the completion is drawn."""
        return self.message.sampling

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens."""
        return len(self.message.input_ids)

    @property
    def max_new_tokens(self) -> int:
        """The limit on output tokens; the edge has made it a number."""
        assert self.params.max_new_tokens is not None, self.rid
        return self.params.max_new_tokens

    @property
    def num_new_tokens_left(self) -> int:
        """Output tokens it may still draw."""
        return self.max_new_tokens - len(self.output_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV the next steps must compute: 1 means a decode step."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether a single token is left to compute and output has begun."""
        return self.num_uncomputed == 1 and bool(self.output_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt positions are left to score."""
        return self.next_logprob_position < self.prompt_length

    @property
    def next_logprob_position(self) -> int:
        """First prompt position still to be scored; the prompt's length if none is."""
        options = self.message.logprobs
        if options is None or options.prompt_start is None:
            return self.prompt_length
        return options.prompt_start + len(self.prompt_logprobs)

    @property
    def match_limit(self) -> int:
        """Longest prefix that may come from the cache.

        At least one token must be computed, to have logits; and the token before each prompt
        position that is still to be scored.
        """
        limit = self.num_tokens - 1
        if self.wants_prompt_logprobs:
            limit = min(limit, max(self.next_logprob_position - 1, 0))
        return limit

    def append(self, token_id: int) -> None:
        """Add an output token."""
        if self.num_tokens == len(self.tokens):
            grown = np.empty(self.num_tokens + max(64, self.num_tokens // 2), dtype=np.int32)
            grown[: self.num_tokens] = self.tokens
            self.tokens = grown
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        self.output_ids.append(token_id)

    def all_tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and output as one view."""
        return self.tokens[: self.num_tokens]
