"""Who runs first: priorities, the bound on waiting that ageing alone gives, the queue's limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.api_client import ApiClient, generate_body, wait_until
from support.server import start_server

HOT = "The history of the town begins with a river, a mill and two families. " * 20
NUM_CLIENTS = 24
STRIDE = 8  # the default of --ageing-stride
LONG = {"ignore_eos": True}
MAX_QUEUED_TOKENS = 12_000


@pytest.fixture(scope="module")
def api() -> Iterator[ApiClient]:
    flags = ("--max-running-requests", "1", "--max-queued-tokens", str(MAX_QUEUED_TOKENS))
    with (
        start_server(*flags, "--skip-server-warmup") as running,
        ApiClient(running.base_url) as client,
    ):
        yield client
        client.wait_until_idle()


@pytest.mark.timeout(300)
def test_one_far_more_important_interrupts_a_running_answer_that_loses_nothing(
    api: ApiClient,
) -> None:
    undisturbed = api.generate("Once upon a time", 150, sampling=LONG)["output_ids"]
    before = api.scheduler_state()["counters"]

    with ThreadPoolExecutor(1) as threads:
        low = threads.submit(api.generate, "Once upon a time", 150, sampling=LONG)
        wait_until(
            lambda: api.scheduler_state()["num_running_reqs"] == 1, "the unimportant one runs"
        )
        api.generate("Now!", 2, priority=11)
        assert not low.done(), "the running answer was not long enough to tell"
        answer = low.result()

    after = api.scheduler_state()["counters"]
    assert answer["meta_info"]["num_retractions"] == 1
    assert after["preemptions"] == before["preemptions"] + 1
    assert after["retractions"] == before["retractions"] + 1
    assert answer["output_ids"] == undisturbed


@pytest.mark.timeout(300)
def test_of_those_who_wait_the_most_important_is_next(api: ApiClient) -> None:
    ended: list[int] = []

    def ask(priority: int) -> None:
        # Long enough that the ends are further apart than a loaded machine delays a thread here.
        api.generate(f"Of priority {priority}", 80, sampling=LONG, priority=priority)
        ended.append(priority)

    running = generate_body("Once", 4000, LONG)
    with ThreadPoolExecutor(3) as threads:
        with api.open_stream("/generate", running) as events:
            next(events)
            for count, priority in enumerate((0, 5, 10), start=1):
                threads.submit(ask, priority)
                wait_until(
                    lambda count=count: api.scheduler_state()["num_queue_reqs"] == count, "it waits"
                )

    assert ended == [10, 5, 0]


@pytest.mark.timeout(300)
def test_ageing_alone_serves_a_cold_request_under_a_stream_of_hot_ones(api: ApiClient) -> None:
    stop = threading.Event()
    served = [0]

    def keep_hot(number: int) -> None:
        while not stop.is_set():
            api.generate(HOT + f"{number} {served[0]}", 1)
            served[0] += 1

    api.generate(HOT, 1)
    threads = [threading.Thread(target=keep_hot, args=(i,)) for i in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: served[0] > NUM_CLIENTS, "the hot stream flows")
        before = served[0]
        api.generate("A cold question about the sea and its ships: " * 10, 1, timeout_seconds=60)
        num_passed = served[0] - before
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    # Older ones leave in every turn of the oldest; then the next such turn is the cold one's.
    assert num_passed <= STRIDE * (NUM_CLIENTS + 1)


@pytest.mark.timeout(300)
def test_a_queue_full_of_prompt_tokens_answers_503_with_both_numbers(api: ApiClient) -> None:
    long_prompt = generate_body([11] * 5000, 1)
    with ThreadPoolExecutor(2) as threads:
        with api.open_stream("/generate", generate_body("Once", 4000, LONG)) as events:
            next(events)
            waiting = [threads.submit(api.post, "/generate", long_prompt) for _ in range(2)]
            wait_until(lambda: api.scheduler_state()["num_queue_reqs"] == 2, "two wait")

            refused = api.post("/generate", long_prompt)

            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0
            message = refused.json()["error"]["message"]
            assert "10000" in message and str(MAX_QUEUED_TOKENS) in message
            assert api.generate("short", 1, priority=11)["meta_info"]["completion_tokens"] == 1
            api.ok("/abort_request", {"abort_all": True})
        assert [one.result().status_code for one in waiting] == [200, 200]


@pytest.mark.timeout(300)
def test_a_waiting_request_ends_at_its_deadline_too(api: ApiClient) -> None:
    with api.open_stream("/generate", generate_body("Once", 4000, LONG)) as events:
        next(events)
        began = time.monotonic()

        reply = api.post("/generate", {"text": "late", "timeout_seconds": 0.5})

        assert reply.status_code == 504 and "0.5 s" in reply.json()["error"]["message"]
        assert time.monotonic() - began < 30
