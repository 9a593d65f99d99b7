"""When a request ends: the rules for one freshly drawn token, in order.

Text rules come from a StopChecker, id rules stand here. A stop beats the length limit when both
fall on one token.
"""

from __future__ import annotations

from ..messages import FinishReason
from .request import Request


def suppressed_ids(request: Request) -> tuple[int, ...]:
    """Ids that may not be drawn next: every stopping id before min_new_tokens are out."""
    if request.num_tokens - request.prompt_length >= request.params.min_new_tokens:
        return ()
    return tuple(sorted(request.stop_ids))


def finish_after(request: Request) -> FinishReason | None:
    """Decide on the last token of request.output_ids; feeds the stop checker exactly once."""
    token_id = request.output_ids[-1]
    num_output = len(request.output_ids)
    if token_id in request.stop_ids and num_output > request.params.min_new_tokens:
        return FinishReason(type="stop", matched=token_id)
    if request.stop_checker is not None:
        # A stop string may end in the token that completes min_new_tokens; ids are masked up to it.
        may_stop = num_output >= request.params.min_new_tokens
        match = request.stop_checker.push(token_id, may_stop)
        if match is not None:
            text_end = match.end if request.params.no_stop_trim else match.begin
            return FinishReason(type="stop", matched=match.matched, text_end=text_end)
    if num_output >= request.max_new_tokens:
        return FinishReason(type="length")
    return None
