"""Log-probabilities in the two shapes that OpenAI clients read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..messages import PositionLogprobs
from ..tokenization.tokenizer import Tokenizer
from .native_reply import clamped


class CompletionLogprobs:
    """Builds the logprobs object of /v1/completions, chunk by chunk: text_offset runs through."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def of(self, positions: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
        """Return the object for the next positions; None instead of empty lists."""
        if not positions:
            return None
        tokens, offsets = [], []
        for position in positions:
            tokens.append(token_name(self._tokenizer, position.token_id))
            offsets.append(self._offset)
            self._offset += len(self._tokenizer.token_text(position.token_id))
        return {
            "tokens": tokens,
            "token_logprobs": [
                None if one.logprob is None else clamped(one.logprob) for one in positions
            ],
            "top_logprobs": [
                self._top(one, token) for one, token in zip(positions, tokens, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, position: PositionLogprobs, token: str) -> dict[str, float] | None:
        if position.logprob is None:
            return None
        top: dict[str, float] = {}
        for logprob, token_id in position.top or ():
            # Two ids may have one text; the likelier one comes first and stays.
            top.setdefault(token_name(self._tokenizer, token_id), clamped(logprob))
        top.setdefault(token, clamped(position.logprob))
        return top


def chat_logprobs(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs]
) -> dict[str, Any] | None:
    """Return the logprobs object of a chat choice for positions, None if there are none.

    Entries of tokens that a grammar forced have "forced": true, which OpenAI's API does not know.
    """
    if not positions:
        return None
    content = []
    for position in positions:
        entry = _chat_entry(tokenizer, position.logprob or 0.0, position.token_id)
        entry["top_logprobs"] = [
            _chat_entry(tokenizer, logprob, token_id) for logprob, token_id in position.top or ()
        ]
        if position.is_forced:
            entry["forced"] = True
        content.append(entry)
    return {"content": content, "refusal": None}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""Return a token's text, or bytes:\x.. for a part of a character, as OpenAI writes it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _chat_entry(tokenizer: Tokenizer, logprob: float, token_id: int) -> dict[str, Any]:
    return {
        "token": token_name(tokenizer, token_id),
        "bytes": list(tokenizer.token_bytes(token_id)),
        "logprob": clamped(logprob),
    }
