"""Streams: their concatenation is the whole answer, and each choice ends exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_client import ApiClient, chat_body, generate_body, side_by_side

EMOJI_PROMPT = "🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊"
WORDS_PROMPT = "one two three four five six seven eight nine"
NUM_TOKENS = 24
BROKEN = "\N{REPLACEMENT CHARACTER}"
INTERVALS = [1, 2, 3, 7, 100]


def _completion_text(events: list[Any], index: int = 0) -> str:
    choices = [one for event in events for one in event["choices"] if one["index"] == index]
    return "".join(one["text"] for one in choices)


def _chat_text(events: list[Any], index: int = 0) -> str:
    choices = [one for event in events for one in event["choices"] if one["index"] == index]
    return "".join(one["delta"].get("content") or "" for one in choices)


def _assert_one_finish_per_choice(events: list[Any], num_choices: int) -> dict[int, str]:
    finishes: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            assert choice["index"] not in finishes, "data after the finish"
            if choice["finish_reason"] is not None:
                finishes[choice["index"]] = choice["finish_reason"]
    assert sorted(finishes) == list(range(num_choices))
    return finishes


@pytest.mark.timeout(400)
@pytest.mark.parametrize("prompt", [WORDS_PROMPT, EMOJI_PROMPT], ids=["words", "emoji"])
def test_a_stream_equals_the_whole_answer_for_every_stop_string(
    api_f32: ApiClient, prompt: str
) -> None:
    full = api_f32.complete(prompt, NUM_TOKENS)["choices"][0]["text"]
    assert len(full) >= 8, full
    stops = {full[at : at + size] for at in range(0, len(full) - 3, 2) for size in (1, 3)}
    stops |= {full[-2:], full + "more", full[5:9] + "\0", "zqzq"}

    def both(stop: str) -> tuple[Any, list[Any]]:
        whole = api_f32.complete(prompt, NUM_TOKENS, stop=stop)["choices"][0]
        body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "stop": stop}
        return whole, api_f32.events("/v1/completions", body)

    pairs = side_by_side([lambda stop=stop: both(stop) for stop in sorted(stops)])

    for stop, (whole, events) in zip(sorted(stops), pairs, strict=True):
        assert whole["text"] == full.partition(stop)[0], stop
        assert _completion_text(events) == whole["text"], stop
        assert _assert_one_finish_per_choice(events, 1) == {0: whole["finish_reason"]}, stop
        assert events[-1]["choices"][0]["matched_stop"] == whole["matched_stop"], stop


def test_a_stream_equals_the_whole_answer_at_every_interval(api_f32: ApiClient) -> None:
    expected = api_f32.generate(EMOJI_PROMPT, NUM_TOKENS)

    def streamed(interval: int) -> list[Any]:
        body = generate_body(EMOJI_PROMPT, NUM_TOKENS, {"stream_interval": interval})
        return api_f32.events("/generate", body)

    for interval, events in zip(
        INTERVALS, side_by_side([lambda i=i: streamed(i) for i in INTERVALS]), strict=True
    ):
        assert events[-1]["text"] == expected["text"]
        assert events[-1]["output_ids"] == expected["output_ids"]
        # The first token comes at once, then one event per interval, then the rest.
        num_tokens = [len(one["output_ids"]) for one in events]
        assert num_tokens[0] == 1
        middle = [after - before for before, after in zip(num_tokens, num_tokens[1:], strict=False)]
        assert all(step == interval for step in middle[:-1])


def test_native_streams_are_cumulative_and_never_take_text_back(api_f32: ApiClient) -> None:
    events = api_f32.events("/generate", generate_body(EMOJI_PROMPT, NUM_TOKENS))

    for before, after in zip(events, events[1:], strict=False):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert events[-1]["meta_info"]["completion_tokens"] == NUM_TOKENS


@pytest.mark.parametrize(
    "text", ["🎉", "👩‍👩‍👧", "你好", "é", "𝔘𝔫𝔦", "🇳🇴", "한글", "नमस्ते"], ids=lambda text: ascii(text)
)
def test_characters_of_several_tokens_are_never_broken(api_f32: ApiClient, text: str) -> None:
    # Fed as the prompt's pattern, and forced: only the tokens of the text may be drawn.
    ids = api_f32.tokenize(" " + text) + api_f32.tokenize(text)
    bias = {str(token_id): 100 for token_id in ids}
    body = {"prompt": text * 6, "max_tokens": 12, "temperature": 0, "logit_bias": bias}

    whole = api_f32.ok("/v1/completions", body)["choices"][0]["text"]
    events = api_f32.events("/v1/completions", body)

    assert _completion_text(events) == whole
    for position in range(1, len(events)):
        so_far = _completion_text(events[:position])
        assert whole.startswith(so_far)
        # A broken character may only stand where the whole answer has it too: drawn in an order
        # that is no character, or cut off by the length.
        assert so_far.count(BROKEN) <= whole[: len(so_far)].count(BROKEN)


def test_one_choice_of_a_stream_ends_once_and_last(api: ApiClient) -> None:
    for num_choices in (1, 2, 3, 5):
        body = chat_body("hi", 6, n=num_choices, temperature=1.0)

        events = api.events("/v1/chat/completions", body)

        _assert_one_finish_per_choice(events, num_choices)
        for index in range(num_choices):
            own = [c for event in events for c in event["choices"] if c["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in one["delta"] for one in own[1:])
        assert len({event["id"] for event in events}) == 1


def test_choices_of_a_seeded_stream_equal_the_unstreamed_ones(api_f32: ApiClient) -> None:
    fields = {"n": 3, "temperature": 1.0, "seed": 5}

    whole = api_f32.chat("Tell me a joke.", 12, **fields)
    events = api_f32.events("/v1/chat/completions", chat_body("Tell me a joke.", 12, **fields))

    for choice in whole["choices"]:
        assert _chat_text(events, choice["index"]) == choice["message"]["content"]


def test_a_batch_streams_every_item_under_its_index(api_f32: ApiClient) -> None:
    prompts = ["The sun", "The moon", "The stars"]
    whole = api_f32.complete(prompts, 8, n=2, temperature=1.0, seed=3)
    body = {"prompt": prompts, "max_tokens": 8, "n": 2, "temperature": 1.0, "seed": 3}

    events = api_f32.events("/v1/completions", body)
    native = api_f32.events("/generate", generate_body(prompts, 8))

    _assert_one_finish_per_choice(events, 6)
    for index, choice in enumerate(whole["choices"]):
        assert choice["index"] == index
        assert _completion_text(events, index) == choice["text"]
    last = {event["index"]: event for event in native}
    assert sorted(last) == [0, 1, 2]
    expected = api_f32.generate(prompts, 8)
    assert [last[index]["text"] for index in range(3)] == [one["text"] for one in expected]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_usage_comes_only_when_asked_for_and_last(api: ApiClient, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 6}

    for options in ({}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        events = api.events(path, {**body, **options})
        assert all(event.get("usage") is None for event in events)
        assert all(event["choices"] for event in events)

    events = api.events(path, {**body, "stream_options": {"include_usage": True}})
    with_usage = [event for event in events if event.get("usage")]
    assert with_usage == [events[-1]]
    assert events[-1]["choices"] == []
    usage = events[-1]["usage"]
    assert usage["completion_tokens"] <= 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    options = {"include_usage": True, "continuous_usage_stats": True}
    events = api.events(path, {**body, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == events[-1]["usage"]["completion_tokens"]


def test_stream_options_without_a_stream_do_no_harm(api: ApiClient) -> None:
    answer = api.chat("x", 2, stream_options={"include_usage": True})

    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize("prompt", ["Emoji: \U0001f600 你好", EMOJI_PROMPT, WORDS_PROMPT])
def test_logprobs_in_a_stream_are_those_of_the_whole_answer(
    api_f32: ApiClient, prompt: str
) -> None:
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "logprobs": 2}
    whole = api_f32.ok("/v1/completions", body)["choices"][0]["logprobs"]

    events = api_f32.events("/v1/completions", body)

    parts = [event["choices"][0]["logprobs"] for event in events]
    parts = [part for part in parts if part is not None]
    for part in parts:
        assert len(part["tokens"]) == len(part["token_logprobs"]) == len(part["text_offset"]) > 0
    for name in ("tokens", "text_offset"):
        assert [one for part in parts for one in part[name]] == whole[name]
    streamed = [one for part in parts for one in part["token_logprobs"]]
    assert streamed == pytest.approx(whole["token_logprobs"], abs=1e-3)


def test_chat_logprobs_come_with_every_token(api_f32: ApiClient) -> None:
    body = chat_body("Say hello in Chinese.", 12, logprobs=True, top_logprobs=3)
    whole = api_f32.ok("/v1/chat/completions", body)["choices"][0]

    events = api_f32.events("/v1/chat/completions", body)

    entries = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert [one["bytes"] for one in entries] == [
        one["bytes"] for one in whole["logprobs"]["content"]
    ]
    assert all(len(one["top_logprobs"]) == 3 for one in entries)


def test_an_echo_is_streamed_first(api_f32: ApiClient) -> None:
    body = {"prompt": WORDS_PROMPT, "max_tokens": 4, "temperature": 0, "echo": True}

    events = api_f32.events("/v1/completions", body)

    assert _completion_text(events) == api_f32.ok("/v1/completions", body)["choices"][0]["text"]
    assert _completion_text(events).startswith(WORDS_PROMPT)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_a_mistake_gets_its_status_before_a_stream_begins(api: ApiClient, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "text": "x"}
    wrong: dict[str, Any] = {"temperature": -1}
    if path == "/generate":
        wrong = {"sampling_params": wrong}

    response = api.post(path, {**prompt, **wrong, "stream": True})

    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["param"] == "temperature"


def test_a_stream_of_no_tokens_has_a_finish(api: ApiClient) -> None:
    events = api.events("/v1/completions", {"prompt": "x", "max_tokens": 0})

    assert _assert_one_finish_per_choice(events, 1) == {0: "length"}
    assert _completion_text(events) == ""
