"""Deltas on their way to the detokenizer.

A streaming request sends its first token at once and then every stream_interval tokens; any other
sends everything with its finish.
"""

from __future__ import annotations

import msgspec

from ..messages import DecodeOptions, FinishReason, Progress, TokenDelta
from ..tokenization.incremental import PROMPT_TAIL_TOKENS
from .request import Request


class Outbox:
    """Collects the deltas of the current step."""

    def __init__(self, stream_interval: int) -> None:
        self._stream_interval = stream_interval
        self._deltas: list[TokenDelta] = []

    def progress(self, request: Request, now: float) -> None:
        """A streaming request has one more token and goes on."""
        num_sent, num_output = request.num_sent, len(request.output_ids)
        interval = request.params.stream_interval or self._stream_interval
        if num_output - num_sent >= interval or num_sent == 0:
            self._send(request, None, now)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """request has ended; whatever is unsent goes out with the reason."""
        request.finish = reason
        self._send(request, reason, now)

    def take(self) -> list[TokenDelta]:
        """Return and forget the deltas so far."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _send(self, request: Request, reason: FinishReason | None, now: float) -> None:
        num_sent, num_output = request.num_sent, len(request.output_ids)
        request.num_sent = num_output
        message = request.message
        wants_logprobs = message.logprobs is not None
        progress = Progress(  # there is one for each row of each step: what is rare comes below
            rid=request.rid,
            token_ids=request.output_ids[num_sent:],
            prompt_tokens=len(message.input_ids),
            completion_tokens=num_output,
            cached_tokens=request.cached_tokens or 0,
            finish=reason,
            num_retractions=request.num_retractions,
            sent_seconds=now,
        )
        if wants_logprobs or reason is not None:
            progress = msgspec.structs.replace(
                progress,
                output_logprobs=request.output_logprobs[num_sent:] if wants_logprobs else None,
                pin=request.pin,
                choice_logprobs=None if request.race is None else request.race.results(),
            )
        options = None
        if not request.options_sent:
            request.options_sent = True
            options = _options(request)
            progress = msgspec.structs.replace(
                progress,
                prompt_logprobs=request.prompt_logprobs if wants_logprobs else None,
                queue_seconds=request.queue_seconds,
                first_token_seconds=request.first_token_seconds,
            )
        self._deltas.append(TokenDelta(progress, options))


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
