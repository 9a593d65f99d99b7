"""BoundedHttpProtocol: uvicorn's HTTP/1.1 connection, with limits on what comes before a body.

The parser below it has none: it collects a request line or header of any length, for as long as the
client likes. Refusals that no route sees are made here, in the form that all routes use.
"""

from __future__ import annotations

import http
import logging
from asyncio import TimerHandle, Transport
from typing import Any, cast

import orjson
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..errors import BadRequest, ServingError
from .chunk_writer import offer_chunk_writer
from .errors import error_body

MAX_HEAD_BYTES = 64 << 10  # request line and headers; prompts belong in the body
HEAD_TIMEOUT_SECONDS = 30.0
# A client that is still sending when the connection closes sees a reset instead of the answer.
LINGER_SECONDS = 2.0

logger = logging.getLogger(__name__)


class HeadTooLarge(ServingError):
    """The request line and headers, or the trailers of a chunked body, exceed the limit."""

    status_code = 431
    error_type = "invalid_request_error"


class HeadTooSlow(ServingError):
    """The request line and headers did not come in time."""

    status_code = 408
    error_type = "invalid_request_error"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431, 408 and 400 with the nested JSON error, then closes.

    The limits hold for every request of a connection. Bytes that come together with the end of an
    earlier request are not counted, so that at most twice MAX_HEAD_BYTES are held.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # as uvicorn makes its protocols
        super().__init__(*args, **kwargs)
        self._room_bytes = MAX_HEAD_BYTES
        self._has_progressed = False
        self._is_in_body = False
        self._is_refused = False
        self._timer: TimerHandle | None = None  # for the head, then for lingering

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Fed in parts of what the limit leaves: only so much can be held without any progress.
        while data and not self._is_refused and not self.transport.is_closing():
            part, data = data[: self._room_bytes], data[self._room_bytes :]
            if not self._is_in_body and self._timer is None:
                self._expect_head()
            self._has_progressed = False
            super().data_received(part)
            self._room_bytes -= len(part)
            if self._has_progressed:
                self._room_bytes = MAX_HEAD_BYTES
            elif self._room_bytes <= 0 and not self._is_refused:
                self._refuse(
                    HeadTooLarge(
                        f"the request line and headers have more than {MAX_HEAD_BYTES} bytes; "
                        "send long texts in the body",
                        code="headers_too_large",
                    )
                )

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        self._has_progressed = self._is_in_body = True
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # else the head asks for an upgrade
            offer_chunk_writer(cast("Scope", cycle.scope), _CycleWriter(cycle))

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progressed = True
        self._is_in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser cannot read; msg is uvicorn's and says no more than that."""
        self._refuse(
            BadRequest("the request is not valid HTTP/1.1; see its head", code="invalid_http")
        )

    def _refuse(self, error: ServingError) -> None:
        """Answer error and close, unless another answer of the connection is not complete yet."""
        self._is_refused = True
        self._cancel_timer()
        if self._answers_another():
            self.transport.close()
            return
        logger.debug("refused a connection: %s", error.message)
        body = orjson.dumps(error_body(error))
        phrase = http.HTTPStatus(error.status_code).phrase
        head = (
            f"HTTP/1.1 {error.status_code} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _answers_another(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        # A fault in the body of a request is that request's own, if it has no answer yet.
        return bool(self.pipeline) or cycle.response_started or not cycle.more_body

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_head()  # the head of a later request; its client waits for an answer
        elif self._room_bytes == MAX_HEAD_BYTES:
            self.transport.close()  # nothing came at all
        else:
            self._refuse(
                HeadTooSlow(
                    f"no complete request head came within {HEAD_TIMEOUT_SECONDS:g} s",
                    code="request_timeout",
                )
            )

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _CycleWriter:
    """Writes chunks as RequestResponseCycle.send does, as long as that would not have to wait."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_ready(self) -> bool:
        cycle = self._cycle
        return (
            cycle.chunked_encoding is True
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
        )

    def write(self, chunk: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
