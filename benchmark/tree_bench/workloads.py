"""Prompts of 50 to 2,000 tokens that share prefixes in different ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

MAX_LENGTH = 2_000
_VOCABULARY = 32_000
_NUM_TEXTS = 64
_NUM_DOCUMENTS = 32  # under each text


def make_forest(count: int, rng: np.random.Generator) -> list[Tokens]:
    """A system prompt, a document and an end of its own."""
    systems = [_random_tokens(int(rng.integers(20, 401)), rng) for _ in range(_NUM_TEXTS)]
    documents = [
        [_random_tokens(int(rng.integers(20, 801)), rng) for _ in range(_NUM_DOCUMENTS)]
        for _ in range(_NUM_TEXTS)
    ]
    sequences = []
    for system in _popular(count, rng):
        document = documents[system][int(rng.integers(_NUM_DOCUMENTS))]
        own = _random_tokens(int(rng.integers(10, 801)), rng)
        sequences.append(np.concatenate([systems[system], document, own]))
    return sequences


def make_chains(count: int, rng: np.random.Generator) -> list[Tokens]:
    """One of 64 shared texts, left at any token of the prompt's first 90 %.

    Paths are hundreds of nodes deep: the worst a radix tree can meet.
    """
    texts = [_random_tokens(MAX_LENGTH, rng) for _ in range(_NUM_TEXTS)]
    sequences = []
    for text_number in _popular(count, rng):
        length = int(rng.integers(50, MAX_LENGTH + 1))
        shared = texts[text_number][: int(length * rng.uniform(0.0, 0.9))]
        sequences.append(np.concatenate([shared, _random_tokens(length - len(shared), rng)]))
    return sequences


def make_turns(count: int, rng: np.random.Generator) -> list[Tokens]:
    """Conversations: each prompt is an earlier one with a turn of 50 to 250 tokens added."""
    sequences: list[Tokens] = []
    open_conversations: list[Tokens] = []
    while len(sequences) < count:
        number = int(rng.integers(2_000))
        before = open_conversations[number] if number < len(open_conversations) else None
        turn = _random_tokens(int(rng.integers(50, 251)), rng)
        prompt = turn if before is None else np.concatenate([before, turn])
        sequences.append(prompt)
        if before is None:
            open_conversations.append(prompt)
        else:
            ended = len(prompt) > MAX_LENGTH - 250
            open_conversations[number] = _random_tokens(50, rng) if ended else prompt
    return sequences


def make_strangers(count: int, rng: np.random.Generator) -> list[Tokens]:
    """Prompts that share nothing: as many leaves as prompts, all below the root."""
    return [_random_tokens(int(rng.integers(50, MAX_LENGTH + 1)), rng) for _ in range(count)]


def _popular(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw count texts, the k-th with a weight of 1 / k."""
    weights = 1.0 / np.arange(1, _NUM_TEXTS + 1)
    return rng.choice(_NUM_TEXTS, count, p=weights / weights.sum())


def _random_tokens(count: int, rng: np.random.Generator) -> Tokens:
    return rng.integers(0, _VOCABULARY, count, np.int32)


WORKLOADS: dict[str, Callable[[int, np.random.Generator], list[Tokens]]] = {
    "forest": make_forest,
    "chains": make_chains,
    "turns": make_turns,
    "strangers": make_strangers,
}
