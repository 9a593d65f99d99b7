"""Bounds on the work that log-probabilities cause: how many are taken, how often they are sent.

A request may ask for thousands of values per position. Counted here are pairs: one value with its
token id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from starlette.concurrency import run_in_threadpool

from ..errors import BadRequest
from ..messages import GenerateRequest

if TYPE_CHECKING:
    from .generation import Completion

# Of a body's prompts, which come all at once: they hold the event loop for 0.3 s.
MAX_PROMPT_PAIRS = 1_000_000
# Of a body in all: they take up to 2 GB of memory until the answer is sent.
MAX_PAIRS = 16_000_000

_THREAD_ABOVE_PAIRS = 10_000  # about 10 ms of rendering: as long as the event loop may stall
_FREE_PAIRS = 2000
_GROWTH = 1 / 16

T = TypeVar("T")


def check_volume(requests: Sequence[GenerateRequest], top_field: str) -> None:
    """Raise BadRequest if requests, those of one body, ask for too many log-probabilities.

    top_field is the one that the body gave the number of top candidates in.
    """
    prompt_pairs = all_pairs = 0
    param = top_field
    for request in requests:
        options = request.logprobs
        if options is None:
            continue
        width = _width(request)
        if len(options.token_ids) > options.num_top:
            param = "token_ids_logprob"
        if options.prompt_start is not None:
            prompt_pairs += width * (len(request.input_ids) - options.prompt_start)
        all_pairs += width * (request.sampling.max_new_tokens or 0)
    all_pairs += prompt_pairs
    for num_pairs, limit, of in (
        (prompt_pairs, MAX_PROMPT_PAIRS, "prompt tokens"),
        (all_pairs, MAX_PAIRS, "tokens"),
    ):
        if num_pairs > limit:
            raise BadRequest(
                f"the body asks for {num_pairs} log-probabilities ({of} times candidates per "
                f"token); at most {limit} are taken: reduce {param} or the number of tokens",
                param=param,
            )


def pairs_held(*completions: Completion) -> int:
    """Return how many pairs completions hold so far."""
    return sum(
        _width(one.request) * (len(one.prompt_logprobs or ()) + len(one.output_logprobs))
        for one in completions
    )


def pairs_new(completion: Completion) -> int:
    """Return how many pairs the last delta of completion brought."""
    last = completion.last
    num_positions = len(last.prompt_logprobs or ()) + len(last.output_logprobs or ())
    return _width(completion.request) * num_positions


async def rendered(num_pairs: int, render: Callable[[], T]) -> T:
    """Return render(), which writes num_pairs pairs; in a thread if that takes long."""
    if num_pairs > _THREAD_ABOVE_PAIRS:
        return await run_in_threadpool(render)
    return render()


class CumulativePace:
    """When a stream whose events repeat all that was sent before shows its next one.

    With many log-probabilities that is not each time there is a new token, but when there are a
    sixteenth more than in the last event: the bytes sent stay proportional to what is told.
    """

    def __init__(self) -> None:
        self._next_pairs = 0

    def is_due(self, completion: Completion) -> bool:
        """Whether an event is due; the finish always is."""
        pairs = pairs_held(completion)
        if completion.last.finish is None and pairs < self._next_pairs:
            return False
        if pairs > _FREE_PAIRS:
            self._next_pairs = pairs + int(pairs * _GROWTH)
        return True


def _width(request: GenerateRequest) -> int:
    options = request.logprobs
    return 0 if options is None else 1 + options.num_top + len(options.token_ids)
