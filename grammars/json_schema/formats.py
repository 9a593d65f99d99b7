"""Formats that are enforced exactly, as regular languages after their RFCs.

A format that is not here is refused by name: a looser pattern would let wrong texts through, a
stricter one would keep right ones from being written.
"""

from __future__ import annotations

from functools import lru_cache

from .regex_ast import Regex, both, length
from .regex_parser import parse_pattern

NOT_ABOUT_STRINGS = frozenset(("int32", "int64", "float", "double"))  # OpenAPI, on numbers

_MONTHS_30 = "(?:0[469]|11)"
_MONTHS_31 = "(?:0[13578]|1[02])"
_DAYS = (
    rf"(?:{_MONTHS_31}-(?:0[1-9]|[12]\d|3[01])|{_MONTHS_30}-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
)
# From the year 1 on: RFC 3339 has a year 0, the libraries that read dates have not.
_YEARS = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_LEAP_YEARS = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEARS}-{_DAYS}|{_LEAP_YEARS}-02-29)"
# A leap second ends a UTC day; only the spellings in UTC are written.
_OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = (
    rf"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?{_OFFSET}"
    r"|23:59:60(?:\.\d+)?(?:[Zz]|[+-]00:00))"
)
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    (
        rf"(?:{_H16}:){{6}}{_LS32}",
        rf"::(?:{_H16}:){{5}}{_LS32}",
        rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    )
)
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_UNRESERVED = r"A-Za-z0-9._~\-"
_SUB = r"!$&'()*+,;="
_PCT = "%[0-9A-Fa-f]{2}"
_PCHAR = rf"(?:[{_UNRESERVED}{_SUB}:@]|{_PCT})"
_IP_LITERAL = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_SUB}:]+)\]"
_HOST = rf"(?:{_IP_LITERAL}|(?:[{_UNRESERVED}{_SUB}]|{_PCT})*)"
_AUTHORITY = rf"(?:(?:[{_UNRESERVED}{_SUB}:]|{_PCT})*@)?{_HOST}(?::\d*)?"
_QUERY_FRAGMENT = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_ABSOLUTE = rf"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_AFTER_SCHEME = rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|{_ABSOLUTE}|{_PCHAR}+(?:/{_PCHAR}*)*|)"
_URI = rf"{_SCHEME}:{_AFTER_SCHEME}{_QUERY_FRAGMENT}"
_NO_COLON = rf"(?:[{_UNRESERVED}{_SUB}@]|{_PCT})+"
_RELATIVE = (
    rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|{_ABSOLUTE}|{_NO_COLON}(?:/{_PCHAR}*)*|){_QUERY_FRAGMENT}"
)
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\d+W)",
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*",
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "byte": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",  # base64, OpenAPI
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
_LONGEST = {"hostname": 253, "email": 254}

NAMES = tuple(sorted(_PATTERNS))


@lru_cache(maxsize=32)
def language(name: str) -> Regex | None:
    """The strings of a format; None if it is not enforced."""
    pattern = _PATTERNS.get(name)
    if pattern is None:
        return None
    whole = parse_pattern(f"^(?:{pattern})$", own=True)
    return both((whole, length(0, _LONGEST[name]))) if name in _LONGEST else whole
