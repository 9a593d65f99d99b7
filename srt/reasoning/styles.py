"""How reasoning models mark their thinking, and where a prompt leaves them: before, in or after it.

A style is a value of --reasoning-parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Thinking(Enum):
    """Where an answer stands at its first token."""

    MAY_BEGIN = "may begin"  # it thinks if it writes the opener first
    OPEN = "open"  # it is thinking already
    OVER = "over"  # it does not think (any more)


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """The marks around thinking. is_always_open: models think even without having written one."""

    name: str
    opener: str = "<think>"
    closer: str = "</think>"
    is_always_open: bool = False

    def at_start(
        self, prompt: str, template_fields: Mapping[str, Any], *, is_continued: bool = False
    ) -> Thinking:
        """Where an answer to prompt begins.

        Chat templates write the opener, or both marks where thinking is turned off by
        template_fields (enable_thinking, thinking). is_continued: the prompt ends inside an answer.
        """
        opened, closed = prompt.rfind(self.opener), prompt.rfind(self.closer)
        if is_continued:
            return Thinking.OPEN if opened > closed else Thinking.OVER
        end = prompt.rstrip()
        if end.endswith(self.opener):
            return Thinking.OPEN
        is_off = any(template_fields.get(name) is False for name in ("enable_thinking", "thinking"))
        if end.endswith(self.closer) or is_off:
            return Thinking.OVER
        return Thinking.OPEN if self.is_always_open else Thinking.MAY_BEGIN


_STYLES = (
    ReasoningStyle("deepseek-r1", is_always_open=True),
    ReasoningStyle("qwen3"),
    ReasoningStyle("qwen3-thinking", is_always_open=True),
    ReasoningStyle("glm45"),
    ReasoningStyle("kimi", "◁think▷", "◁/think▷"),
    ReasoningStyle("magistral", "[THINK]", "[/THINK]"),
)
STYLES = {one.name: one for one in _STYLES}
