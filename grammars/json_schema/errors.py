"""Refusals that name a keyword."""

from __future__ import annotations

from ..matcher import GrammarError


class UnsupportedKeyword(GrammarError):
    """A keyword that is valid but cannot be enforced; a request may ask to leave it out."""


class InvalidSchema(GrammarError):
    """What stands in the schema is not what the keyword takes."""
