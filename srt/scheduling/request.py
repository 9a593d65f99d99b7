"""Request: one prompt and its completion while the scheduler holds it.

State only; the scheduler changes it. A request is at any time either waiting (no lease) or active
(it holds a KV lease: prefilling while more than its last token is uncomputed, decoding after).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..memory.kv_memory import KvLease
from ..memory.prefix_watch import PrefixWatch
from ..memory.radix_node import RadixNode
from ..messages import FinishReason, GenerateRequest, PositionLogprobs, PrefixPin
from ..sampling_params import SamplingParams
from ..tokenization.incremental import PROMPT_TAIL_TOKENS
from .choice_race import ChoiceRace
from .grammar_rows import GrammarState
from .length_history import Kind, kind_of


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
    # What every step reads, taken from the message once.
    rid: str  # the id that clients, logs and aborts use
    params: SamplingParams
    prompt_length: int  # the tokens of choices that are scored after it included
    max_new_tokens: int  # the edge has made the limit a number
    stop_ids: frozenset[int]  # that end the output, min_new_tokens permitting
    length_kind: Kind | None  # its output is as long as others of the kind; None: to its limit
    output_ids: list[int] = field(default_factory=list)
    lease: KvLease | None = None
    num_computed: int = 0  # leading tokens whose KV the steps launched so far compute
    num_ready: int = 0  # of them, those of steps whose results are in
    num_scored: int = 0  # prompt positions scored by the steps launched so far
    number: int = field(default_factory=itertools.count().__next__)  # in order of arrival
    watch: PrefixWatch | None = None  # on the cached prefix, while it stands in the queue's order
    cached_tokens: int | None = None  # prefix found at first admission
    queue_seconds: float | None = None
    first_token_seconds: float | None = None  # when it was drawn
    num_retractions: int = 0
    grammar: GrammarState | None = None  # set before it may run, where its output follows one
    ends_whole: bool = False  # the grammar's text is complete when the limit is reached
    num_forced: int = 0  # of its uncomputed tokens, those beyond one that a grammar forced
    forced_tail: list[int] = field(default_factory=list)  # of them, those after a pending token
    unscored: list[int] = field(default_factory=list)  # forced, not output before they are scored
    is_pending_forced: bool = False  # whether a grammar has forced the token that is being drawn
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    output_logprobs: list[PositionLogprobs] = field(default_factory=list)
    num_sent: int = 0  # output tokens the detokenizer has got
    options_sent: bool = False
    finish: FinishReason | None = None
    pin: PrefixPin | None = None  # made at its end, if it was to be pinned
    race: ChoiceRace | None = None  # of choices to score; their tokens count as the prompt's

    @classmethod
    def of(
        cls,
        message: GenerateRequest,
        make_stop_checker: MakeStopChecker,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> Request:
        """A waiting request for message."""
        params = message.sampling
        assert params.max_new_tokens is not None, message.rid
        tokens = np.asarray(message.input_ids, dtype=np.int32)
        checker = None
        if params.needs_text_to_stop:
            checker = make_stop_checker(params, tuple(message.input_ids[-PROMPT_TAIL_TOKENS:]))
        stop_ids = frozenset(params.stop_token_ids)
        request = cls(
            message=message,
            stop_checker=checker,
            tokens=tokens,
            num_tokens=len(tokens),
            rid=message.rid,
            params=params,
            prompt_length=len(tokens),
            max_new_tokens=params.max_new_tokens,
            stop_ids=stop_ids if params.ignore_eos else stop_ids | eos_token_ids,
            length_kind=None
            if params.ignore_eos
            else kind_of(message.namespace, params.max_new_tokens),
        )
        if message.logprobs is not None and message.logprobs.prompt_start == 0:
            # Nothing predicts the first token; all other positions are scored by the model.
            request.prompt_logprobs.append(PositionLogprobs(None, message.input_ids[0]))
            request.num_scored = 1
        if message.choices is not None:
            request.race = ChoiceRace(message.choices, has_prompt=request.prompt_length > 0)
            request.add_choice_tokens(request.race.begin())
        return request

    @property
    def num_new_tokens_left(self) -> int:
        """Output tokens it may still draw, beyond one that is being drawn."""
        return self.max_new_tokens + self.prompt_length - self.num_tokens

    @property
    def has_pending_token(self) -> bool:
        """Whether the last of num_tokens is still being drawn."""
        return self.num_tokens > self.prompt_length + len(self.output_ids) + len(self.unscored)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV the next steps must compute: 1 means a decode step."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether one token is left to compute, beside forced ones, and output has begun."""
        num_tokens = self.num_tokens
        num_uncomputed = num_tokens - self.num_computed
        return num_uncomputed == 1 + self.num_forced and num_tokens > self.prompt_length

    @property
    def kv_lease(self) -> KvLease:
        """The lease of an active request."""
        assert self.lease is not None, f"request {self.rid} holds no lease"
        return self.lease

    @property
    def num_cached(self) -> int:
        """Tokens of a waiting request that the cache has now, as far as they may be used."""
        return 0 if self.watch is None else self.watch.num_matched

    @property
    def cached_node(self) -> RadixNode | None:
        """The tree node where the cached prefix of a waiting request ends."""
        if self.watch is None or self.watch.place is None:
            return None
        return self.watch.place.node

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
        return options.prompt_start + self.num_scored

    @property
    def match_limit(self) -> int:
        """Longest prefix that may come from the cache.

        At least one token must be computed, to have logits; and the token before each prompt
        position that is still to be scored.
        """
        limit = max(min(self.num_tokens, self.num_cacheable) - 1, 0)
        if self.wants_prompt_logprobs:
            limit = min(limit, max(self.next_logprob_position - 1, 0))
        return limit

    @property
    def num_cacheable(self) -> int:
        """Leading tokens that are known and form one sequence: those that others may find."""
        if self.race is not None:
            return len(self.message.input_ids)
        return self.prompt_length + len(self.output_ids)

    def add_choice_tokens(self, token_ids: list[int]) -> None:
        """Put tokens of choices behind those that are there; they follow each other by a trie."""
        more = np.asarray(token_ids, dtype=np.int32)
        self.tokens = np.concatenate([self.tokens, more])
        self.num_tokens = self.prompt_length = len(self.tokens)

    def go_on_with_race(self) -> bool:
        """Take up the tokens of the race's next stage; False if it is over."""
        assert self.race is not None, self.rid
        token_ids = self.race.go_on()
        self.add_choice_tokens(token_ids)
        return bool(token_ids)

    def reserve(self) -> None:
        """Make place for the output token that a launched step will draw.

        With one step in flight while the next is launched, two places may be open.
        """
        place = self.num_tokens
        if place == len(self.tokens):
            grown = np.empty(place + max(64, place // 2), dtype=np.int32)
            grown[:place] = self.tokens
            self.tokens = grown
        self.num_tokens = place + 1

    def append(self, token_id: int) -> None:
        """Put the output token that was drawn in its place."""
        self.tokens[self.prompt_length + len(self.output_ids)] = token_id
        self.output_ids.append(token_id)

    def forget_steps(self) -> None:
        """Become as if no step had been launched of which the results are not in."""
        self.num_tokens = self.prompt_length + len(self.output_ids)
        self.num_scored = len(self.prompt_logprobs)
        self.num_computed = self.num_ready = 0
        self.num_forced = 0
        self.forced_tail.clear()
        self.unscored.clear()
        self.is_pending_forced = False

    def jump_forward(self, forced: list[int]) -> list[int]:
        """Plan forced tokens, those that must follow the token just drawn; append it after this.

        The next step computes them beside the row's next token. Returns those to append right after
        the drawn one. If a step that draws the first of them is in flight already, the rest are
        planned behind it, and returned when that one has been drawn. Where log-probabilities are
        asked for none are returned: take_scored gives them when a step has scored them.
        """
        tail, self.forced_tail = self.forced_tail, []
        if tail or not forced:
            return self._held_until_scored(tail)
        is_pending = self.num_tokens > self.prompt_length + len(self.output_ids) + 1
        if is_pending:
            self.tokens[self.num_tokens - 1] = forced[0]
            self.is_pending_forced = True
            forced = forced[1:]
        forced = forced[: self.num_new_tokens_left]
        for token_id in forced:
            self.reserve()
            self.tokens[self.num_tokens - 1] = token_id
        self.num_forced = len(forced)
        if not is_pending:
            return self._held_until_scored(forced)
        self.forced_tail = forced
        return []

    @property
    def forced_to_score(self) -> list[int]:
        """The forced tokens that the next step computes, which the tokens before them predict."""
        first = self.num_tokens - self.num_forced
        planned: list[int] = self.tokens[first : self.num_tokens].tolist()
        return planned

    def take_scored(self) -> list[int]:
        """Return the forced tokens that a step has scored, to be appended; forget them here."""
        scored, self.unscored = self.unscored, []
        return scored

    def _held_until_scored(self, token_ids: list[int]) -> list[int]:
        if self.message.logprobs is None:
            return token_ids
        self.unscored = token_ids
        return []

    def all_tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and output as one view; a pending token's place holds anything."""
        return self.tokens[: self.num_tokens]
