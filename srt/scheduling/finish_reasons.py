"""Why a request ends without an answer that is whole: as FinishReasons of type abort."""

from __future__ import annotations

from ..messages import FinishReason

SERVER_ERROR = "internal_server_error"
CLIENT_ABORT = FinishReason(type="abort", message="aborted by the client")
SHUTDOWN_ABORT = FinishReason(
    type="abort",
    message="the server is shutting down, and the answer was not finished in time",
    status_code=503,
    error_type="overloaded_error",
)


def failure(message: str, status_code: int, error_type: str = SERVER_ERROR) -> FinishReason:
    """The end of a request that failed, with the HTTP status and the error's OpenAI type."""
    return FinishReason(
        type="abort", message=message, status_code=status_code, error_type=error_type
    )
