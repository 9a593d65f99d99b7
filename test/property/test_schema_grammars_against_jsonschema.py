"""Grammars of random schemas against the jsonschema package, in both directions.

Instances are written in every way that the conformance runner knows and must come out as the
package judges them; what a random walk through a grammar writes must be valid.
RUNTIME_SCHEMA_SEEDS sets how many schemas are drawn.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from support.random_schemas import SchemaMaker
from support.schema_rig import schema_grammar, vocabulary

from runtime.grammars.matcher import Grammar, GrammarError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

from conformance_suites.spellings import texts

NUM_SEEDS = int(os.environ.get("RUNTIME_SCHEMA_SEEDS", "1200"))
SEEDS_PER_TEST = 100
END_ID = vocabulary().end_ids[0]
LIKELY = frozenset((*b'"}],:0ab1', END_ID))


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_PER_TEST))
def test_grammars_and_validator_agree(first: int) -> None:
    num_served = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        maker = SchemaMaker(seed)
        schema = maker.root()
        try:
            grammar = schema_grammar(schema)
        except GrammarError:
            continue
        num_served += 1
        validator = Draft202012Validator(schema)
        for _ in range(15):
            check_instance(grammar, schema, maker.value(3), validator)
        for walk in range(2):
            text = written_at_random(grammar, random.Random(seed * 2 + walk))
            assert text is None or validator.is_valid(json.loads(text)), (seed, schema, text)

    assert num_served > SEEDS_PER_TEST // 2


def check_instance(
    grammar: Grammar, schema: Any, instance: Any, validator: Draft202012Validator
) -> None:
    is_taken = any(is_text_of(grammar, text) for text in texts(instance, schema))
    try:
        is_valid = validator.is_valid(instance)
    except RecursionError:  # a $ref that leads to itself, in a part that no valid text has
        assert not is_taken, (schema, instance)
        return
    if is_taken or not has_narrow_counts(schema):
        assert is_taken == is_valid, (schema, instance)


def has_narrow_counts(schema: Any) -> bool:
    """Whether the schema counts properties: then one key without a name counts, not several."""
    return "minProperties" in json.dumps(schema)


def is_text_of(grammar: Grammar, text: str) -> bool:
    data = list(text.encode())
    return grammar.matcher().accept([*data, END_ID]) == len(data) + 1


def written_at_random(grammar: Grammar, draw: random.Random) -> str | None:
    """A text of the grammar; None if the walk does not end soon."""
    matcher = grammar.matcher()
    mask = np.zeros(vocabulary().bitmask_words, np.uint32)
    data = bytearray()
    for _ in range(300):
        matcher.fill(mask)
        legal = [
            int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        ]
        assert legal, data
        likely = [i for i in legal if i in LIKELY]
        token_id = draw.choice(likely if likely and draw.random() < 0.6 else legal)
        assert matcher.accept([token_id]) == 1
        if token_id == END_ID:
            return data.decode()
        data += vocabulary().tokens[token_id]
    return None
