"""POST requests whose answers are streamed, all at once from one thread, over HTTP/1.1.

The client shares the cores with the server it measures, so while answers arrive it does nothing but
read bytes and the clock. Heads and chunks are taken apart after the last byte of all.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .answers import CaseTimeout

_READ_BYTES = 1 << 16


@dataclass(slots=True)
class StreamedAnswer:
    """One answer: its body in the pieces in which it came, with the times of perf_counter."""

    started: float  # when the request was about to be sent
    ended: float
    status: int
    pieces: list[tuple[float, bytes]]

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece for _, piece in self.pieces])


@dataclass(slots=True)
class _Exchange:
    connection: socket.socket
    started: float
    ended: float = 0.0
    received: list[tuple[float, bytes]] = field(default_factory=list)


def post_all(
    base_url: str, path: str, bodies: Sequence[bytes], timeout_seconds: float
) -> list[StreamedAnswer]:
    """Send each JSON body on a connection of its own; return the answers in the same order.

    Raises CaseTimeout if they are not all complete in time, OSError for a connection that fails.
    """
    url = urlsplit(base_url)
    host, port = url.hostname or "", url.port or 80
    deadline = time.monotonic() + timeout_seconds
    exchanges: list[_Exchange] = []
    with selectors.DefaultSelector() as selector:
        try:
            for body in bodies:
                started = time.perf_counter()
                connection = socket.create_connection((host, port), timeout_seconds)
                exchange = _Exchange(connection, started)
                exchanges.append(exchange)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(_head(url.netloc, path, len(body)) + body)
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, exchange)
            _read_all(selector, len(exchanges), deadline, timeout_seconds)
        finally:
            for exchange in exchanges:
                exchange.connection.close()
    return [_answer(exchange) for exchange in exchanges]


def _head(host: str, path: str, num_bytes: int) -> bytes:
    # The connection's end is the answer's: nothing needs to be parsed to see it.
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {num_bytes}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    ).encode()


def _read_all(
    selector: selectors.BaseSelector, num_open: int, deadline: float, timeout_seconds: float
) -> None:
    clock = time.perf_counter
    while num_open:
        left = deadline - time.monotonic()
        if left <= 0:
            raise CaseTimeout(f"over {timeout_seconds:g} s")
        for key, _ in selector.select(left):
            exchange: _Exchange = key.data
            data = exchange.connection.recv(_READ_BYTES)
            if data:
                exchange.received.append((clock(), data))
            else:
                exchange.ended = clock()
                selector.unregister(exchange.connection)
                num_open -= 1


def _answer(exchange: _Exchange) -> StreamedAnswer:
    """Take the head off, and the chunks apart; a part of the body keeps the time of its bytes."""
    head, pieces = b"", list(exchange.received)
    while pieces and b"\r\n\r\n" not in head:
        when, data = pieces.pop(0)
        head += data
    head, end, rest = head.partition(b"\r\n\r\n")
    if not end:
        raise ConnectionError("the connection was closed before an answer")
    if rest:
        pieces.insert(0, (when, rest))
    lines = head.lower().split(b"\r\n")
    if b"transfer-encoding: chunked" in lines:
        pieces = _without_chunks(pieces)
    return StreamedAnswer(exchange.started, exchange.ended, int(lines[0].split()[1]), pieces)


def _without_chunks(pieces: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    parts: list[tuple[float, bytes]] = []
    line = b""  # of a chunk's size, as far as it has come
    num_left = 0  # bytes of the chunk still to come, its line end included
    for when, data in pieces:
        while data:
            if num_left:
                part, data = data[:num_left], data[num_left:]
                text = part[: max(num_left - 2, 0)]  # less what is of the line end
                num_left -= len(part)
                if text:
                    parts.append((when, text))
                continue
            end = data.find(b"\n")
            line, data = line + data[: end + 1 or None], data[end + 1 :] if end >= 0 else b""
            if end >= 0:
                size = int(line.split(b";")[0], 16)
                if size == 0:
                    return parts  # trailers are of no interest
                num_left, line = size + 2, b""
    raise ConnectionError("the connection was closed within an answer")
