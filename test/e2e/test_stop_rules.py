"""When an answer ends: strings, patterns, token ids, end of sequence, length - and minimums."""

from __future__ import annotations

import pytest
from support.api_client import ApiClient, side_by_side

PROMPT = "1 2 3 4 5 6 7 8 9 10 11 12"
NUM_TOKENS = 24
END_OF_TURN = "<|im_end|>"


@pytest.fixture
def full(api_f32: ApiClient) -> str:
    """What the model writes after PROMPT if nothing stops it."""
    text: str = api_f32.complete(PROMPT, NUM_TOKENS)["choices"][0]["text"]
    assert len(text) >= 16, text
    return text


def test_stop_strings_may_begin_and_end_inside_tokens(api_f32: ApiClient, full: str) -> None:
    stops = sorted({full[at : at + size] for at in range(1, 9) for size in (1, 2, 5)})

    calls = [lambda stop=stop: api_f32.complete(PROMPT, NUM_TOKENS, stop=[stop]) for stop in stops]

    for stop, answer in zip(stops, side_by_side(calls), strict=True):
        choice = answer["choices"][0]
        assert choice["text"] == full[: full.index(stop)], stop
        assert choice["finish_reason"] == "stop"
        assert choice["matched_stop"] == stop


def test_of_several_stops_the_one_that_begins_first_wins(api_f32: ApiClient, full: str) -> None:
    late, early = full[9:11], full[4:6]

    choice = api_f32.complete(PROMPT, NUM_TOKENS, stop=["zzz", late, early])["choices"][0]

    assert choice["text"] == full[: min(full.index(late), full.index(early))]


def test_the_stop_string_can_be_kept(api_f32: ApiClient, full: str) -> None:
    stop = full[5:9]

    choice = api_f32.complete(PROMPT, NUM_TOKENS, stop=stop, no_stop_trim=True)["choices"][0]

    assert choice["text"] == full[: full.index(stop)] + stop


def test_text_that_only_began_like_a_stop_is_not_lost(api_f32: ApiClient, full: str) -> None:
    almost = [full[-3:] + "\0", full + "\0", full[4:] + "\0"]

    for stop in almost:
        choice = api_f32.complete(PROMPT, NUM_TOKENS, stop=stop)["choices"][0]

        assert (choice["text"], choice["finish_reason"]) == (full, "length")


def test_a_stop_in_the_prompt_does_not_count(api_f32: ApiClient) -> None:
    choice = api_f32.complete("Stop here. STOP", 4, stop="STOP", echo=True)["choices"][0]

    assert choice["text"].startswith("Stop here. STOP")
    assert choice["finish_reason"] == "length"


def test_stop_patterns_end_the_text_where_they_match(api_f32: ApiClient, full: str) -> None:
    match = api_f32.generate(PROMPT, NUM_TOKENS, sampling={"stop_regex": r"1[5-7]"})
    kept = {"stop_regex": [r"1[5-7]"], "no_stop_trim": True}

    with_it = api_f32.generate(PROMPT, NUM_TOKENS, sampling=kept)

    places = [full.find(one) for one in ("15", "16", "17") if one in full]
    assert match["text"] == full[: min(places)]
    assert match["meta_info"]["finish_reason"] == {"type": "stop", "matched": r"1[5-7]"}
    assert with_it["text"] == full[: min(places) + 2]


def test_a_stop_token_ends_the_answer_and_is_counted(api_f32: ApiClient) -> None:
    free = api_f32.generate(PROMPT, 12, sampling={"ignore_eos": True})["output_ids"]
    stop_id = free[5]
    place = free.index(stop_id)

    answer = api_f32.generate(PROMPT, 12, sampling={"stop_token_ids": [stop_id]})

    assert answer["output_ids"] == free[: place + 1]
    assert answer["meta_info"]["completion_tokens"] == place + 1
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop_id}
    again = api_f32.ok("/detokenize", {"tokens": free[:place]})["text"]
    assert answer["text"] == again


def test_the_end_of_turn_ends_the_answer_unless_ignored(api_f32: ApiClient) -> None:
    (eos,) = api_f32.tokenize(END_OF_TURN)
    bias = {str(eos): 100}

    ended = api_f32.complete("Hello", 8, logit_bias=bias)
    ignored = api_f32.complete("Hello", 8, logit_bias=bias, ignore_eos=True)
    visible = api_f32.complete(
        "Hello", 3, logit_bias=bias, ignore_eos=True, skip_special_tokens=False
    )

    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["choices"][0]["text"] == ""
    assert ended["usage"]["completion_tokens"] == 1
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert ignored["usage"]["completion_tokens"] == 8
    assert visible["choices"][0]["text"] == END_OF_TURN * 3


def test_a_chat_ends_by_itself(api_f32: ApiClient) -> None:
    answer = api_f32.chat("Reply with the single word OK.", 200)

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert END_OF_TURN not in answer["choices"][0]["message"]["content"]


def test_length_is_exact(api_f32: ApiClient) -> None:
    for limit in (0, 1, 2, 7):
        answer = api_f32.generate(PROMPT, limit, sampling={"ignore_eos": True})

        assert len(answer["output_ids"]) == limit
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": limit}


def test_a_stop_on_the_last_allowed_token_is_a_stop(api_f32: ApiClient, full: str) -> None:
    tokens = api_f32.generate(PROMPT, 6)
    stop = tokens["text"][-1]
    if tokens["text"].index(stop) != len(tokens["text"]) - 1:
        stop = tokens["text"][-3:]

    choice = api_f32.complete(PROMPT, 6, stop=stop)["choices"][0]

    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", [None, " ", ["e", "o", "a"]])
def test_min_tokens_holds_back_every_kind_of_stop(api_f32: ApiClient, stop: object) -> None:
    (eos,) = api_f32.tokenize(END_OF_TURN)
    fields = {"min_tokens": 12, "stop": stop, "stop_token_ids": [eos, 28, 198]}

    answer = api_f32.chat("Reply with the single word OK.", 24, **fields)

    assert answer["usage"]["completion_tokens"] >= 12


def test_min_tokens_counts_output_alone(api_f32: ApiClient) -> None:
    (eos,) = api_f32.tokenize(END_OF_TURN)

    answer = api_f32.complete(PROMPT * 5, 9, min_tokens=4, logit_bias={str(eos): 100})

    # Allowed only from the fifth place on, where the bias makes sure of it.
    assert answer["usage"]["completion_tokens"] == 5


def test_every_sample_has_stops_of_its_own(api_f32: ApiClient) -> None:
    fields = {"n": 6, "temperature": 1.0, "seed": 11}
    free = api_f32.complete("The colours are", 16, **fields)["choices"]

    stopped = api_f32.complete("The colours are", 16, stop="e", **fields)["choices"]

    for before, after in zip(free, stopped, strict=True):
        assert after["text"] == before["text"].partition("e")[0]
        assert after["finish_reason"] == (
            "stop" if "e" in before["text"] else before["finish_reason"]
        )


def test_thirty_two_stops_are_watched_at_once(api_f32: ApiClient, full: str) -> None:
    stops = [f"never{i}" for i in range(31)] + [full[6:8]]

    choice = api_f32.complete(PROMPT, NUM_TOKENS, stop=stops)["choices"][0]

    assert choice["text"] == full[: full.index(full[6:8])]


def test_a_pattern_without_end_fails_its_own_request_only(api_f32: ApiClient) -> None:
    catastrophic = {"stop_regex": r"(\w+\s?)+\d!{3}$", "ignore_eos": True}
    calls = [
        lambda: api_f32.post(
            "/generate",
            {
                "text": "word " * 30,
                "sampling_params": {"max_new_tokens": 48, "temperature": 0, **catastrophic},
            },
        ),
        lambda: api_f32.post(
            "/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 48}}
        ),
    ]

    hostile, other = side_by_side(calls)

    assert hostile.status_code in (200, 500)
    if hostile.status_code == 500:
        assert "stop_regex" in hostile.json()["error"]["message"]
    assert other.status_code == 200
