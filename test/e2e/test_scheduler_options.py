"""Other ways to schedule give the same answers: overlap, forced retraction, every rule and policy.

And the limits that the options set are kept: deadlines, quotas, the wait of a cold request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_client import ApiClient, side_by_side
from support.server import Server, start_server

STORY = "The history of the town begins with a river, a mill and two families. "
POOL = ("--dtype", "float32", "--max-total-tokens", "900", "--skip-server-warmup")
OVERLAP = ("--overlap-depth", "1")

SETTINGS: dict[str, tuple[str, ...]] = {
    "overlap": OVERLAP,
    "overlap, forced retraction": (*OVERLAP, "--test-retract-every", "3"),
    "learnt, dfs-weight": ("--admission-rule", "learnt", "--schedule-policy", "dfs-weight"),
    "program order, fcfs": ("--program-order", "--schedule-policy", "fcfs", *OVERLAP),
    "prompt-only, hrrn": ("--admission-rule", "prompt-only", "--schedule-policy", "hrrn", *OVERLAP),
}


def mixed_calls(api: ApiClient) -> list[Callable[[], Any]]:
    def call(index: int) -> Any:
        sampling: dict[str, Any] = {"ignore_eos": index % 2 == 0}
        if index % 3 == 1:
            sampling |= {"temperature": 0.8, "sampling_seed": index, "frequency_penalty": 0.5}
        if index % 5 == 2:
            sampling |= {"stop": ["the", "\n"], "min_new_tokens": 4}
        prompt = STORY * (index % 4 + 1) + f"In year {index},"
        return api.generate(
            prompt,
            10 + index,
            sampling=sampling,
            return_logprob=index % 4 == 0,
            program_id=f"program {index % 5}",
            branch_id=str(index),
        )

    return [lambda index=index: call(index) for index in range(24)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_do_not_depend_on_how_requests_are_scheduled(api_f32: ApiClient, name: str) -> None:
    expected = side_by_side(mixed_calls(api_f32))

    with start_server(*POOL, *SETTINGS[name]) as running, ApiClient(running.base_url) as api:
        answers = side_by_side(mixed_calls(api))
        api.wait_until_idle()
        num_retractions = api.counter("retractions")

    for answer, wanted in zip(answers, expected, strict=True):
        assert answer["output_ids"] == wanted["output_ids"]
        assert answer["text"] == wanted["text"]
        ours, theirs = answer["meta_info"], wanted["meta_info"]
        assert ours["finish_reason"] == theirs["finish_reason"]
        for (one, _, _), (two, _, _) in zip(
            ours.get("output_token_logprobs", ()),
            theirs.get("output_token_logprobs", ()),
            strict=True,
        ):
            assert one == pytest.approx(two, abs=1e-4)
    if "--test-retract-every" in SETTINGS[name]:
        assert num_retractions > 0


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tenants = {
        "tenants": [
            {"name": "small", "api_key": "small-key", "tokens_per_minute": 60},
            {"name": "large", "api_key": "large-key"},
        ]
    }
    path: Path = tmp_path_factory.mktemp("tenants") / "tenants.json"
    path.write_text(json.dumps(tenants))
    limits = ("--max-running-requests", "2", "--max-wait-seconds", "3", "--ageing-stride", "100000")
    with start_server("--tenants-file", str(path), *limits, "--skip-server-warmup") as running:
        yield running


@pytest.mark.timeout(300)
def test_a_request_ends_with_504_at_its_deadline(limited: Server) -> None:
    with ApiClient(limited.base_url, "large-key") as api:
        began = time.monotonic()
        body = {
            "text": "Once",
            "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True},
            "timeout_seconds": 1.5,
        }
        reply = api.post("/generate", body)

        assert reply.status_code == 504, reply.text[:300]
        assert "1.5 s" in reply.json()["error"]["message"]
        assert time.monotonic() - began < 30
        api.wait_until_idle()


@pytest.mark.timeout(300)
def test_a_tenant_beyond_its_quota_waits_and_others_do_not(limited: Server) -> None:
    with (
        ApiClient(limited.base_url, "small-key") as small,
        ApiClient(limited.base_url, "large-key") as large,
    ):
        small.generate([5] * 100, 1)
        waiting = {"input_ids": [6] * 50, "timeout_seconds": 4}
        ended: list[int] = []
        thread = threading.Thread(
            target=lambda: ended.append(small.post("/generate", waiting).status_code)
        )
        thread.start()
        large.generate([7] * 50, 1)
        assert not ended, "the small tenant waits"
        thread.join()

        assert ended == [504]


@pytest.mark.timeout(300)
def test_a_cold_request_is_served_in_time_under_a_stream_of_hot_ones(limited: Server) -> None:
    hot = STORY * 20
    stop = threading.Event()
    served = [0]

    def keep_hot(client_number: int) -> None:
        with ApiClient(limited.base_url, "large-key") as api:
            while not stop.is_set():
                api.generate(hot + f"{client_number} {served[0]}", 4)
                served[0] += 1

    threads = [threading.Thread(target=keep_hot, args=(number,)) for number in range(24)]
    with ApiClient(limited.base_url, "large-key") as api:
        api.generate(hot, 1)
        for thread in threads:
            thread.start()
        try:
            time.sleep(1)
            began = time.monotonic()
            api.generate("A cold question about the sea and its ships: " * 10, 2)
            seconds = time.monotonic() - began
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    assert served[0] > 24
    # The bound of 3 s, and then one running request and its own prompt on a busy machine.
    assert seconds < 3 + 15
