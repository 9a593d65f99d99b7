"""When a request ends: the rules for one freshly drawn token, in order.

Text rules come from a StopChecker, id rules stand here. A stop beats the length limit when both
fall on one token.
"""

from __future__ import annotations

from ..messages import FinishReason
from .request import Request


def suppressed_ids(request: Request, eos_token_ids: frozenset[int]) -> tuple[int, ...]:
    """Ids that may not be drawn next: every stopping id before min_new_tokens are out."""
    if len(request.output_ids) >= request.params.min_new_tokens:
        return ()
    ids = set(request.params.stop_token_ids)
    if not request.params.ignore_eos:
        ids |= eos_token_ids
    return tuple(sorted(ids))


def finish_after(request: Request, eos_token_ids: frozenset[int]) -> FinishReason | None:
    """Decide on the last token of request.output_ids; feeds the stop checker exactly once."""
    params = request.params
    token_id = request.output_ids[-1]
    may_stop = len(request.output_ids) > params.min_new_tokens
    # A stop string may end in the token that completes min_new_tokens; ids are masked up to it.
    may_stop_on_text = len(request.output_ids) >= params.min_new_tokens
    stops_on_id = token_id in params.stop_token_ids or (
        token_id in eos_token_ids and not params.ignore_eos
    )
    if stops_on_id and may_stop:
        return FinishReason(type="stop", matched=token_id)
    if request.stop_checker is not None:
        match = request.stop_checker.push(token_id, may_stop_on_text)
        if match is not None:
            text_end = match.end if params.no_stop_trim else match.begin
            return FinishReason(type="stop", matched=match.matched, text_end=text_end)
    if request.num_new_tokens_left <= 0:
        return FinishReason(type="length")
    return None
