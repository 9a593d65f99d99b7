"""A grammar whose language can be computed by hand: what may follow is a hash of what came before.

About half of all places leave one token only, so that there is much to jump over; after `length`
tokens only the end token is left.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.grammars.matcher import Bitmask
from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import JsonWhitespace
from runtime.srt.messages import GrammarSource


class HashGrammar:
    """Texts of exactly length tokens below end_id, then end_id."""

    num_bytes = 100
    dropped = ()

    def __init__(self, seed: int, length: int, end_id: int) -> None:
        self.seed = seed
        self.length = length
        self.end_id = end_id

    def allowed(self, output: Sequence[int]) -> list[int]:
        """The ids that may follow output."""
        if len(output) == self.length:
            return [self.end_id]
        digest = zlib.crc32(np.asarray([self.seed, *output], dtype=np.int32).tobytes())
        count = 1 if digest % 2 else 2 + digest % 7
        return sorted({(digest >> 3 * i) % self.end_id for i in range(count)})

    def matcher(self) -> HashMatcher:
        return HashMatcher(self, [])


class HashMatcher:
    """A Matcher of a HashGrammar."""

    def __init__(self, grammar: HashGrammar, output: list[int]) -> None:
        self.grammar = grammar
        self.output = output

    @property
    def is_finished(self) -> bool:
        return self.grammar.end_id in self.output

    def fill(self, bitmask: Bitmask) -> None:
        assert not self.is_finished, "a mask for a finished grammar"
        bitmask[:] = 0
        for token_id in self.grammar.allowed(self.output):
            bitmask[token_id // 32] |= np.uint32(1 << token_id % 32)

    @staticmethod
    def fill_rows(
        matchers: Sequence[tuple[int, HashMatcher]],
        bitmask: npt.NDArray[np.uint32],
        threads: int,
    ) -> list[int]:
        for row, matcher in matchers:
            matcher.fill(bitmask[row])
        return []

    @property
    def is_at_end(self) -> bool:
        return not self.is_finished and self.grammar.allowed(self.output) == [self.grammar.end_id]

    def accept(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if self.is_finished or token_id not in self.grammar.allowed(self.output):
                return index
            self.output.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self.output)
        del self.output[len(self.output) - num_tokens :]

    def renew(self) -> bool:
        return False

    def fork(self) -> HashMatcher:
        return HashMatcher(self.grammar, list(self.output))

    def forced_tokens(self, limit: int) -> list[int]:
        output = list(self.output)
        while len(output) - len(self.output) < limit and self.grammar.end_id not in output:
            allowed = self.grammar.allowed(output)
            if len(allowed) > 1:
                break
            output += allowed
        return output[len(self.output) :]

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        output = list(self.output)
        while self.grammar.end_id not in output:
            output.append(self.grammar.allowed(output)[0])
        closing = output[len(self.output) :]
        return closing if len(closing) <= limit else None


class HashGrammars:
    """A GrammarStore."""

    def __init__(self) -> None:
        self.grammars: dict[str, HashGrammar] = {}
        self.compiling: set[str] = set()

    def add(self, key: str, grammar: HashGrammar, *, is_ready: bool = True) -> GrammarSource:
        """Know grammar under key; unless it is ready, only when key is taken out of compiling."""
        self.grammars[key] = grammar
        if not is_ready:
            self.compiling.add(key)
        prepared = PreparedGrammar(
            GrammarEngine.LLGUIDANCE, PreparedForm.REGEX, key, JsonWhitespace.COMPACT
        )
        return GrammarSource(key, prepared)

    def find(self, source: GrammarSource) -> HashGrammar | None:
        return None if source.key in self.compiling else self.grammars[source.key]

    def warm_up(self) -> None:
        """There is nothing to make."""
