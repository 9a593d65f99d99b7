"""The benchmark's own HTTP client: bodies and times whatever way the bytes are cut."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from serving.answers import CaseTimeout
from serving.streamed_posts import StreamedAnswer, post_all

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKED = _HEAD + b"5\r\nhello\r\nd\r\n, world\r\n\r\n. \r\n0\r\n\r\n"


def answer_of(*pieces: bytes, pause: float = 0.0, timeout: float = 10.0) -> StreamedAnswer:
    """The answer to one request, sent in pieces with a pause after each."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                request = b""
                while not request.endswith(b"{}"):
                    request += connection.recv(4096)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return post_all(f"http://127.0.0.1:{server.getsockname()[1]}", "/x", [b"{}"], timeout)[
                0
            ]
        finally:
            thread.join()


@pytest.mark.parametrize("at", range(1, len(_CHUNKED), 3))
def test_chunks_are_joined_wherever_they_are_cut(at: int) -> None:
    answer = answer_of(_CHUNKED[:at], _CHUNKED[at:], pause=0.002)

    assert (answer.status, answer.body) == (200, b"hello, world\r\n\r\n. ")


def test_a_piece_keeps_the_time_at_which_it_came() -> None:
    answer = answer_of(_HEAD, b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n", pause=0.05)

    times = [when - answer.started for when, _ in answer.pieces]
    assert [data for _, data in answer.pieces] == [b"a", b"b"]
    assert 0.04 < times[0] < times[1] - 0.03


def test_a_plain_body_ends_with_its_connection() -> None:
    answer = answer_of(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno!")

    assert (answer.status, answer.body) == (400, b"no!")


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", _CHUNKED[:-9]])
def test_an_answer_that_is_cut_off_is_an_error(sent: bytes) -> None:
    with pytest.raises(ConnectionError, match="closed"):
        answer_of(sent)


def test_answers_that_take_too_long_are_a_timeout() -> None:
    with pytest.raises(CaseTimeout):
        answer_of(_HEAD, pause=0.3, timeout=0.1)
