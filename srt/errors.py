"""Errors a user can cause or must be told about, each with its HTTP status and OpenAI error type.

A ServingError's text names the value, the limit and the remedy. It knows nothing of HTTP
frameworks: the api package turns it into a response, Engine raises it as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class ServingError(Exception):
    """Base of every error that ends a request with an answer instead of a traceback."""

    status_code: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal_server_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class BadRequest(ServingError):
    """A field is missing, of the wrong type or out of range; param names it."""

    status_code = 400
    error_type = "invalid_request_error"


class ContextTooLong(BadRequest):
    """The prompt, or prompt and requested output together, exceed what the model takes."""


class GrammarInvalid(BadRequest):
    """A schema, regex or grammar cannot be compiled or enforced."""


class NotFound(ServingError):
    """The named model or resource does not exist."""

    status_code = 404
    error_type = "invalid_request_error"


class PayloadTooLarge(ServingError):
    """The request body exceeds the configured size."""

    status_code = 413
    error_type = "invalid_request_error"


class Unauthorized(ServingError):
    """No key, or a wrong one."""

    status_code = 401
    error_type = "authentication_error"


class Forbidden(ServingError):
    """The key is right but does not open this route."""

    status_code = 403
    error_type = "permission_error"


class Overloaded(ServingError):
    """The queue is full or the server is draining; the client may try again later."""

    status_code = 503
    error_type = "overloaded_error"
    retryable = True


class DeviceOutOfMemory(Overloaded):
    """A step found no memory on the device; the text names a flag that leaves more of it."""


class DeadlinePassed(ServingError):
    """The request did not end within the time it was given."""

    status_code = 504
    error_type = "timeout_error"


class EngineDied(ServingError):
    """A process of the engine ended; every open request gets this error."""

    status_code = 500
    error_type = "internal_server_error"


class GenerationFailed(ServingError):
    """The engine aborted one request, for a reason it names; other requests go on."""


class ModelLoadError(ServingError):
    """The model at --model-path cannot be served: the text names the file, tensor or field."""


class ConfigError(ServingError):
    """A server argument cannot be honoured: the text names the flag, the value and a remedy."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names what is known and like name, or nothing."""
    close = difflib.get_close_matches(name, list(known))
    return f"; did you mean {' or '.join(close)}?" if close else ""
