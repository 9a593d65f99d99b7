"""Thinking before a constrained answer: free tokens up to the closing mark, then the grammar.

Also the budget of thinking tokens: when it is used up, the closing mark is all that is legal. Works
on bytes, so that a model may cut the marks into tokens as it likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .batch_fill import fill_batch
from .matcher import Bitmask, Grammar, Matcher
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .spec import GrammarKind, GrammarSpec, JsonWhitespace
from .thinking_masks import ThinkingMasks
from .vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """How an answer thinks.

    opener and closer are the marks. is_open: it is thinking at its first token; else it thinks if
    it begins with the opener. max_tokens bounds the tokens between the marks; None: no bound.
    """

    opener: str
    closer: str
    is_open: bool
    max_tokens: int | None = None


def thinking_spec(rule: ThinkingRule, answer: GrammarSpec | None) -> GrammarSpec:
    """A spec of thinking by rule and then answer; None: any answer."""
    inner = None
    if answer is not None:
        inner = {"kind": answer.kind.value, "text": answer.text}
    text = json.dumps({"rule": asdict(rule), "answer": inner})
    if answer is None:
        return GrammarSpec(GrammarKind.THINKING, text, JsonWhitespace.BOUNDED)
    return GrammarSpec(GrammarKind.THINKING, text, answer.whitespace, answer.drop_unsupported)


def prepare_thinking(
    spec: GrammarSpec, prepare: Callable[[GrammarSpec], PreparedGrammar]
) -> PreparedGrammar:
    """Prepare what thinking_spec made: prepare checks the answer's own spec."""
    value = json.loads(spec.text)
    answer = value["answer"]
    if answer is None:
        return PreparedGrammar(
            GrammarEngine.LLGUIDANCE, PreparedForm.THINKING, spec.text, spec.whitespace
        )
    inner = prepare(replace(spec, kind=GrammarKind(answer["kind"]), text=answer["text"]))
    value["answer"] = {"form": inner.form.value, "text": inner.text}
    return replace(inner, form=PreparedForm.THINKING, text=json.dumps(value))


def compile_thinking(
    prepared: PreparedGrammar,
    vocabulary: Vocabulary,
    compile_answer: Callable[[PreparedGrammar], Grammar],
) -> ThinkingGrammar:
    """Compile what prepare_thinking made; compile_answer is for the answer's own grammar."""
    rule = ThinkingRule(**json.loads(prepared.text)["rule"])
    answer = answer_of(prepared)
    return ThinkingGrammar(rule, None if answer is None else compile_answer(answer), vocabulary)


def answer_of(prepared: PreparedGrammar) -> PreparedGrammar | None:
    """The grammar of the answer, if prepared is of thinking first; else prepared itself."""
    if prepared.form is not PreparedForm.THINKING:
        return prepared
    answer = json.loads(prepared.text)["answer"]
    if answer is None:
        return None
    return replace(prepared, form=PreparedForm(answer["form"]), text=answer["text"])


class ThinkingGrammar:
    """A Grammar of thinking and then answer; None: any answer."""

    def __init__(self, rule: ThinkingRule, answer: Grammar | None, vocabulary: Vocabulary) -> None:
        self.num_bytes = 1000 + (0 if answer is None else answer.num_bytes)
        self.dropped: Sequence[str] = () if answer is None else answer.dropped
        self._rule = rule
        self.answer = answer
        self._masks = _masks(vocabulary, rule.closer, answer is not None)

    def matcher(self) -> ThinkingMatcher:
        """A new matcher at the start."""
        answer = None if self.answer is None else self.answer.matcher()
        return ThinkingMatcher(self._rule, self._masks, answer)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a matcher stands.

    opening: the bytes so far, while they may become the opener; None: it is decided. tail: the last
    bytes of the thinking, None before and after. answer_tokens: how many the answer's matcher has
    taken; it takes those of the opening too, in case there is no thinking. None: it can take none.
    """

    opening: bytes | None
    tail: bytes | None
    num_thought: int
    answer_tokens: int | None


class ThinkingMatcher:
    """See matcher.Matcher. The answer's matcher is moved by the tokens of the answer only."""

    __slots__ = ("_answer", "_masks", "_places", "_rule", "_tokens")

    def __init__(
        self,
        rule: ThinkingRule,
        masks: ThinkingMasks,
        answer: Matcher | None,
        places: list[_Place] | None = None,
        tokens: list[int] | None = None,
    ) -> None:
        self._rule = rule
        self._masks = masks
        self._answer = answer
        if places is None:
            places = [_Place(None, b"", 0, None) if rule.is_open else _Place(b"", None, 0, 0)]
        self._places = places  # the start, and one for each token
        self._tokens = tokens or []

    @property
    def is_finished(self) -> bool:
        """Whether an end token was accepted."""
        return self._in_answer and self._answer is not None and self._answer.is_finished

    def fill(self, bitmask: Bitmask) -> None:
        """Write the legal next ids."""
        answer = self._filler()
        if answer is not None:
            answer.fill(bitmask)
        self._complete(bitmask, has_answer=answer is not None)

    @staticmethod
    def fill_rows(
        matchers: Sequence[tuple[int, ThinkingMatcher]],
        bitmask: npt.NDArray[np.uint32],
        threads: int,
    ) -> list[int]:
        """Fill the given rows of bitmask [R, W]; returns the rows that broke."""
        answers: list[Matcher | None] = [None] * len(matchers)
        for index, (_, matcher) in enumerate(matchers):
            answers[index] = matcher._filler()
        rows = np.empty((len(matchers), bitmask.shape[1]), np.uint32)
        broken = fill_batch(answers, rows, threads)
        for index, (row, matcher) in enumerate(matchers):
            matcher._complete(rows[index], has_answer=answers[index] is not None)
            bitmask[row] = rows[index]
        return [matchers[index][0] for index in broken]

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take the legal ones of token_ids up to the first that is not."""
        for index, token_id in enumerate(token_ids):
            place = self._after(token_id)
            if place is None:
                return index
            self._places.append(place)
            self._tokens.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        assert 0 <= num_tokens < len(self._places), (num_tokens, len(self._places))
        if not num_tokens:
            return
        num_had = self._places[-1].answer_tokens or 0
        del self._places[-num_tokens:], self._tokens[-num_tokens:]
        place = self._places[-1]
        num_wanted = place.answer_tokens or 0
        if place.opening is None:
            self._undo_answer(num_had - num_wanted)
            return
        # What the answer took since may be the tokens after a thinking that is undone now.
        self._undo_answer(num_had)
        if self._answer is not None and num_wanted:
            num_taken = self._answer.accept(self._tokens[:num_wanted])
            assert num_taken == num_wanted, (num_taken, num_wanted)

    def renew(self) -> bool:
        """Rebuild the state in the answer's grammar."""
        return self._answer is not None and self._answer.renew()

    def fork(self) -> ThinkingMatcher:
        """An independent matcher in the same state."""
        answer = None if self._answer is None else self._answer.fork()
        return ThinkingMatcher(
            self._rule, self._masks, answer, list(self._places), list(self._tokens)
        )

    @property
    def is_at_end(self) -> bool:
        """Whether the answer is complete, and nothing but an end token may follow."""
        return self._in_answer and self._answer is not None and self._answer.is_at_end

    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that must come next: of the closing mark, or of the answer."""
        if self._must_close:
            return self._closer_ids()[: max(limit, 0)]
        if self._in_answer and self._answer is not None:
            return self._answer.forced_tokens(limit)
        return []

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        """A short legal completion: the closing mark, and one of the answer."""
        if self._answer is None:
            return None
        place = self._places[-1]
        ids = [] if place.tail is None else self._closer_ids()
        if place.opening is not None and place.answer_tokens is None:
            return None
        rest = self._answer.closing_tokens(limit - len(ids), enough - len(ids))
        return None if rest is None else [*ids, *rest]

    @property
    def _in_answer(self) -> bool:
        place = self._places[-1]
        return place.opening is None and place.tail is None

    @property
    def _must_close(self) -> bool:
        place, most = self._places[-1], self._rule.max_tokens
        return place.tail is not None and most is not None and place.num_thought >= most

    def _closer_ids(self) -> list[int]:
        """The tokens that end the thinking from here."""
        tail = self._places[-1].tail
        assert tail is not None, "not thinking"
        return self._masks.closer_ids(tail)

    def _filler(self) -> Matcher | None:
        """The answer's matcher, if what is legal depends on it."""
        place = self._places[-1]
        is_asked = place.tail is None and place.answer_tokens is not None
        return self._answer if is_asked else None

    def _complete(self, bitmask: Bitmask, *, has_answer: bool) -> None:
        """Write what the thinking makes legal over, or into, the answer's bits."""
        place = self._places[-1]
        if place.tail is not None:
            if self._must_close:
                bitmask[:] = 0
                _allow(bitmask, self._closer_ids()[0])
            else:
                bitmask[:] = self._masks.thinking(place.tail)
            return
        if self._answer is None:
            bitmask[:] = self._masks.everything
        elif place.opening is not None:
            if not has_answer:
                bitmask[:] = 0
            for token_id in self._masks.ids_along(self._rule.opener.encode(), place.opening):
                _allow(bitmask, token_id)

    def _after(self, token_id: int) -> _Place | None:
        """Where token_id leads, the answer moved along; None if it is illegal."""
        place = self._places[-1]
        if not 0 <= token_id < self._masks.vocabulary.size:
            return None
        if place.opening is not None:
            return self._after_opening(place, place.opening, token_id)
        if place.tail is not None:
            return self._after_thinking(place, place.tail, token_id)
        if self._answer is not None and not self._answer.accept([token_id]):
            return None
        return replace(place, answer_tokens=(place.answer_tokens or 0) + 1)

    def _after_opening(self, place: _Place, opening: bytes, token_id: int) -> _Place | None:
        opener = self._rule.opener.encode()
        opening += self._masks.vocabulary.tokens[token_id]
        if opening.startswith(opener):
            self._undo_answer(place.answer_tokens or 0)
            return self._thinking(opening[len(opener) :], 0)
        is_taken = place.answer_tokens is not None and (
            self._answer is None or self._answer.accept([token_id]) == 1
        )
        count = (place.answer_tokens or 0) + 1 if is_taken else None
        if opener.startswith(opening):
            if not is_taken:
                self._undo_answer(place.answer_tokens or 0)
            return _Place(opening, None, 0, count)
        return _Place(None, None, 0, count) if is_taken else None

    def _after_thinking(self, place: _Place, tail: bytes, token_id: int) -> _Place | None:
        if self._must_close:
            if token_id != self._closer_ids()[0]:
                return None
        elif not self._masks.may_think(tail, token_id):
            return None
        return self._thinking(tail + self._masks.vocabulary.tokens[token_id], place.num_thought + 1)

    def _thinking(self, text: bytes, num_thought: int) -> _Place:
        """The place after text, the end of the thinking if the closer is in it."""
        closer = self._rule.closer.encode()
        if closer in text:
            return _Place(None, None, num_thought, 0)
        return _Place(None, text[-len(closer) + 1 :] if len(closer) > 1 else b"", num_thought, None)

    def _undo_answer(self, num_tokens: int) -> None:
        if self._answer is not None and num_tokens:
            self._answer.rollback(num_tokens)


def _allow(bitmask: Bitmask, token_id: int) -> None:
    bitmask[token_id // 32] |= np.uint32(1 << (token_id % 32))


@lru_cache(maxsize=32)
def _masks(vocabulary: Vocabulary, closer: str, must_answer: bool) -> ThinkingMasks:
    return ThinkingMasks(vocabulary, closer.encode(), must_answer)
