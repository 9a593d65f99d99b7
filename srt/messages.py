"""Every struct that crosses a process boundary.

Array-encoded, tagged msgspec structs: nothing is ever unpickled from a socket. This module imports
nothing heavy, so that any process can start fast.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from runtime.grammars.prepared import PreparedGrammar
from runtime.grammars.spec import GrammarSpec

from .sampling_params import LogprobOptions, SamplingParams


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Raw log-probabilities at one position.

    logprob is None for the first prompt token, which nothing predicts. top and by_id hold (logprob,
    token id) pairs: the most likely tokens in falling order, and the ids that were asked for.
    is_forced: nothing else was legal in the request's grammar, and jump-forward did not draw it.
    """

    logprob: float | None
    token_id: int
    top: tuple[tuple[float, int], ...] | None = None
    by_id: tuple[tuple[float, int], ...] | None = None
    is_forced: bool = False


class FinishReason(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Why a request ended.

    stop: matched holds the stop string, regex or token id; text_end the number of output characters
    to keep (None: all that is decoded). length: max_new_tokens or the context is used up.
    abort: message, status_code and error_type say why; status_code None: the client asked for it.
    """

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    text_end: int | None = None
    message: str | None = None
    status_code: int | None = None
    error_type: str | None = None


class KvStats(msgspec.Struct, frozen=True, array_like=True):
    """KV pool accounting, in tokens.

    available + evictable + protected + held == total, always; held (slots of running requests that
    the tree does not own) is 0 when the scheduler is idle, and protected (locked in the tree) is
    then what retention pins keep: pinned, a part of protected.
    """

    total: int
    available: int
    evictable: int
    protected: int
    held: int
    pinned: int = 0


class PrefixPin(msgspec.Struct, frozen=True, array_like=True):
    """A pinned prefix; expiry_seconds is of time.monotonic(). Its id is the request's."""

    num_tokens: int
    expiry_seconds: float


# HTTP/tokenizer process -> scheduler


class ChoicePath(msgspec.Struct, frozen=True, array_like=True):
    """One choice as the tokens that follow the prompt; the first num_unscored are the prompt's own.

    What is left is at least one token. Without a prompt the first token is not scored.
    """

    token_ids: list[int]
    num_unscored: int = 0


class ChoiceSet(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Choices to score after a prompt, in one request that draws nothing.

    early_exit: what cannot change the winner by method may be left out.
    """

    paths: list[ChoicePath]
    method: Literal[
        "token_length_normalized",
        "greedy_token_selection",
        "unconditional_likelihood_normalized",
    ] = "token_length_normalized"
    early_exit: bool = False


class ChoiceLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one choice's scored tokens; None where early exit left one out.

    unconditional holds those of the same tokens by themselves, the first of which counts as 0; it
    is there with the method that needs it.
    """

    logprobs: list[float | None]
    unconditional: list[float | None] | None = None


class GrammarSource(msgspec.Struct, frozen=True, array_like=True):
    """A checked grammar that an output must follow, and the key it is cached under."""

    key: str
    prepared: PreparedGrammar


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """One prompt, one completion. Every id, range and length was checked at the edge."""

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    stream: bool = False
    namespace: str | None = None
    priority: int = 0
    seed: int = 0
    arrival_seconds: float = 0.0  # time.monotonic(), which all processes of one host share
    deadline_seconds: float | None = None  # time.monotonic(); then it ends with an error
    tenant: str | None = None  # whose token quota it counts against
    program_id: str | None = None  # of the run of a program that it is a call of
    branch_id: str | None = None  # which branch of that program makes the call
    pin_seconds: float | None = None  # how long its prompt is pinned once it is computed
    grammar: GrammarSource | None = None  # that the output follows
    choices: ChoiceSet | None = None  # to score after the prompt, which may then be empty


class AbortRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Abort the request with exactly this id; None aborts all.

    is_shutdown: not because a client asked for it; each ends with an error that says so.
    """

    rid: str | None
    is_shutdown: bool = False


class FlushCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Empty the radix tree as soon as the scheduler is idle, within timeout_seconds."""

    call_id: int
    timeout_seconds: float


class UnpinPrefix(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the pin with this id before its time."""

    call_id: int
    pin_id: str


class StateQuery(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ask for a SchedulerState."""

    call_id: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the process; the sender has drained or given up the open requests."""


class GrammarReady(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The scheduler's own compiling thread has done with a grammar, well or not."""

    key: str


ToScheduler: TypeAlias = (
    GenerateRequest | AbortRequest | FlushCache | UnpinPrefix | StateQuery | GrammarReady | Stop
)


# HTTP/tokenizer process -> grammar worker


class CheckGrammar(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Check spec, rewrite it, and compile it once to see that it can be."""

    call_id: int
    spec: GrammarSpec


ToGrammarWorker: TypeAlias = CheckGrammar | Stop


# scheduler -> detokenizer


class DecodeOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How a request's ids become text; sent with its first TokenDelta."""

    prompt_tail: tuple[int, ...] = ()  # last prompt ids: context for the first output bytes
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False


class Progress(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Counters and results of one request up to a delta; the detokenizer passes them through."""

    rid: str
    token_ids: list[int]  # new since the last delta
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish: FinishReason | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None  # once, complete
    output_logprobs: list[PositionLogprobs] | None = None  # of token_ids
    num_retractions: int = 0
    queue_seconds: float | None = None  # once, with the first delta
    sent_seconds: float = 0.0  # time.monotonic()
    first_token_seconds: float | None = None  # time.monotonic(), once, with the first delta
    pin: PrefixPin | None = None  # with the finish of a request that was to be pinned
    choice_logprobs: list[ChoiceLogprobs] | None = None  # with the finish, in the order asked for


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one request; options come with the first one only."""

    progress: Progress
    options: DecodeOptions | None = None


class TokenBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The deltas of one scheduler step."""

    deltas: list[TokenDelta]


ToDetokenizer: TypeAlias = TokenBatch | Stop


# detokenizer, scheduler -> HTTP/tokenizer process


class TextDelta(msgspec.Struct, frozen=True, array_like=True):
    """New text of one request: never a broken character, never part of a possible stop string."""

    text: str
    progress: Progress


class TextBatch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The deltas of one scheduler step, as text."""

    deltas: list[TextDelta]


class FlushDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to FlushCache; message says why it failed."""

    call_id: int
    success: bool
    message: str


class UnpinDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to UnpinPrefix; num_tokens the pin held, None: there is no such pin (any more)."""

    call_id: int
    num_tokens: int | None


class GrammarChecked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answer to CheckGrammar: a grammar that compiles, or why there is none (for the user)."""

    call_id: int
    prepared: PreparedGrammar | None = None
    error: str | None = None


class SchedulerCounters(msgspec.Struct, array_like=True, kw_only=True):
    """Totals since start."""

    requests: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    preemptions: int = 0  # of the retractions, those for a request of higher priority
    prompt_tokens: int = 0  # looked up in the tree: the hit rate's denominator
    cached_prompt_tokens: int = 0  # found there
    generated_tokens: int = 0
    evicted_tokens: int = 0
    steps: int = 0
    jump_forward_tokens: int = 0  # output tokens that a grammar forced: computed, never drawn


class SchedulerState(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """Answer to StateQuery: what the scheduler holds now and has done since start."""

    call_id: int
    kv: KvStats
    num_running: int
    num_waiting: int
    new_token_ratio: float
    generated_tokens_per_second: float
    counters: SchedulerCounters
    num_pins: int = 0
    pin_limit_tokens: int = 0  # that all pins together may hold


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """A child can serve. The scheduler adds its facts, a grammar worker the inbox it reads."""

    process: Literal["scheduler", "detokenizer", "grammars"]
    max_total_tokens: int = 0
    context_length: int = 0
    max_running_requests: int = 0
    kv_pool_bytes: int = 0
    weight_bytes: int = 0
    weight_form: str = ""
    attention_backend: str = ""
    dtype: str = ""
    device: str = ""
    threads: int = 0
    inbox: str = ""


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A child could not start; message is for the user."""

    process: str
    message: str


SchedulerReply: TypeAlias = FlushDone | UnpinDone | SchedulerState  # each with its call's id

ToHost: TypeAlias = TextBatch | SchedulerReply | GrammarChecked | Ready | StartFailed
