"""ServingErrors as HTTP answers, in the nested form that OpenAI clients parse.

Every route answers mistakes with {"error": {"message", "type", "param", "code"}}; no traceback,
body or key is ever part of it.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import (
    BadRequest,
    DeadlinePassed,
    GenerationFailed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    ServingError,
)
from ..messages import FinishReason
from .disconnect import ClientGone

RETRY_AFTER_SECONDS = 1
CLIENT_CLOSED_REQUEST = 499  # never on the wire: the connection is gone
_PARAM_CHARS = 200

logger = logging.getLogger(__name__)


def error_body(error: ServingError) -> dict[str, Any]:
    """Return the JSON object that describes error to a client."""
    return {
        "error": {
            "message": _printable(error.message),
            "type": error.error_type,
            "param": None if error.param is None else _printable(error.param)[:_PARAM_CHARS],
            "code": error.code,
        }
    }


def error_response(error: ServingError) -> Response:
    """Return the HTTP answer for error, with Retry-After where trying again may help."""
    headers = {}
    if error.retryable:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if error.status_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status_code == 413:
        headers["Connection"] = "close"  # the body may not have been read to its end
    return Response(
        orjson.dumps(error_body(error)),
        status_code=error.status_code,
        headers=headers,
        media_type="application/json",
    )


def internal_error() -> ServingError:
    """Return what a client is told when the server has a defect; the log has the traceback."""
    return ServingError("internal server error; the server's log has the details")


def error_from_finish(finish: FinishReason) -> ServingError | None:
    """Return the error that an abort by the engine means, None for any other finish.

    An abort that the client asked for carries no status and is no error.
    """
    if finish.type != "abort" or finish.status_code is None or finish.status_code < 400:
        return None
    message = finish.message or "the engine aborted the request"
    kinds: dict[int, type[ServingError]] = {
        400: BadRequest,
        404: NotFound,
        413: PayloadTooLarge,
        503: Overloaded,
        504: DeadlinePassed,
    }
    return kinds.get(finish.status_code, GenerationFailed)(message)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of every route, routing included, answer in the nested form."""
    app.add_exception_handler(ServingError, _on_serving_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientGone, _on_client_gone)


async def _on_serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    logger.debug(
        "request %s refused: %s %s",
        request.scope.get("state", {}).get("request_id"),
        error.status_code,
        error.error_type,
    )
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope.get("path", "")
    if error.status_code == 404:
        return error_response(NotFound(f"there is no route {path}", code="unknown_url"))
    if error.status_code == 405:
        return _method_not_allowed(request, error)
    if error.status_code >= 500:
        return error_response(internal_error())
    return error_response(BadRequest(str(error.detail)))


def _method_not_allowed(request: Request, error: HTTPException) -> Response:
    refusal = BadRequest(
        f"{request.method} is not allowed on {request.scope.get('path', '')}",
        code="method_not_allowed",
    )
    response = error_response(refusal)
    response.status_code = 405
    response.headers.update(error.headers or {})
    return response


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(BadRequest(f"{name}: {first['msg']}", param=name))


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _printable(text: str) -> str:
    """Drop what UTF-8 cannot carry: a name quoted from a URL may hold lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")
