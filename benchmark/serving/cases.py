"""Cases A to E: deterministic prompts whose token counts are exact for the model's tokenizer.

A prompt is a row of common words. Each starts with a space and is one token of the vocabulary, so
that n words are n tokens, whatever stands before them. The seed of a prompt names its case, its
round and its place: no two are alike, and no round finds its prompts in a cache. Case F (start and
memory) has no work of its own; measure.py takes it from every start.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .shipment import SHIPMENT_SCHEMA, shipment_question

_WORD_TOKEN = re.compile("Ġ([a-z]{3,9})")
_FIRST_WORD_ID = 300  # below are bytes and the most frequent fragments

CASE_TITLES = {
    "A": "one stream",
    "B": "one long prompt",
    "C": "many streams",
    "D": "shared prefix",
    "E": "JSON schema",
    "F": "start and memory",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work the cases hold; all but the request counts are in tokens."""

    a_prompt: int = 64
    a_output: int = 128
    b_prompt: int = 2048
    c_requests: int = 32
    c_prompt: int = 128
    c_output: int = 128
    d_requests: int = 32
    d_prefix: int = 1500
    d_own: int = 50
    d_output: int = 32
    e_requests: int = 16
    e_output: int = 200


FULL = Scale()
QUICK = Scale(
    a_prompt=16,
    a_output=16,
    b_prompt=128,
    c_requests=4,
    c_prompt=16,
    c_output=8,
    d_requests=4,
    d_prefix=100,
    d_own=10,
    d_output=4,
    e_requests=2,
    e_output=160,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What one run of a case sends at once, after its untimed first request (if any).

    prompt_tokens is the expected count of one prompt, None where the chat template decides. With a
    schema the prompts are questions for a chat, each to be answered by matching JSON.
    """

    case: str
    prompts: list[str]
    max_tokens: int
    prompt_tokens: int | None
    first_prompt: str | None = None
    first_max_tokens: int = 1
    shared_prefix_tokens: int = 0
    schema: dict[str, Any] | None = None


class PromptSource:
    """Draws texts of exact token counts from one tokenizer's vocabulary."""

    def __init__(self, tokenizer_file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        found = [
            match[1]
            for token, number in vocabulary.items()
            if number >= _FIRST_WORD_ID and (match := _WORD_TOKEN.fullmatch(token))
        ]
        if not found:
            raise ValueError(f"{tokenizer_file} has no word tokens with a leading space")
        self._words = sorted(found)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of text, with no special ones added."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, num_tokens: int, seed: str) -> str:
        """Return num_tokens words for this seed; the same each time. Text + text adds up."""
        draws = random.Random(seed)
        text = "".join(" " + draws.choice(self._words) for _ in range(num_tokens))
        counted = self.count_tokens(text)
        assert counted == num_tokens, f"{num_tokens} words of {seed!r} are {counted} tokens"
        return text


def build_workload(case: str, round_number: int, source: PromptSource, scale: Scale) -> Workload:
    """Return the requests of case A, B, C, D or E in one round."""
    seed = f"{case}/{round_number}/"
    if case == "A":
        prompts = [source.text(scale.a_prompt, seed)]
        return Workload(case, prompts, scale.a_output, scale.a_prompt)
    if case == "B":
        return Workload(case, [source.text(scale.b_prompt, seed)], 1, scale.b_prompt)
    if case == "C":
        prompts = [source.text(scale.c_prompt, f"{seed}{i}") for i in range(scale.c_requests)]
        return Workload(case, prompts, scale.c_output, scale.c_prompt)
    if case == "D":
        return _shared_prefix(seed, source, scale)
    if case == "E":
        return Workload(
            case,
            [shipment_question(i, round_number) for i in range(scale.e_requests)],
            scale.e_output,
            None,
            # Compiles the grammar outside the timed part.
            first_prompt=shipment_question(3, 1000 + round_number),
            schema=SHIPMENT_SCHEMA,
        )
    raise ValueError(f"case {case!r} is none of A, B, C, D, E")


def _shared_prefix(seed: str, source: PromptSource, scale: Scale) -> Workload:
    prefix = source.text(scale.d_prefix, seed + "prefix")
    return Workload(
        "D",
        [prefix + source.text(scale.d_own, f"{seed}{i}") for i in range(scale.d_requests)],
        scale.d_output,
        scale.d_prefix + scale.d_own,
        first_prompt=prefix + source.text(scale.d_own, seed + "first"),
        shared_prefix_tokens=scale.d_prefix,
    )
