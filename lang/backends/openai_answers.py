"""What answers of OpenAI's API say, in the language's own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..choices import ChoiceScore
from ..errors import ProgramError
from ..tools import calls_of
from .protocol import Output

Entry = tuple[float | None, None, str]  # log-probability, token id (the API has none), text


@dataclass(slots=True)
class Sample:
    """One output of a call, whole or as far as it has come."""

    index: int
    text: str = ""
    finish: str | None = None
    entries: list[Entry] = field(default_factory=list)
    tops: list[list[Entry]] = field(default_factory=list)
    calls: Sequence[Mapping[str, Any]] | None = None

    def add(self, choice: Any) -> None:
        """Go on with a choice of an answer, or of a chunk of a stream."""
        part = getattr(choice, "message", None) or getattr(choice, "delta", None)
        self.text += (choice.text if part is None else part.content) or ""
        self.finish = choice.finish_reason or self.finish
        if choice.logprobs is not None:
            entries, tops = _chat_entries(choice) if part is not None else _text_entries(choice)
            self.entries += entries
            self.tops += tops
        called = getattr(part, "tool_calls", None)
        if called:
            self.calls = [one.model_dump() for one in called]

    def output(self, answer_id: str | None, counts: Mapping[str, int]) -> Output:
        """The output so far."""
        meta: dict[str, Any] = {"id": answer_id, "finish_reason": {"type": self.finish}, **counts}
        if self.entries:
            meta["output_token_logprobs"] = list(self.entries)
        if any(self.tops):
            meta["output_top_logprobs"] = list(self.tops)
        return Output(self.text, meta, self.index, calls_of(self.calls))


def outputs_of(answer: Any) -> list[Output]:
    """The outputs of a whole answer, in order."""
    outputs = []
    for choice in sorted(answer.choices, key=lambda one: one.index):
        sample = Sample(choice.index)
        sample.add(choice)
        outputs.append(sample.output(answer.id, counts_of(answer)))
    return outputs


def counts_of(answer: Any) -> dict[str, int]:
    """How many tokens an answer says it took."""
    usage = getattr(answer, "usage", None)
    if usage is None:
        return {}
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}


def echoed_scores(answer: Any, prompt: str, choices: Sequence[str]) -> list[ChoiceScore]:
    """Scores of choices from an echo of prompt alone and before each choice, in this order.

    A choice's tokens are those from where prompt plus choice differs from prompt. Raises
    ProgramError for a choice that has none.
    """
    texts = [prompt, *(prompt + one for one in choices)]
    answers = sorted(answer.choices, key=lambda one: one.index)
    echoes = [_echo(one, len(text)) for one, text in zip(answers, texts, strict=True)]
    base = [text for _, _, text in echoes[0]]
    scores = []
    for choice, echo in zip(choices, echoes[1:], strict=True):
        start = 0
        while start < min(len(base), len(echo)) and base[start] == echo[start][2]:
            start += 1
        own = echo[start:]
        if not own or own[0][0] is None:
            raise ProgramError(
                f"choice {choice!r} has no token of its own here; select needs text before it"
            )
        scores.append(ChoiceScore(tuple(one[2] for one in own), tuple(one[0] for one in own)))
    return scores


def _echo(choice: Any, num_chars: int) -> list[Entry]:
    """The tokens of the prompt; what was generated after it begins at num_chars."""
    entries, _ = _text_entries(choice)
    offsets = choice.logprobs.text_offset
    return [one for one, at in zip(entries, offsets, strict=True) if at < num_chars]


def _text_entries(choice: Any) -> tuple[list[Entry], list[list[Entry]]]:
    found = choice.logprobs
    entries: list[Entry] = [
        (value, None, token)
        for value, token in zip(found.token_logprobs, found.tokens, strict=True)
    ]
    tops = [
        [(value, None, token) for token, value in (one or {}).items()]
        for one in found.top_logprobs or ()
    ]
    return entries, tops


def _chat_entries(choice: Any) -> tuple[list[Entry], list[list[Entry]]]:
    found = choice.logprobs.content or ()
    entries: list[Entry] = [(one.logprob, None, one.token) for one in found]
    tops = [[(top.logprob, None, top.token) for top in one.top_logprobs] for one in found]
    return entries, tops
