"""Numbers to terminals of the grammar.

Digits are bounded, so that every number parses in every reader and no answer is filled with
digits. Bounds are kept exactly, as decimal text; where a bound is excluded, decimals stay few
enough that a reader with 64-bit floats cannot round the text to the bound itself.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from ..matcher import GrammarError
from .errors import UnsupportedKeyword
from .number_ranges import integers_in_a_row
from .numbers import ANY_NUMBER, INTEGERS, Numbers
from .regex_lark import literal

MAX_INTEGER_DIGITS = 20
MAX_FRACTION_DIGITS = 20
DOUBLE_DIGITS = 15  # decimal digits that a 64-bit float always keeps apart
MAX_REMAINDERS = 7  # the largest divisor that is told by its remainders
MAX_ENDINGS = 700  # and by the last digits

# A whole part of up to 20 digits with a small exponent, or one digit with any that floats have.
ANY_NUMBER_TERMINAL = (
    r"/-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?"
    r"|-?[1-9](?:\.[0-9]{1,20})?[eE][+-]?(?:[12][0-9]{2}|30[0-7])/"
)

# The usual sets of whole numbers, by one short expression each.
_WHOLE_NUMBERS = {
    INTEGERS: "/0|-?[1-9][0-9]{0,19}/",
    Numbers(low=Fraction(0), multiples=INTEGERS.multiples): "/0|[1-9][0-9]{0,19}/",
    Numbers(low=Fraction(1), multiples=INTEGERS.multiples): "/[1-9][0-9]{0,19}/",
}


def numbers_terminal(numbers: Numbers) -> str:
    """An expression for a terminal: JSON spellings of the numbers, each number at least once.

    Never empty for a set that numbers.simplified() kept. Raises GrammarError for what is too hard.
    """
    if numbers == ANY_NUMBER:
        return ANY_NUMBER_TERMINAL
    if numbers.values is not None:
        return f"/{integers_in_a_row(numbers.values) or _listed(numbers.values)}/"
    if numbers in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS[numbers]
    whole = Fraction(1) in numbers.multiples
    fraction_digits = 0 if whole else _fraction_digits(numbers)
    parts = []
    negative = _one_sign(numbers, fraction_digits, negative=True)
    if negative is not None:
        parts.append(f'("-" {negative})')
    if numbers.holds(Fraction(0)):
        parts.append("/0/" if not fraction_digits else rf"/0(?:\.0{{1,{fraction_digits}}})?/")
    positive = _one_sign(numbers, fraction_digits, negative=False)
    if positive is not None:
        parts.append(positive)
    if not parts:
        raise GrammarError("no number of a sensible length is within these bounds")
    return f"({' | '.join(parts)})"


def _listed(values: tuple[Fraction, ...]) -> str:
    return "|".join(literal(decimal_text(value)) for value in values)


def _fraction_digits(numbers: Numbers) -> int:
    """How many decimals may be written."""
    digits = MAX_FRACTION_DIGITS
    for bound, is_open in ((numbers.low, numbers.low_open), (numbers.high, numbers.high_open)):
        if bound and is_open:
            digits = min(digits, DOUBLE_DIGITS - len(str(int(abs(bound)))))
    for value in numbers.excluded:
        if value:
            digits = min(digits, DOUBLE_DIGITS - len(str(int(abs(value)))))
    needed = max((_scale(m) for m in numbers.multiples), default=0)
    if _is_about_remainders(numbers):
        # A float of many digits is read as a whole number, whatever its decimals.
        digits = min(digits, max(needed, 4))
    if digits < max(1, needed) or needed > DOUBLE_DIGITS - 2:
        raise GrammarError("these bounds need more digits than a 64-bit float has")
    return digits


def _integer_digits(numbers: Numbers, fraction_digits: int) -> int:
    """How many digits the whole part may have, where the bounds do not ask for more."""
    if fraction_digits and _is_about_remainders(numbers):
        return DOUBLE_DIGITS - fraction_digits
    return MAX_INTEGER_DIGITS


def _is_about_remainders(numbers: Numbers) -> bool:
    return bool(numbers.multiples or numbers.not_multiples)


def _one_sign(numbers: Numbers, fraction_digits: int, *, negative: bool) -> str | None:
    """Spellings, without the sign, of those above zero (or of the negatives of those below)."""
    low, low_open, high, high_open = numbers.low, numbers.low_open, numbers.high, numbers.high_open
    if negative:
        low, high = (None if high is None else -high), (None if low is None else -low)
        low_open, high_open = high_open, low_open
    if low is None or low < 0:
        low, low_open = Fraction(0), True
    if low == 0:
        low_open = True
    if high is not None and (high < low or (high == low and (low_open or high_open))):
        return None
    digits = max(_integer_digits(numbers, fraction_digits), len(str(int(low))) + 1)
    if fraction_digits and _is_about_remainders(numbers) and digits > DOUBLE_DIGITS:
        raise GrammarError("these bounds need more digits than a 64-bit float has")
    if low == 0 and not fraction_digits:
        parts = [f"/[1-9][0-9]{{0,{digits - 1}}}/"]
    else:
        parts = [_base(digits, fraction_digits), f"/{_above(low, low_open, fraction_digits)}/"]
    if high is not None:
        below = _below(high, high_open, fraction_digits)
        if below is None:
            return None
        parts.append(f"/{below}/")
    step = numbers.step
    if step is not None and step != 1:
        parts.append(multiple_terminal(step))
    parts.extend(f"~{multiple_terminal(m)}" for m in sorted(numbers.not_multiples))
    excluded = [value for value in sorted(numbers.excluded) if (value < 0) == negative and value]
    if excluded:
        options = "|".join(
            literal(decimal_text(abs(v))) + _zeros(v, fraction_digits) for v in excluded
        )
        parts.append(f"~/{options}/")
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def _zeros(value: Fraction, fraction_digits: int) -> str:
    """What may follow the shortest spelling without changing the value."""
    if not fraction_digits:
        return ""
    return r"(?:\.0+)?" if value.denominator == 1 else "0*"


def _base(digits: int, fraction_digits: int) -> str:
    fraction = rf"(?:\.[0-9]{{1,{fraction_digits}}})?" if fraction_digits else ""
    return f"/(?:0|[1-9][0-9]{{0,{digits - 1}}}){fraction}/"


def _above(bound: Fraction, is_open: bool, fraction_digits: int) -> str:
    """Decimals not below the bound (above it if open); both without sign."""
    whole, fraction = _digits(bound)
    any_fraction = r"(?:\.[0-9]+)?" if fraction_digits else ""
    options = [f"[1-9][0-9]{{{len(whole)},}}{any_fraction}"]
    for index, digit in enumerate(whole):
        if digit != "9":
            rest = len(whole) - index - 1
            options.append(f"{whole[:index]}[{int(digit) + 1}-9][0-9]{{{rest}}}{any_fraction}")
    if not fraction:
        if not is_open:
            options.append(f"{whole}{any_fraction}")
        elif fraction_digits:
            options.append(rf"{whole}\.[0-9]*[1-9][0-9]*")
    elif fraction_digits:
        for index, digit in enumerate(fraction):
            if digit != "9":
                options.append(rf"{whole}\.{fraction[:index]}[{int(digit) + 1}-9][0-9]*")
        end = "[0-9]*[1-9][0-9]*" if is_open else "[0-9]*"
        options.append(rf"{whole}\.{fraction}{end}")
    return "|".join(options)


def _below(bound: Fraction, is_open: bool, fraction_digits: int) -> str | None:
    """Decimals not above the bound (below it if open); both without sign."""
    whole, fraction = _digits(bound)
    any_fraction = r"(?:\.[0-9]+)?" if fraction_digits else ""
    options = []
    if len(whole) > 1:
        options.append(f"(?:0|[1-9][0-9]{{0,{len(whole) - 2}}}){any_fraction}")
    for index, digit in enumerate(whole):
        first = 1 if index == 0 and len(whole) > 1 else 0
        if int(digit) > first:
            rest = len(whole) - index - 1
            options.append(
                f"{whole[:index]}[{first}-{int(digit) - 1}][0-9]{{{rest}}}{any_fraction}"
            )
    if not fraction:
        if not is_open:
            options.append(rf"{whole}(?:\.0+)?" if fraction_digits else whole)
    else:
        options.append(whole)
        if fraction_digits:
            for index, digit in enumerate(fraction):
                if index:
                    options.append(rf"{whole}\.{fraction[:index]}")
                if digit != "0":
                    options.append(rf"{whole}\.{fraction[:index]}[0-{int(digit) - 1}][0-9]*")
            if not is_open:
                options.append(rf"{whole}\.{fraction}0*")
    return "|".join(options) if options else None


@lru_cache(maxsize=256)
def multiple_terminal(step: Fraction) -> str:
    """Decimals without sign that are multiples of step, in all their spellings.

    A multiple of 60 is one of 3, of 4 and of 5, each of which is told by few digits or remainders.
    """
    scale = _scale(step)
    whole = int(step * 10**scale)
    if whole == 1:
        return rf"/[0-9]+(?:\.[0-9]{{0,{scale}}}0*)?/"
    parts = [_of_prime_power(prime, power, scale) for prime, power in _factors(whole)]
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def _too_costly(number: int) -> UnsupportedKeyword:
    reason = f"multiples of {number} are too costly to enforce"
    return UnsupportedKeyword(reason, keyword="multipleOf")


def _of_prime_power(prime: int, power: int, scale: int) -> str:
    """Decimals whose digits, down to the last decimal that matters, are a multiple."""
    modulus = prime**power
    if prime in (2, 5):
        return _by_last_digits(modulus, power, scale)
    if modulus > MAX_REMAINDERS or modulus * 10**scale > 10_000:
        raise _too_costly(modulus)
    zeros = r"(?:\.0*)?"
    if scale == 0:
        return f"/(?:{_leaving(modulus, 0)}){zeros}/"
    options = []
    for fraction in range(10**scale):
        remainder = next(r for r in range(modulus) if (r * 10**scale + fraction) % modulus == 0)
        digits = f"{fraction:0{scale}d}".rstrip("0")
        after = rf"\.{digits}0*" if digits else zeros
        options.append(f"(?:{_leaving(modulus, remainder)}){after}")
    return f"/{'|'.join(options)}/"


def _by_last_digits(modulus: int, power: int, scale: int) -> str:
    """For powers of 2 and 5, which divide the same power of 10: the last digits tell."""
    count = max(power, scale)  # digits that are looked at, decimals included
    if 10**count // modulus > MAX_ENDINGS:
        raise _too_costly(modulus)
    options = []
    for ending in range(0, 10**count, modulus):
        digits = f"{ending:0{count}d}"
        whole, fraction = (digits[: count - scale], digits[count - scale :].rstrip("0"))
        after = rf"\.{fraction}0*" if fraction else r"(?:\.0*)?"
        if whole:
            short = whole.lstrip("0") or "0"  # the whole number itself may be that short
            options.append(f"(?:[0-9]*{whole}|{short}){after}")
        else:
            options.append(f"[0-9]+{after}")
    return f"/{'|'.join(options)}/"


@lru_cache(maxsize=256)
def _leaving(modulus: int, goal: int) -> str:
    """Digit strings, at least one digit, whose number leaves goal: an automaton of remainders,
    whose states are eliminated in turn."""
    start, end = -1, -2
    edges: dict[tuple[int, int], str] = {}

    def add(source: int, target: int, expression: str) -> None:
        known = edges.get((source, target))
        edges[source, target] = expression if known is None else f"{known}|{expression}"

    for digit in range(10):
        add(start, digit % modulus, str(digit))
        for state in range(modulus):
            add(state, (state * 10 + digit) % modulus, str(digit))
    add(goal, end, "")
    for state in sorted(range(modulus), key=lambda s: (s == goal, s)):
        loop = edges.pop((state, state), None)
        around = f"(?:{loop})*" if loop is not None else ""
        sources = [(s, e) for (s, t), e in edges.items() if t == state]
        targets = [(t, e) for (s, t), e in edges.items() if s == state]
        edges = {key: e for key, e in edges.items() if state not in key}
        for source, before in sources:
            for target, after in targets:
                add(source, target, f"(?:{before}){around}(?:{after})")
    return edges[start, end]


def _factors(number: int) -> list[tuple[int, int]]:
    """Prime factors with their powers. Raises GrammarError for one that is too large."""
    found = []
    for prime in range(2, MAX_REMAINDERS + 1):
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power:
            found.append((prime, power))
    if number != 1:
        raise _too_costly(number)
    return found


def _digits(value: Fraction) -> tuple[str, str]:
    """Whole part and decimals of a number that is not negative."""
    scale = _scale(value)
    text = str(int(value * 10**scale)).rjust(scale + 1, "0")
    whole, fraction = (text[:-scale], text[-scale:]) if scale else (text, "")
    return whole, fraction.rstrip("0")


def _scale(value: Fraction) -> int:
    """Decimals that the number has; schema numbers are decimals, so there is an end."""
    scale = 0
    while (value * 10**scale).denominator != 1:
        scale += 1
        assert scale <= 1_000, f"{value} is no decimal"
    return scale


def decimal_text(value: Fraction) -> str:
    """The shortest spelling without an exponent."""
    sign = "-" if value < 0 else ""
    whole, fraction = _digits(abs(value))
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
