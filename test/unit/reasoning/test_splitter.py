"""Thinking told apart from the answer, and where a prompt leaves the model."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.srt.reasoning.splitter import ReasoningSplitter, Split
from runtime.srt.reasoning.styles import STYLES, Thinking


def split(text: str, start: Thinking, style: str = "qwen3") -> Split:
    splitter = ReasoningSplitter(STYLES[style], start)
    first, last = splitter.push(text), splitter.finish()
    return Split(first.reasoning + last.reasoning, first.content + last.content)


@pytest.mark.parametrize(
    ("start", "text", "expected"),
    [
        (Thinking.MAY_BEGIN, "<think>\nhm\n</think>\n\nyes", Split("hm", "yes")),
        (Thinking.MAY_BEGIN, "\n<think>hm</think>", Split("hm", "")),
        (Thinking.MAY_BEGIN, "yes <think>", Split("", "yes <think>")),
        (Thinking.MAY_BEGIN, "<thin", Split("", "<thin")),
        (Thinking.OPEN, "hm\n</think>yes", Split("hm", "yes")),
        (Thinking.OPEN, "<think>hm</think>yes", Split("hm", "yes")),
        (Thinking.OPEN, "never ends ", Split("never ends ", "")),
        (Thinking.OPEN, "a </think> b </think> c", Split("a", "b </think> c")),
        (Thinking.OVER, "<think>hm</think>yes", Split("", "<think>hm</think>yes")),
    ],
)
def test_text_is_split_at_the_marks(start: Thinking, text: str, expected: Split) -> None:
    assert split(text, start) == expected


def test_other_styles_have_other_marks() -> None:
    assert split("◁think▷hm◁/think▷yes", Thinking.MAY_BEGIN, "kimi") == Split("hm", "yes")


def test_thinking_streams_as_it_comes_but_for_what_may_be_its_end() -> None:
    splitter = ReasoningSplitter(STYLES["deepseek-r1"], Thinking.OPEN)

    pieces = [splitter.push(text).reasoning for text in ("one ", "two", " </th", "ree")]

    assert pieces == ["one", " two", "", " </three"]


@pytest.mark.parametrize(
    ("style", "prompt", "fields", "expected"),
    [
        ("qwen3", "<|im_start|>assistant\n", {}, Thinking.MAY_BEGIN),
        ("qwen3", "<|im_start|>assistant\n<think>\n", {}, Thinking.OPEN),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", {}, Thinking.OVER),
        ("qwen3", "assistant\n", {"enable_thinking": False}, Thinking.OVER),
        ("deepseek-r1", "<|Assistant|>", {}, Thinking.OPEN),
        ("deepseek-r1", "<|Assistant|>", {"thinking": False}, Thinking.OVER),
        ("deepseek-r1", "<think>\n\n</think>\n", {}, Thinking.OVER),
    ],
)
def test_the_prompt_says_where_the_answer_begins(
    style: str, prompt: str, fields: dict[str, Any], expected: Thinking
) -> None:
    assert STYLES[style].at_start(prompt, fields) is expected


def test_a_continued_answer_goes_on_where_it_was() -> None:
    style = STYLES["deepseek-r1"]

    assert style.at_start("x <think> hm", {}, is_continued=True) is Thinking.OPEN
    assert style.at_start("<think> hm </think> so", {}, is_continued=True) is Thinking.OVER
