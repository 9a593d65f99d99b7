"""What can go wrong in a program of the language, and what its text tells the author."""

from __future__ import annotations


class LanguageError(Exception):
    """Base of every error that the language raises itself."""


class ProgramError(LanguageError):
    """The program uses the language in a way that has no meaning; the text says what to write."""


class Unsupported(LanguageError):
    """The backend cannot do what the program asks; raised before the backend is called."""


class DeadlinePassed(LanguageError, TimeoutError):
    """A call, a wait or the whole run did not end within its time."""


class ProgramCancelled(LanguageError):
    """The run was cancelled before this part of it was done."""


class InvalidOutput(LanguageError):
    """An output cannot be read as the type that its variable has."""


class BackendError(LanguageError):
    """The backend refused a call or broke.

    status_code and param are those of the backend's answer, None where there was none.
    """

    def __init__(
        self, message: str, *, status_code: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.param = param
