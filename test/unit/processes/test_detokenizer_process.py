"""The detokenizer: text per request, failures of one its own, no state that outlives a request."""

from __future__ import annotations

from runtime.srt.errors import BadRequest
from runtime.srt.messages import DecodeOptions, FinishReason, Progress, TokenDelta
from runtime.srt.processes.detokenizer_process import Detokenizer

LENGTH = FinishReason(type="length")


class Spelled:
    """Spells ids as letters; id 99 breaks it, id 98 is a mistake of the request."""

    def push(self, token_ids: list[int], finish: FinishReason | None) -> str:
        if 99 in token_ids:
            raise IndexError("no such token")
        if 98 in token_ids:
            raise BadRequest("stop_regex takes too long")
        return "".join(chr(97 + token_id) for token_id in token_ids)


def _delta(
    rid: str, ids: list[int], *, first: bool = False, finish: FinishReason | None = None
) -> TokenDelta:
    progress = Progress(
        rid=rid, token_ids=ids, prompt_tokens=1, completion_tokens=1, cached_tokens=0, finish=finish
    )
    return TokenDelta(progress, DecodeOptions() if first else None)


def test_each_request_keeps_its_own_text_and_loses_it_at_the_finish() -> None:
    detokenizer = Detokenizer(lambda options: Spelled(), lambda rid: None)

    texts = detokenizer.decode(
        [
            _delta("x", [0], first=True),
            _delta("y", [1], first=True),
            _delta("x", [2], finish=LENGTH),
        ]
    )

    assert [(one.progress.rid, one.text) for one in texts] == [("x", "a"), ("y", "b"), ("x", "c")]
    assert detokenizer.num_requests == 1


def test_a_failing_request_is_aborted_with_an_error_and_others_go_on() -> None:
    aborted: list[str] = []
    detokenizer = Detokenizer(lambda options: Spelled(), aborted.append)
    detokenizer.decode([_delta("x", [0], first=True), _delta("y", [0], first=True)])

    texts = detokenizer.decode([_delta("x", [99]), _delta("y", [1]), _delta("x", [1])])

    assert [one.progress.rid for one in texts] == ["x", "y"]
    finish = texts[0].progress.finish
    assert finish is not None
    assert (finish.type, finish.status_code) == ("abort", 500)
    assert texts[1].text == "b"
    assert aborted == ["x"]
    # What the scheduler still sends of it is dropped, and its id may be used again.
    assert detokenizer.decode([_delta("x", [], finish=FinishReason(type="abort"))]) == []
    assert detokenizer.num_requests == 1
    assert detokenizer.decode([_delta("x", [3], first=True)])[0].text == "d"


def test_a_mistake_of_the_request_keeps_its_message_and_status() -> None:
    detokenizer = Detokenizer(lambda options: Spelled(), lambda rid: None)

    (text,) = detokenizer.decode([_delta("x", [98], first=True, finish=LENGTH)])

    finish = text.progress.finish
    assert finish is not None
    assert (finish.message, finish.status_code) == ("stop_regex takes too long", 400)
    assert detokenizer.num_requests == 0


def test_a_delta_of_an_unknown_request_is_an_error_of_that_request() -> None:
    aborted: list[str] = []
    detokenizer = Detokenizer(lambda options: Spelled(), aborted.append)

    (text,) = detokenizer.decode([_delta("x", [1])])

    assert text.progress.finish is not None
    assert text.progress.finish.type == "abort"
    assert aborted == ["x"]
