"""shortest_text: the shortest string of a regular language, by its derivatives, breadth first."""

from __future__ import annotations

from functools import lru_cache

from .json_schema.regex_ast import NOTHING, Regex
from .json_schema.regex_match import accepts_empty, derivative, representatives
from .matcher import GrammarError

MAX_CHARACTERS = 24  # of the string: a longer one is no short end
MAX_DERIVATIVES = 1_500  # each some 20 us when it is new
# Tried first, as they read better than the first characters of Unicode.
_PREFERRED = tuple(map(ord, "a0A-. @:/_"))


@lru_cache(maxsize=512)
def shortest_text(regex: Regex) -> str | None:
    """A shortest member of regex; None if it has none, or none is found within the bounds."""
    if accepts_empty(regex):
        return ""
    try:
        letters = dict.fromkeys((*_PREFERRED, *representatives(regex)))
    except GrammarError:  # too many characters to tell apart
        return None
    seen = {regex}
    states = [(regex, "")]
    num_left = MAX_DERIVATIVES
    for state, text in states:  # grows while it is walked
        if len(text) >= MAX_CHARACTERS or num_left < len(letters):
            return None
        num_left -= len(letters)
        for letter in letters:
            following = derivative(state, letter)
            if following == NOTHING or following in seen:
                continue
            if accepts_empty(following):
                return text + chr(letter)
            seen.add(following)
            states.append((following, text + chr(letter)))
    return None
