"""TextWatch: content on its way to the user, watched for the marker that opens a call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watched:
    """content is certain; marker_end is where in the given text the marker ended, if it did.

    marker is its text then, with the whitespace before it.
    """

    content: str
    marker_end: int | None = None
    marker: str = ""


class TextWatch:
    """Holds back what may be the beginning of a marker, and whitespace that a marker may follow."""

    def __init__(self, marker: str | None) -> None:
        self._marker = marker
        self._held = ""

    def push(self, text: str, *, is_after_call: bool) -> Watched:
        """Take text, up to the first marker if there is one: the rest is the caller's.

        Whitespace is dropped while nothing else came since the last call.
        """
        whole = self._held + text
        if is_after_call:
            whole = whole.lstrip()
        if self._marker is not None and (place := whole.find(self._marker)) >= 0:
            rest = len(whole) - place - len(self._marker)
            self._held = ""
            content = whole[:place].rstrip()
            return Watched(content, len(text) - rest, whole[len(content) : len(whole) - rest])
        kept = len(whole) - self._num_marker_chars(whole)
        kept = len(whole[:kept].rstrip())
        self._held = whole[kept:]
        return Watched(whole[:kept])

    def finish(self) -> str:
        """Return what is held: it was text after all."""
        text, self._held = self._held, ""
        return text

    def _num_marker_chars(self, text: str) -> int:
        """Length of the longest end of text that begins the marker."""
        if self._marker is None:
            return 0
        for length in range(min(len(self._marker) - 1, len(text)), 0, -1):
            if text.endswith(self._marker[:length]):
                return length
        return 0
