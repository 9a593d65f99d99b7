"""The text of a state as it comes, for readers that follow it from any thread or loop."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .promise import Promise
from .variables import Variable


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, and the variable that it is part of.

    sample counts the outputs of one call; the text of the state has only the first.
    """

    variable: Variable | None
    text: str
    sample: int = 0


class TextFeed:
    """Pieces in order; readers keep their own place in them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._waiting: list[Promise[None]] = []

    def add(self, variable: Variable | None, text: str, sample: int = 0) -> None:
        """Go on with text."""
        if text:
            with self._lock:
                self._pieces.append(Piece(variable, text, sample))
            self.wake()

    def pieces_from(self, place: int) -> list[Piece]:
        """All pieces so far but the first `place`."""
        with self._lock:
            return self._pieces[place:]

    def change(self) -> Promise[None]:
        """Done at the next piece, or when it may be that there are no more."""
        future: Promise[None] = Promise()
        with self._lock:
            self._waiting.append(future)
        return future

    def wake(self) -> None:
        """Let all readers look again."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.set_result(None)
