"""Pinned prefixes over HTTP: kept under pressure, for their time, within their share."""

from __future__ import annotations

import time

import pytest
from support.api_client import ApiClient, wait_until

SYSTEM = "You are the keeper of a lighthouse. Answer in one short sentence, and name the weather. "
SHARE = 0.25  # the default of --pin-pool-share


def flood(api: ApiClient, first_token: int) -> None:
    """Take the whole pool, so that all that may be evicted is."""
    total = api.kv()["total"]
    api.generate([first_token] * (total // 2 - 20), 1)
    api.generate([first_token + 1] * (total // 2 - 20), 1)
    api.generate([first_token + 2] * (total // 2 - 20), 1)


def cached(api: ApiClient, text: str) -> int:
    return int(api.generate(text, 1)["meta_info"]["cached_tokens"])


@pytest.mark.timeout(300)
def test_a_pinned_prefix_is_still_cached_after_a_flood_and_an_unpinned_one_is_not(
    tiny_pool_api: ApiClient,
) -> None:
    api = tiny_pool_api
    api.flush()
    before = api.generate(SYSTEM + "Is it late?", 8)["output_ids"]

    pin = api.ok("/pin_prefix", {"text": SYSTEM, "ttl_seconds": 600})
    flood(api, 100)
    kv = api.kv()
    during = api.generate(SYSTEM + "Is it late?", 8)
    api.ok("/unpin_prefix", {"pin_id": pin["pin_id"]})
    flood(api, 200)

    assert kv["pinned"] == kv["protected"] == pin["num_tokens"] > 15
    assert kv["available"] + kv["evictable"] + kv["protected"] + kv["held"] == kv["total"]
    # The last token of the text may be another one where it goes on.
    assert during["meta_info"]["cached_tokens"] >= pin["num_tokens"] - 1
    assert during["output_ids"] == before
    assert cached(api, SYSTEM + "Is it late?") < 5


@pytest.mark.timeout(300)
def test_a_pinned_conversation_begins_the_chats_that_go_on_from_it(
    tiny_pool_api: ApiClient,
) -> None:
    api = tiny_pool_api
    system = {"role": "system", "content": SYSTEM}
    pin = api.ok("/pin_prefix", {"messages": [system], "ttl_seconds": 600})
    flood(api, 300)

    reply = api.chat([system, {"role": "user", "content": "Is it late?"}], 4)
    api.ok("/unpin_prefix", {"pin_id": pin["pin_id"]})

    details = reply["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= pin["num_tokens"] - 1 > 15


@pytest.mark.timeout(300)
def test_pins_end_by_themselves(tiny_pool_api: ApiClient) -> None:
    began = time.time()
    pin = tiny_pool_api.ok("/pin_prefix", {"text": SYSTEM, "ttl_seconds": 1.0})
    assert pin["expires_at"] == pytest.approx(began + 1.0, abs=20)
    assert tiny_pool_api.scheduler_state()["num_pins"] == 1

    wait_until(lambda: tiny_pool_api.scheduler_state()["num_pins"] == 0, "the pin has expired")

    assert time.time() >= pin["expires_at"] - 0.1
    gone = tiny_pool_api.post("/unpin_prefix", {"pin_id": pin["pin_id"]})
    assert gone.status_code == 404


@pytest.mark.timeout(300)
def test_a_prefix_larger_than_the_share_is_refused_with_both_numbers(
    tiny_pool_api: ApiClient,
) -> None:
    limit = int(tiny_pool_api.kv()["total"] * SHARE)

    response = tiny_pool_api.post(
        "/pin_prefix", {"input_ids": [7] * (limit + 1), "ttl_seconds": 60}
    )

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("input_ids", "pin_refused")
    assert str(limit + 1) in error["message"] and str(limit) in error["message"]
    assert tiny_pool_api.kv()["pinned"] == 0
