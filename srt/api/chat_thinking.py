"""The reasoning fields of a chat body, and the rule they give for how an answer thinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.grammars.spec import GrammarSpec
from runtime.grammars.thinking import ThinkingRule, thinking_spec

from ..errors import BadRequest
from ..reasoning.styles import STYLES, ReasoningStyle, Thinking
from ..sampling_params import MAX_COUNT

# OpenAI's values of reasoning_effort, and "max", which some templates know beside them.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NO_PARSER = "start the server with --reasoning-parser"


@dataclass(frozen=True, slots=True)
class ChatThinking:
    """How the answers of one body think, and how that is shown.

    separates: thinking goes to reasoning_content; streams: as it comes, else in one piece.
    """

    style: ReasoningStyle
    start: Thinking
    separates: bool
    streams: bool
    max_tokens: int | None

    def grammar(self, answer: GrammarSpec | None) -> GrammarSpec | None:
        """The grammar of thinking followed by answer; None: nothing is constrained."""
        if self.start is Thinking.OVER or (answer is None and self.max_tokens is None):
            return answer
        is_open = self.start is Thinking.OPEN
        rule = ThinkingRule(self.style.opener, self.style.closer, is_open, self.max_tokens)
        return thinking_spec(rule, answer)


def thinking_budget(**fields: int | None) -> int | None:
    """The one budget that is set among fields; they mean the same. Raises BadRequest."""
    given = {name: value for name, value in fields.items() if value is not None}
    if len(set(given.values())) > 1:
        first, second = given
        raise BadRequest(
            f"{first} is {given[first]} and {second} is {given[second]}; they are two names of one "
            "field, send one of them",
            param=second,
        )
    for name, value in given.items():
        if not 0 <= value <= MAX_COUNT:
            raise BadRequest(f"{name} is {value}; it must be from 0 to {MAX_COUNT}", param=name)
        return value
    return None


def effort_fields(effort: str | None) -> dict[str, Any]:
    """The chat template's variables that reasoning_effort sets. Raises BadRequest.

    A template that knows no efforts passes over them; what "none" sets turns thinking off in those
    that can.
    """
    if not effort:
        return {}
    if effort not in EFFORTS:
        raise BadRequest(
            f"reasoning_effort is {effort[:40]!r}; it must be one of {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
    fields: dict[str, Any] = {"reasoning_effort": effort}
    if effort == "none":
        fields |= {"enable_thinking": False, "thinking": False}
    return fields


def chat_thinking(
    parser: str | None,
    prompt: str,
    *,
    template_fields: dict[str, Any],
    is_continued: bool,
    separates: bool | None,
    streams: bool | None,
    budget: int | None,
    budget_field: str,
) -> ChatThinking | None:
    """How answers to prompt think; None without a --reasoning-parser. Raises BadRequest."""
    if parser is None:
        if budget is not None:
            raise BadRequest(
                f"{budget_field}: this server does not tell thinking from answers; {_NO_PARSER}, "
                "or leave the field out",
                param=budget_field,
            )
        return None
    style = STYLES[parser]
    start = style.at_start(prompt, template_fields, is_continued=is_continued)
    return ChatThinking(style, start, separates is not False, streams is not False, budget)
