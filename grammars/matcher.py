"""The seam between the engines for constrained decoding and those who decode with them.

A Grammar is compiled once per spec and shared; a Matcher is the state of one request in it. Both
engines behave alike behind it: a refused token changes nothing, the end token is a step like
any other, and special tokens are never legal inside text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Bitmask: TypeAlias = npt.NDArray[np.uint32]
"""[ceil(V / 32)] uint32, C-contiguous; bit i % 32 of word i // 32 says whether id i is legal."""


NO_TEXT = "no text satisfies this grammar"


def bitmask_words(vocab_size: int) -> int:
    """Number of uint32 words in the bitmask of a vocabulary."""
    return (vocab_size + 31) // 32


class GrammarError(ValueError):
    """A grammar is invalid, unsupported or beyond a limit.

    pointer: JSON pointer to the place in a schema (None outside schemas); keyword: what cannot be
    enforced there, or None. The text is meant for the user who sent the grammar.
    """

    def __init__(
        self, reason: str, *, pointer: str | None = None, keyword: str | None = None
    ) -> None:
        where = f" at {pointer or '/'}" if pointer is not None else ""
        what = f" ({keyword})" if keyword is not None else ""
        super().__init__(f"{reason}{what}{where}")
        self.reason = reason
        self.pointer = pointer
        self.keyword = keyword


class Matcher(Protocol):
    """Where one request stands in its grammar. Not for use from two threads at once."""

    @property
    def is_finished(self) -> bool:
        """Whether an end token was accepted: nothing may follow."""
        ...

    @property
    def is_at_end(self) -> bool:
        """Whether the text is complete, and nothing but an end token may follow."""
        ...

    def fill(self, bitmask: Bitmask) -> None:
        """Write the legal next ids. When the text is complete an end token is among them.

        At least one bit is set. Must not be called when is_finished.
        """
        ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take tokens one after the other; returns how many were legal. The rest change nothing."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens; an end token counts as one."""
        ...

    def renew(self) -> bool:
        """Rebuild an engine state that may have become unusable; False if that is no use.

        To be called when a token that was legal a moment ago is refused, or a mask cannot be made.
        """
        ...

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""
        ...

    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that must come next, at most limit, as the tokenizer itself would cut them.

        Leaves the state alone. Empty if there is a choice, or if a longer token could span the end
        of what is forced.
        """
        ...

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        """A short legal completion from here, the end token included; None if none within limit.

        One of at most enough tokens is not made shorter.

        Leaves the state alone. Used when the token budget of a request nears its end.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar; matcher() may be called from any thread."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds, estimated; what the cache is bounded by."""
        ...

    @property
    def dropped(self) -> Sequence[str]:
        """JSON pointers of keywords that were left out because the spec allowed it."""
        ...

    def matcher(self) -> Matcher:
        """A new matcher at the start."""
        ...
