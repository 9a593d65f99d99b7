from __future__ import annotations

import re
from fractions import Fraction
from random import Random

import pytest

from runtime.grammars.json_schema.number_ranges import integers_in_a_row

DRAWS = Random(0)
RANGES = [
    (0, 100),
    (0, 255),
    (1, 12),
    (-5, 7),
    (-20, -9),
    (0, 999),
    (-999, -1),
    (95, 105),
    (1000, 1999),
    *((low, low + DRAWS.randrange(9, 900)) for low in DRAWS.choices(range(-3_000, 12_000), k=40)),
]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_a_range_takes_the_spellings_of_its_numbers_and_nothing_else(low: int, high: int) -> None:
    values = [Fraction(value) for value in range(low, high + 1)]
    DRAWS.shuffle(values)

    expression = integers_in_a_row(values)

    assert expression is not None
    pattern = re.compile(expression)
    around = range(low - 1_200, high + 1_200)
    taken = [value for value in around if pattern.fullmatch(str(value))]
    assert taken == list(range(low, high + 1))
    odd = ["-0", "00", "", "-", *(f"0{value}" for value in range(300))]
    assert not any(pattern.fullmatch(text) for text in odd)


def test_numbers_with_gaps_or_decimals_are_no_range() -> None:
    in_a_row = [Fraction(value) for value in range(20)]

    assert integers_in_a_row([*in_a_row[:5], *in_a_row[6:]]) is None
    assert integers_in_a_row([value / 2 for value in in_a_row]) is None
    assert integers_in_a_row(in_a_row[:3]) is None
