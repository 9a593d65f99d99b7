"""Requests that nobody waits for any more end at once and give back all they held."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.api_client import (
    ApiClient,
    chat_body,
    generate_body,
    side_by_side,
    wait_until,
)

# A step, the way through three processes, and a poll; a machine that is busy with other things
# needs several times as long.
GONE_WITHIN_SECONDS = 5.0
ENDLESS = {"ignore_eos": True}
PATHS = ["/generate", "/v1/completions", "/v1/chat/completions"]


def _endless_body(path: str, text: str = "Once upon a time") -> dict[str, Any]:
    if path == "/generate":
        return generate_body(text, 4000, ENDLESS)
    if path == "/v1/completions":
        return {"prompt": text, "max_tokens": 4000, "ignore_eos": True}
    return chat_body(text, 4000, ignore_eos=True)


def _assert_soon_idle(api: ApiClient) -> None:
    waited = wait_until(lambda: api.num_open() == 0, "requests ended", GONE_WITHIN_SECONDS)
    assert waited < GONE_WITHIN_SECONDS
    api.wait_until_idle()


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_a_stream_ends_its_request(api: ApiClient, path: str) -> None:
    aborted_before = api.counter("aborted")

    with api.open_stream(path, _endless_body(path)) as events:
        next(events)
        assert api.num_open() == 1

    _assert_soon_idle(api)
    assert api.counter("aborted") == aborted_before + 1


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_stops_waiting_for_an_answer_ends_its_request(
    api: ApiClient, path: str
) -> None:
    with api.unanswered(path, _endless_body(path)):
        wait_until(lambda: api.num_open() == 1, "the request runs")

    _assert_soon_idle(api)


def test_all_parts_of_a_body_end_with_its_client(api: ApiClient) -> None:
    body = generate_body(["One", "Two", "Three"], 4000, {**ENDLESS, "n": 2, "temperature": 1.0})

    with api.unanswered("/generate", body):
        wait_until(lambda: api.num_open() == 6, "six requests run")

    _assert_soon_idle(api)


def test_a_client_that_leaves_during_a_long_prompt_ends_its_request(api: ApiClient) -> None:
    api.flush()
    body = generate_body([11, 12, 13] * 2500, 100)

    with api.unanswered("/generate", body):
        wait_until(lambda: api.num_open() == 1, "the prompt is being computed")

    # A chunk of the prompt is a step: on a slow machine it takes its time.
    wait_until(lambda: api.num_open() == 0, "the request ended")


def test_a_stream_left_before_its_first_event_ends(api: ApiClient) -> None:
    body = {**_endless_body("/v1/completions"), "stream": True}

    with api.unanswered("/v1/completions", body):
        wait_until(lambda: api.num_open() == 1, "the request runs")

    _assert_soon_idle(api)


def test_many_clients_leave_at_once(api: ApiClient) -> None:
    def leave(index: int) -> None:
        with api.open_stream("/generate", _endless_body("/generate", f"Story {index}")) as events:
            next(events)

    side_by_side([lambda i=i: leave(i) for i in range(12)])

    _assert_soon_idle(api)


def test_an_abort_ends_exactly_the_named_request(api: ApiClient) -> None:
    bodies = {
        rid: generate_body("Once", 300 if rid == "job-1" else 40, ENDLESS, rid=rid)
        for rid in ("job-1", "job-10", "job")
    }
    with ThreadPoolExecutor(3) as threads:
        answers = {rid: threads.submit(api.ok, "/generate", body) for rid, body in bodies.items()}
        wait_until(lambda: api.num_open() == 3, "three requests run")

        reply = api.ok("/abort_request", {"rid": "job-1"})

        reasons = {rid: one.result()["meta_info"]["finish_reason"] for rid, one in answers.items()}
    assert reply["found"] is True
    assert reasons["job-1"]["type"] == "abort"
    assert reasons["job-10"] == reasons["job"] == {"type": "length", "length": 40}


def test_an_aborted_request_keeps_what_it_had(api: ApiClient) -> None:
    body = generate_body("Once", 4000, ENDLESS, rid="half-done")
    with api.open_stream("/generate", body) as events:
        seen = [next(events) for _ in range(3)]
        api.ok("/abort_request", {"rid": "half-done"})
        rest = list(events)

    assert rest[-1] == "[DONE]"
    last = rest[-2]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["text"].startswith(seen[-1]["text"])
    assert len(last["output_ids"]) == last["meta_info"]["completion_tokens"] < 4000


def test_an_abort_reaches_every_sample_and_every_item(api: ApiClient) -> None:
    samples = generate_body("Once", 4000, {**ENDLESS, "n": 3, "temperature": 1.0}, rid="samples")
    batch = generate_body(["a", "b"], 4000, ENDLESS, rid="batch")
    for rid, body, num_parts in (("samples", samples, 3), ("batch", batch, 2)):
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(api.ok, "/generate", body)
            wait_until(lambda n=num_parts: api.num_open() == n, "all parts run")

            assert api.ok("/abort_request", {"rid": rid})["found"] is True

            types = [one["meta_info"]["finish_reason"]["type"] for one in answer.result()]
        assert types == ["abort"] * num_parts


def test_abort_all_ends_everything(api: ApiClient) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = [
            threads.submit(api.ok, "/generate", generate_body(f"{i}", 4000, ENDLESS))
            for i in range(4)
        ]
        wait_until(lambda: api.num_open() == 4, "four requests run")

        assert api.ok("/abort_request", {"abort_all": True})["found"] is True

        types = [one.result()["meta_info"]["finish_reason"]["type"] for one in answers]
    assert types == ["abort"] * 4


def test_aborting_what_does_not_run_is_no_error(api: ApiClient) -> None:
    assert api.ok("/abort_request", {"rid": "nobody"}) == {"success": True, "found": False}


def test_an_id_may_be_used_again_after_its_request_has_ended(api: ApiClient) -> None:
    for _ in range(3):
        body = generate_body("Once", 400, ENDLESS, rid="again")
        with api.open_stream("/generate", body) as events:
            next(events)
        _assert_soon_idle(api)

    assert api.generate("Once", 2, rid="again")["meta_info"]["id"] == "again"


def test_kv_of_an_aborted_request_stays_in_the_cache(api: ApiClient) -> None:
    api.flush()
    prompt = "A prompt that is worth keeping, although its reader has left the room. " * 3
    body = generate_body(prompt, 4000, ENDLESS, rid="kept")
    with api.open_stream("/generate", body) as events:
        num_prompt_tokens = next(events)["meta_info"]["prompt_tokens"]
    _assert_soon_idle(api)

    answer = api.generate(prompt, 1)

    assert answer["meta_info"]["cached_tokens"] == num_prompt_tokens - 1
