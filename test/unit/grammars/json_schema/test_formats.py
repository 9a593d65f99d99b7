"""Formats against the libraries that read such texts."""

from __future__ import annotations

import datetime
import itertools

from runtime.grammars.json_schema.formats import language
from runtime.grammars.json_schema.regex_match import matches

YEARS = ("0000", "0001", "0004", "0100", "0400", "1900", "1999", "2000", "2024", "9999", "99")
MONTHS = ("00", "01", "02", "04", "06", "09", "11", "12", "13", "1")
DAYS = ("00", "01", "09", "28", "29", "30", "31", "32", "1")


def _is_date(text: str) -> bool:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        return False
    return len(text) == 10


def test_dates_are_those_of_the_calendar() -> None:
    dates = language("date")
    assert dates is not None
    for parts in itertools.product(YEARS, MONTHS, DAYS):
        text = "-".join(parts)
        assert matches(dates, text) is _is_date(text), text
