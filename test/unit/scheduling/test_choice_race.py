"""The work between the stages of a race grows with the tokens of its choices, in any form."""

from __future__ import annotations

import time

import pytest

from runtime.srt.messages import ChoicePath, ChoiceSet
from runtime.srt.scheduling.choice_race import ChoiceRace
from runtime.srt.scheduling.choice_trie import AFTER_PROMPT, Edge

CHAINS = [[7] * (1 + count) for count in range(180)]  # each a beginning of the next
LONG_STEMS = [[7] * 8000 + [last] for last in (1, 2)]
LONG_AND_DIFFERENT = [[first] * 8000 for first in (6, 7)]
MANY = [[(count * place) % 997 for place in range(1, 17)] for count in range(1000)]


@pytest.mark.parametrize("paths", [CHAINS, LONG_STEMS, LONG_AND_DIFFERENT, MANY])
@pytest.mark.parametrize(
    "method",
    [
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ],
)
def test_equally_likely_tokens_are_told_apart_in_no_time(
    method: str, paths: list[list[int]]
) -> None:
    choices = ChoiceSet(paths=[ChoicePath(ids, 0) for ids in paths], method=method, early_exit=True)
    began = time.process_time()
    race = ChoiceRace(choices, has_prompt=True)
    added = race.begin()
    while True:
        for source in (AFTER_PROMPT, *race.order):
            for token_id in race.trie.targets_of(source):
                race.learn(Edge(source, token_id), -1.0)
        added = race.go_on()
        if not added:
            break

    assert None not in race.results()[0].logprobs
    assert time.process_time() - began < 5.0  # a second at the most; quadratic work takes minutes
