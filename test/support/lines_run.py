"""Counting work instead of time: how many lines of Python a call runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], Any]) -> int:
    """Run function and return how many lines of Python that took."""
    count = 0

    def on_line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
