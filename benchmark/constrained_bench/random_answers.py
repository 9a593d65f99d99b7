"""Answers drawn at random from what is legal, each within a budget of tokens.

Random text runs away from any end, so that every answer needs the budget's close; what a step costs
then is what the scheduler pays for a row besides its mask.
"""

from __future__ import annotations

import time

import numpy as np

from runtime.grammars.matcher import Grammar, GrammarError
from runtime.grammars.vocabulary import Vocabulary
from runtime.srt.scheduling.grammar_rows import GrammarState

from .figures import Section

BUDGETS = (200, 2_000)


def random_answer_section(
    grammars: list[tuple[str, Grammar]],
    vocabulary: Vocabulary,
    about: str,
    budget: int,
    seconds: float,
) -> Section:
    """Times of GrammarState.take, its jumps and the search for an end included.

    Goes through the grammars until seconds are up.
    """
    section = Section(f"random answers of {budget} tokens", about)
    draws = np.random.default_rng(0)
    deadline = time.monotonic() + seconds
    times: list[float] = []
    num_answers = num_complete = num_replaced = num_tokens = num_broken = 0
    for name, grammar in grammars:
        if time.monotonic() > deadline:
            break
        answer = _answer(grammar, vocabulary, budget, draws, times)
        num_answers += 1
        num_complete += answer.is_complete
        num_replaced += answer.num_replaced
        num_tokens += answer.num_tokens
        if answer.problem is not None:
            num_broken += 1
            section.notes.append(f"{name}, token {answer.num_tokens}: {answer.problem}")
    section.add_spread("a step's token taken", [value * 1e3 for value in times], "us")
    section.add("mean", float(np.mean(times)) * 1e3 if times else 0.0, "us")
    section.add("share of steps over 5 ms", float(np.mean(np.array(times) > 5)), "")
    section.add("answers", num_answers, "")
    section.add("share of answers that are complete", num_complete / max(num_answers, 1), "")
    section.add("answers that broke", num_broken, "", at_most=0)
    section.add("tokens", num_tokens, "")
    section.add("tokens of a completion instead of the drawn", num_replaced, "")
    return section


class _Answer:
    """How one answer went."""

    def __init__(self) -> None:
        self.is_complete = False
        self.num_tokens = 0
        self.num_replaced = 0
        self.problem: str | None = None


def _answer(
    grammar: Grammar,
    vocabulary: Vocabulary,
    budget: int,
    draws: np.random.Generator,
    times: list[float],
) -> _Answer:
    """Draw one answer; times gets the milliseconds of its steps."""
    answer = _Answer()
    state = GrammarState(grammar, vocabulary.size, jumps=True)
    mask = np.zeros(vocabulary.bitmask_words, np.uint32)
    while answer.num_tokens < budget and not state.matcher.is_finished:
        try:
            state.matcher.fill(mask)
        except GrammarError as error:  # too costly to go on with: the request would end here
            answer.problem = f"no mask: {error}"
            break
        legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token_id = int(draws.choice(legal))
        started = time.thread_time_ns()
        try:
            outcome = state.take(token_id, budget - answer.num_tokens)
        except GrammarError as error:
            answer.problem = f"in the mask, but {error}"
            break
        times.append((time.thread_time_ns() - started) / 1e6)
        answer.num_replaced += outcome.token_id != token_id
        answer.num_tokens += 1 + len(outcome.forced)
    answer.is_complete = state.matcher.is_finished or state.matcher.is_at_end
    return answer
