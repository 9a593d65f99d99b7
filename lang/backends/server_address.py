"""What a backend is told of a server, checked before anything is sent to it."""

from __future__ import annotations

from urllib.parse import urlsplit

from ..errors import ProgramError

_EXAMPLE = "it must be the server's address, such as 'http://127.0.0.1:30000'"


def checked_base_url(given: object) -> str:
    """given without slashes at its end; raises ProgramError for what is no address of a server."""
    if not isinstance(given, str):
        raise ProgramError(f"base_url is {given!r}, a {type(given).__name__}; {_EXAMPLE}")
    try:
        parts = urlsplit(given)
        has_host = bool(parts.hostname)
        _ = parts.port  # raises for what is no number
    except ValueError as error:
        raise ProgramError(f"base_url is {given!r}: {error}; {_EXAMPLE}") from None
    if parts.scheme not in ("http", "https") or not has_host:
        raise ProgramError(f"base_url is {given!r}; {_EXAMPLE}, with http:// or https:// before it")
    if parts.query or parts.fragment:
        raise ProgramError(f"base_url is {given!r}; {_EXAMPLE}, without a query")
    if any(letter.isspace() or not letter.isprintable() for letter in given):
        raise ProgramError(f"base_url is {given!r}; {_EXAMPLE}, without spaces")
    return given.rstrip("/")


def check_limits(timeout_seconds: float, max_connections: int = 1) -> None:
    """Raise ProgramError for a time or a number that would let no call through."""
    if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, int | float):
        kind = type(timeout_seconds).__name__
        raise ProgramError(f"timeout_seconds is of type {kind}; it must be a number of seconds")
    if not timeout_seconds > 0:
        raise ProgramError(f"timeout_seconds is {timeout_seconds}; it must be above 0")
    if type(max_connections) is not int or max_connections < 1:
        raise ProgramError(f"max_connections is {max_connections!r}; it must be an integer from 1")


def check_api_key(given: object) -> None:
    """Raise ProgramError unless given is None or fits a header; its text does not show it."""
    if given is None:
        return
    if not isinstance(given, str):
        raise ProgramError(f"api_key is of type {type(given).__name__}; it must be text or None")
    if not given.strip() or any(not " " <= letter <= "~" for letter in given):
        raise ProgramError(
            "api_key is empty or has a character that no header takes, such as a line break; leave "
            "it out if the server asks for none"
        )
