"""The prefix cache as a client sees it: what is reused, what is never shared, what is freed."""

from __future__ import annotations

import pytest
from support.api_client import ApiClient, chat_body, generate_body, side_by_side, wait_until

STORY = "Long ago a river, a mill and two families made the whole of the town. "


@pytest.mark.timeout(300)
def test_a_second_turn_finds_the_first_turns_prompt_and_answer(api_f32: ApiClient) -> None:
    api_f32.flush()
    messages = [{"role": "user", "content": "Tell me one fact about the moon."}]
    covered = 0
    for question in ("And one about the sun?", "Which of them is larger?", ""):
        answer = api_f32.chat(messages, 24)
        usage = answer["usage"]

        assert usage["prompt_tokens_details"]["cached_tokens"] >= covered
        # All but the newest token, whose KV nothing has needed yet.
        covered = usage["total_tokens"] - 1
        messages.append(answer["choices"][0]["message"])
        messages.append({"role": "user", "content": question})


def test_token_ids_sent_back_are_found_up_to_the_last(api_f32: ApiClient) -> None:
    api_f32.flush()
    prompt = api_f32.tokenize("The captain looked at the horizon and")
    for _ in range(3):
        answer = api_f32.generate(prompt, 8, sampling={"ignore_eos": True})
        prompt = prompt + answer["output_ids"]
        expected = len(prompt) - 1

        prompt = prompt + api_f32.tokenize(" Then the weather changed.")
        answer = api_f32.generate(prompt, 0)

        assert answer["meta_info"]["cached_tokens"] == expected


def test_cached_tokens_are_counted_from_the_request_that_filled_the_cache(api: ApiClient) -> None:
    api.flush()
    prompt = STORY * 3

    first, second = api.generate(prompt, 1), api.generate(prompt, 1)

    assert first["meta_info"]["cached_tokens"] == 0
    # The last prompt token is always computed: its logits give the first output token.
    assert second["meta_info"]["cached_tokens"] == second["meta_info"]["prompt_tokens"] - 1


@pytest.mark.parametrize("num_samples", [2, 3, 8])
def test_with_several_samples_cached_tokens_stay_within_the_prompt(
    api: ApiClient, num_samples: int
) -> None:
    api.flush()
    prompt = f"{num_samples} samples. " + STORY * 3
    sampling = {"n": num_samples, "temperature": 1.0}

    cold = api.generate(prompt, 2, sampling=sampling)
    warm = api.complete(prompt, 2, n=num_samples, temperature=1.0)

    num_prompt_tokens = warm["usage"]["prompt_tokens"]
    assert len(cold) == len(warm["choices"]) == num_samples
    for one in cold:
        assert one["meta_info"]["prompt_tokens"] == num_prompt_tokens
        assert 0 <= one["meta_info"]["cached_tokens"] <= num_prompt_tokens
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == num_prompt_tokens - 1
    assert warm["usage"]["completion_tokens"] <= 2 * num_samples


def test_samples_compute_their_common_prompt_once(api: ApiClient) -> None:
    api.flush()
    prompt = "Sharing. " + STORY * 12

    answers = api.generate(prompt, 2, sampling={"n": 4, "temperature": 1.0})

    cached = sorted(one["meta_info"]["cached_tokens"] for one in answers)
    num_prompt_tokens = answers[0]["meta_info"]["prompt_tokens"]
    assert cached == [0] + [num_prompt_tokens - 1] * 3


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_prefix_is_shared_within_a_namespace_only(api: ApiClient, field: str) -> None:
    api.flush()
    prompt = "Secret. " + STORY * 3

    def num_cached(**fields: str) -> int:
        answer = api.complete(prompt, 1, **fields)
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    whole = api.complete("x" + prompt, 0)["usage"]["prompt_tokens"] - 4

    assert num_cached() == 0
    assert num_cached(**{field: "a"}) == 0
    assert num_cached(**{field: "b"}) == 0
    assert num_cached() > whole
    assert num_cached(**{field: "a"}) > whole
    assert num_cached(cache_salt="a", extra_key="b") == 0
    assert num_cached(**{field: "c"}) == 0


def test_a_namespace_is_the_same_on_every_route(api: ApiClient) -> None:
    api.flush()
    messages = [{"role": "user", "content": STORY * 2}]
    salted = api.chat(messages, 1, cache_salt="tenant")
    ids = api.ok("/tokenize", {"messages": messages})["tokens"]

    same = api.generate(ids, 1, cache_salt="tenant")
    other = api.generate(ids, 1, cache_salt="other tenant")

    assert salted["usage"]["prompt_tokens"] == len(ids)
    assert same["meta_info"]["cached_tokens"] == len(ids) - 1
    assert other["meta_info"]["cached_tokens"] == 0


def test_items_of_one_batch_keep_their_own_namespaces(api: ApiClient) -> None:
    api.flush()
    prompt = "Batch. " + STORY * 3
    api.generate(prompt, 0, cache_salt="a")

    answers = api.generate([prompt, prompt], 0, cache_salt=["a", "b"])

    cached = [one["meta_info"]["cached_tokens"] for one in answers]
    assert cached[0] == answers[0]["meta_info"]["prompt_tokens"] - 1
    assert cached[1] == 0


def test_the_cache_can_be_flushed_right_after_the_last_answer(api: ApiClient) -> None:
    for turn in range(10):
        api.generate(f"Turn {turn}. " + STORY * 3, 12)
        response = api.post("/flush_cache") if turn % 2 else api.get("/flush_cache")

        assert response.status_code == 200, (turn, response.text)
        assert api.kv()["available"] == api.kv()["total"]


def test_a_flush_waits_for_open_requests_and_gives_up_in_time(api: ApiClient) -> None:
    body = generate_body("Once", 2000, {"ignore_eos": True}, rid="holds-the-cache")
    with api.open_stream("/generate", body) as events:
        next(events)
        refused = api.post("/flush_cache?timeout=0")
        with_wait = [
            lambda: api.post("/flush_cache?timeout=60"),
            lambda: api.post("/abort_request", {"rid": "holds-the-cache"}),
        ]
        flushed, aborted = side_by_side(with_wait)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "cache_in_use"
    assert aborted.json()["found"]
    assert flushed.status_code == 200
    assert api.kv()["evictable"] == 0


@pytest.mark.timeout(400)
def test_three_pools_of_prompts_pass_through_a_tiny_pool(tiny_pool_api: ApiClient) -> None:
    api = tiny_pool_api
    total = api.kv()["total"]
    evicted_before = api.counter("evicted_tokens")
    seen_tokens, index = 0, 0
    while seen_tokens < 3 * total:
        texts = [f"{index + k} {(index + k) * 7} apples. " + STORY * 5 for k in range(8)]
        index += len(texts)
        calls = [lambda text=text: api.generate(text, 2) for text in texts]
        seen_tokens += sum(one["meta_info"]["prompt_tokens"] for one in side_by_side(calls))

    assert api.counter("evicted_tokens") - evicted_before > total
    assert api.kv()["evictable"] > 0


def test_a_prefix_in_use_outlives_eviction(tiny_pool_api: ApiClient) -> None:
    api = tiny_pool_api
    shared = "Shared. " + STORY * 6
    others = [f"Other {i}. " + STORY * 6 for i in range(8)]
    expected = api.generate(shared, 24, sampling={"ignore_eos": True})["output_ids"]

    calls = [lambda: api.generate(shared, 24, sampling={"ignore_eos": True})]
    calls += [lambda text=text: api.generate(text, 4) for text in others]
    answers = side_by_side(calls)

    assert answers[0]["output_ids"] == expected


@pytest.mark.timeout(400)
def test_accounting_is_exact_after_mixed_load(api: ApiClient) -> None:
    sampled = {"temperature": 1.0, "ignore_eos": True}

    def leave_early(index: int) -> None:
        body = generate_body(f"{index} leaves. " + STORY, 200, sampled)
        with api.open_stream("/generate", body) as events:
            next(events)

    calls = [lambda i=i: api.generate(f"{i} short", 3 + i) for i in range(6)]
    calls += [lambda i=i: api.generate(STORY * (i + 1), 2, sampling={"n": 2}) for i in range(4)]
    calls += [lambda i=i: api.events("/v1/chat/completions", chat_body(f"{i}?", 6)) for i in (1, 2)]
    calls += [lambda: api.complete("Score this.", 0, echo=True, logprobs=1)]
    calls += [lambda i=i: leave_early(i) for i in range(4)]
    side_by_side(calls)

    wait_until(lambda: api.num_open() == 0, "clients that went away are forgotten")
    kv = api.kv()
    assert kv["total"] == kv["available"] + kv["evictable"]
    assert kv["protected"] == kv["held"] == 0
    assert api.get("/server_info").json()["kv_stats"] == kv


def test_a_long_answer_to_a_short_prompt_frees_each_slot_once(api: ApiClient) -> None:
    api.flush()

    answer = api.generate("Hi", 120, sampling={"ignore_eos": True})

    assert answer["meta_info"]["completion_tokens"] == 120
    kv = api.kv()
    num_stored = answer["meta_info"]["prompt_tokens"] + 120 - 1
    assert kv["evictable"] == num_stored
    assert kv["available"] == kv["total"] - num_stored
