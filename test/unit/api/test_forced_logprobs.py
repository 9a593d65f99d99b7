"""How log-probabilities of tokens that a grammar forced are told from those of drawn ones."""

from __future__ import annotations

from typing import Any, cast

from runtime.srt.api.openai_logprobs import chat_logprobs
from runtime.srt.messages import PositionLogprobs


class _Letters:
    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def test_entries_of_forced_tokens_are_marked() -> None:
    positions = [PositionLogprobs(-0.5, 97), PositionLogprobs(-7.0, 98, is_forced=True)]

    found = chat_logprobs(cast("Any", _Letters()), positions)

    assert found is not None
    drawn, forced = found["content"]
    assert "forced" not in drawn
    assert (forced["token"], forced["logprob"], forced["forced"]) == ("b", -7.0, True)
