"""Deltas on their way to the detokenizer.

A streaming request sends its first token at once and then every stream_interval tokens; any other
sends everything with its finish.
"""

from __future__ import annotations

from collections.abc import Callable

from ..messages import DecodeOptions, FinishReason, Progress, TokenDelta
from ..tokenization.incremental import PROMPT_TAIL_TOKENS
from .request import Request


class Outbox:
    """Collects the deltas of the current step."""

    def __init__(self, stream_interval: int, clock: Callable[[], float]) -> None:
        self._stream_interval = stream_interval
        self._clock = clock
        self._deltas: list[TokenDelta] = []

    def progress(self, request: Request) -> None:
        """request has one more token and goes on."""
        if not request.message.stream:
            return
        interval = request.params.stream_interval or self._stream_interval
        num_unsent = len(request.output_ids) - request.num_sent
        if request.num_sent == 0 or num_unsent >= interval:
            self._send(request, None)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """request has ended; whatever is unsent goes out with the reason."""
        request.finish = reason
        self._send(request, reason)

    def take(self) -> list[TokenDelta]:
        """Return and forget the deltas so far."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _send(self, request: Request, reason: FinishReason | None) -> None:
        first = not request.options_sent
        wants_logprobs = request.message.logprobs is not None
        progress = Progress(
            rid=request.rid,
            token_ids=request.output_ids[request.num_sent :],
            prompt_tokens=request.prompt_length,
            completion_tokens=len(request.output_ids),
            cached_tokens=request.cached_tokens or 0,
            finish=reason,
            prompt_logprobs=request.prompt_logprobs if first and wants_logprobs else None,
            output_logprobs=(
                request.output_logprobs[request.num_sent :] if wants_logprobs else None
            ),
            num_retractions=request.num_retractions,
            queue_seconds=request.queue_seconds if first else None,
            sent_seconds=self._clock(),
            first_token_seconds=request.first_token_seconds if first else None,
        )
        self._deltas.append(TokenDelta(progress, _options(request) if first else None))
        request.num_sent = len(request.output_ids)
        request.options_sent = True


def _options(request: Request) -> DecodeOptions:
    params = request.params
    return DecodeOptions(
        prompt_tail=tuple(request.message.input_ids[-PROMPT_TAIL_TOKENS:]),
        stop=params.stop,
        stop_regex=params.stop_regex,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        no_stop_trim=params.no_stop_trim,
    )
