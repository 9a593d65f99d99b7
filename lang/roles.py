"""Messages of a conversation as expressions; the model's own chat template writes them out."""

from __future__ import annotations

from .expressions import Role, as_expression


def system(content: object) -> Role:
    """A message of the system; content is text, an expression or a sum of them."""
    return Role("system", as_expression(content))


def user(content: object) -> Role:
    """A message of the user."""
    return Role("user", as_expression(content))


def assistant(content: object) -> Role:
    """A message of the assistant, most often with a gen in it."""
    return Role("assistant", as_expression(content))
