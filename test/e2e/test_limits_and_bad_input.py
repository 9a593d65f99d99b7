"""What the server refuses: always a 4xx whose nested error says what is wrong, and it serves on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.api_client import ApiClient, side_by_side

CONTEXT = 8192
VOCAB = 49152
LONG = "The history of the town begins with a river, a mill and two families. "

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
USER = [{"role": "user", "content": "x"}]


def _refused(response: httpx.Response, param: str | None = None) -> Any:
    """Check that response is a clean refusal; return its error object."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:300])
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] is not None, error
        assert error["param"].split(".")[0] == param, error
        assert param in error["message"], error
    return error


@pytest.fixture(autouse=True)
def _serves_afterwards(api: ApiClient) -> Iterator[None]:
    yield
    assert api.complete("Hello", 2)["usage"]["completion_tokens"] > 0


WRONG_SAMPLING: list[tuple[str, Any]] = [
    *[("temperature", v) for v in (-0.1, 1e9, "hot", True, [1], {})],
    *[("top_p", v) for v in (0, -1, 1.1, "all", True)],
    *[("top_k", v) for v in (-2, 1.5, "40", True, 2**40)],
    *[("min_p", v) for v in (-0.1, 1.5, "x")],
    *[("frequency_penalty", v) for v in (-2.1, 2.1, "x", True)],
    *[("presence_penalty", v) for v in (-2.1, 2.1, [])],
    *[("repetition_penalty", v) for v in (0, -1, 2.5, "x")],
    *[("n", v) for v in (0, -1, 1.5, "2", True, 129, 100_000, 2**70)],
    *[("stop", v) for v in (5, True, {}, [1], ["a", None], [""], ["a"] * 33, ["y" * 5000])],
    *[("stop_token_ids", v) for v in ("1", [-1], [VOCAB], ["1"], [1.5], [True], [1] * 1025)],
    *[("stop_regex", v) for v in ("(", "[z-a]", "a{2,1}", "(?<n>", "x*", 7, "a" * 300)],
    *[("logit_bias", v) for v in ([], "x", {"-1": 1}, {"a": 1}, {str(VOCAB): 1}, {"1": "x"})],
    *[("logit_bias", v) for v in ({"1": 101}, {"1": None}, {"1.5": 1}, {"99999999999999": 1})],
    ("logit_bias", {str(i): 1 for i in range(40_000)}),
    *[("ignore_eos", v) for v in ("yes", 1, [])],
    *[("skip_special_tokens", v) for v in ("no", 0)],
    *[("seed", v) for v in ("x", 1.5, True, 2**63, 2**80)],
    *[("stream_interval", v) for v in (0, -1, "x")],
]


def _case_id(case: tuple[str, Any]) -> str:
    return f"{case[0]}={str(case[1])[:20]!a}"


@pytest.mark.parametrize("case", WRONG_SAMPLING, ids=_case_id)
def test_wrong_sampling_fields_are_named_on_every_route(
    api: ApiClient, case: tuple[str, Any]
) -> None:
    name, value = case
    bodies = [
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 2, name: value}}),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 2, name: value}),
        (CHAT, {"messages": USER, "max_tokens": 2, name: value}),
    ]
    shown = {"seed": ("seed", "sampling_seed")}.get(name, (name,))
    for path, body in bodies:
        error = _refused(api.post(path, body))
        assert any(one in f"{error['param']} {error['message']}" for one in shown), error


WRONG_IDS: list[Any] = [
    [-1],
    [5, -7],
    [VOCAB],
    [VOCAB + 10],
    [2**40],
    [2**70],
    [1.5],
    ["a", 3],
    [True],
    [None],
    [[1], "a"],
    [[1], 2],
    [[1, -1]],
    [[[1]]],
]


@pytest.mark.parametrize("ids", WRONG_IDS, ids=str)
def test_ids_outside_the_vocabulary_are_refused(api: ApiClient, ids: Any) -> None:
    _refused(api.post(COMPLETIONS, {"prompt": ids, "max_tokens": 2}), "prompt")
    _refused(api.post(GENERATE, {"input_ids": ids, "sampling_params": {"max_new_tokens": 2}}))
    _refused(api.post("/detokenize", {"tokens": ids}), "tokens")


def test_the_highest_id_is_an_id(api: ApiClient) -> None:
    assert api.generate([0, VOCAB - 1], 1)["meta_info"]["prompt_tokens"] == 2


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, 5, {}, True, ["a", ""], ["a", None]])
def test_prompts_that_are_none_are_refused(api: ApiClient, prompt: Any) -> None:
    _refused(api.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 4}), "prompt")
    _refused(api.post(GENERATE, {"text": prompt, "sampling_params": {"max_new_tokens": 4}}))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input_ids": []},
        {"input_ids": [[1], []]},
        {"text": "a", "input_ids": [1]},
        {"text": "a", "sampling_params": 5},
        {"text": "a", "sampling_params": [{}, {}]},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"text": ["a", "b"], "rid": ["1", "1"]},
        {"text": ["a", "b"], "rid": ["1"]},
        {"text": "a", "rid": 7},
        {"text": "a", "rid": ""},
        {"text": "a", "rid": "x" * 600},
        {"text": "a", "stream": "yes"},
        {"text": "a", "cache_salt": 5},
        {"text": "a", "priority": "high"},
        {"text": "a", "image_data": "data:image/png;base64,AAAA"},
        {"text": "a", "lora_path": "x"},
        {"text": "a", "return_logprob": "yes"},
        {"text": "a", "return_logprob": True, "logprob_start_len": 99},
        {"text": "a", "return_logprob": True, "logprob_start_len": -2},
        {"text": "a", "return_logprob": True, "top_logprobs_num": -1},
        {"text": "a", "return_logprob": True, "top_logprobs_num": 129},
        {"text": "a", "return_logprob": True, "top_logprobs_num": 10**9},
        {"text": "a", "return_logprob": True, "token_ids_logprob": [-1]},
        {"text": "a", "return_logprob": True, "token_ids_logprob": [VOCAB]},
        {"text": "a", "return_logprob": True, "token_ids_logprob": ["x"]},
        {"text": "a", "sampling_params": {"max_new_tokens": -1}},
        {"text": "a", "sampling_params": {"max_new_tokens": "5"}},
        {"text": "a", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}},
        {"text": "a", "sampling_params": {"regex": "[0-9"}},
    ],
    ids=lambda body: str(body)[:70],
)
def test_wrong_bodies_of_generate_are_refused(api: ApiClient, body: Any) -> None:
    _refused(api.post(GENERATE, body))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1},
        {"max_tokens": "5"},
        {"max_tokens": 4, "min_tokens": 9},
        {"max_completion_tokens": -3},
        {"logprobs": 5},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": -1},
        {"logprobs": True, "top_logprobs": 21},
        {"logprobs": True, "top_logprobs": "3"},
        {"tools": [{"type": "function", "function": {"name": "f()"}}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_array"}},
        {"continue_final_message": True},
        {"chat_template_kwargs": 5},
        {"stream_options": "usage"},
        {"model": 5},
        {"n": None, "stop": {"a": 1}},
    ],
    ids=str,
)
def test_wrong_fields_of_a_chat_are_named(api: ApiClient, fields: dict[str, Any]) -> None:
    error = _refused(api.post(CHAT, {"messages": USER, "max_tokens": 4, **fields}))

    assert any(name in f"{error['param']} {error['message']}" for name in fields), error


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "hi",
        [],
        [5],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "bot", "content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"text": "x"}}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [5]}],
    ],
    ids=str,
)
def test_wrong_messages_are_refused(api: ApiClient, messages: Any) -> None:
    _refused(api.post(CHAT, {"messages": messages, "max_tokens": 3}), "messages")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "Hello"}],
        [{"role": "system", "content": "Be brief."}],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ],
        [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ],
        [{"role": "user", "content": "x", "name": "Ada", "unknown": 1}],
        [{"role": "user", "content": "x"}] * 3,
    ],
    ids=str,
)
def test_unusual_messages_are_answered(api: ApiClient, messages: Any) -> None:
    answer = api.chat(messages, 3)

    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b"5", b'"text"', b'{"prompt": "\xff"}', b"{'a': 1}", b"\x00"],
    ids=str,
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object_are_refused(api: ApiClient, path: str, raw: bytes) -> None:
    _refused(api.post(path, raw=raw))


def test_deep_nesting_is_refused_or_ignored(api: ApiClient) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000

    response = api.post(COMPLETIONS, raw=b'{"prompt": "x", "max_tokens": 1, "user": ' + deep + b"}")

    assert response.status_code in (200, 400)


def test_half_a_surrogate_pair_is_refused(api: ApiClient) -> None:
    for path, field in ((COMPLETIONS, b"prompt"), (GENERATE, b"text"), ("/tokenize", b"prompt")):
        _refused(api.post(path, raw=b'{"' + field + b'": "a \\ud800 b", "max_tokens": 1}'))


def test_the_context_is_full_at_its_last_token(api: ApiClient) -> None:
    def post(num_prompt: int, max_new: int) -> httpx.Response:
        sampling = {"max_new_tokens": max_new, "temperature": 0, "ignore_eos": True}
        return api.post(GENERATE, {"input_ids": [17] * num_prompt, "sampling_params": sampling})

    refused = [(CONTEXT, 1), (CONTEXT - 1, 2), (CONTEXT + 1, 0), (1, CONTEXT), (10**5, 0)]
    for num_prompt, max_new in refused:
        error = _refused(post(num_prompt, max_new))
        assert error["code"] == "context_length_exceeded"
        assert str(num_prompt) in error["message"] and str(CONTEXT) in error["message"]


@pytest.mark.timeout(600)
def test_the_last_token_that_fits_is_generated(api: ApiClient) -> None:
    prompt = [17] * (CONTEXT - 1)

    answer = api.generate(prompt, 1, sampling={"ignore_eos": True})
    scored = api.generate(prompt + [17], 0)
    clamped = api.complete(prompt, None, ignore_eos=True)

    assert answer["meta_info"]["completion_tokens"] == 1
    assert scored["meta_info"]["prompt_tokens"] == CONTEXT
    # Without a limit of one's own the default gives way to the context.
    assert clamped["usage"]["completion_tokens"] == 1


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(api: ApiClient) -> None:
    for path, name in ((COMPLETIONS, "prompt"), (GENERATE, "text")):
        error = _refused(api.post(path, {name: LONG * 50_000}))
        assert error["code"] == "context_length_exceeded"


def test_one_bad_item_costs_the_engine_nothing(api: ApiClient) -> None:
    requests_before = api.counter("requests")

    for second in (LONG * 1000, "", LONG * 600):
        body = {"text": ["fine", second], "sampling_params": {"max_new_tokens": 2}}
        for _ in range(7):
            _refused(api.post(GENERATE, body))

    assert api.counter("requests") == requests_before
    api.wait_until_idle()


def test_a_chat_without_a_limit_is_not_cut_at_a_small_one(api: ApiClient) -> None:
    body = {"messages": USER, "temperature": 0, "ignore_eos": True, "rid": "no-small-limit"}
    with api.open_stream(CHAT, body) as events:
        for _ in range(170):
            assert next(events)["choices"][0]["finish_reason"] is None


def test_a_limit_beyond_the_context_is_refused_with_both_numbers(api: ApiClient) -> None:
    body = {"messages": USER, "max_tokens": CONTEXT, "stop": ["a", "e"]}

    error = _refused(api.post(CHAT, body))

    assert "context" in error["message"]
    assert "max_tokens" in error["message"]
    assert str(CONTEXT) in error["message"]


def test_long_lists_are_refused_not_computed(api: ApiClient) -> None:
    for fields in (
        {"stop": [f"x{i}" for i in range(20_000)]},
        {"stop": ["y" * 2_000_000]},
        {"n": 100_000},
        {"prompt": ["x"] * 5000},
        {"prompt": ["x"] * 1000, "n": 100},
    ):
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 1, **fields}
        _refused(api.post(COMPLETIONS, body))


def test_an_open_request_id_cannot_be_taken_twice(api: ApiClient) -> None:
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
    with api.open_stream(GENERATE, {**body, "rid": "taken"}) as events:
        next(events)

        error = _refused(api.post(GENERATE, {**body, "rid": "taken"}), "rid")

        assert "taken" in error["message"]
    api.wait_until_idle()


def test_unknown_models_and_routes_are_not_found(api: ApiClient) -> None:
    wrong_model = api.post(COMPLETIONS, {"model": "gpt-17", "prompt": "x"})
    wrong_route = api.post("/v1/nothing", {})
    wrong_method = api.get(COMPLETIONS)

    assert wrong_model.status_code == 404
    assert _refused(wrong_model, "model")["code"] == "model_not_found"
    assert wrong_route.status_code == 404
    assert "/v1/nothing" in _refused(wrong_route)["message"]
    assert wrong_method.status_code == 405
    assert api.get("/v1/models/gpt-17").status_code == 404


@pytest.mark.parametrize("timeout", ["x", "-1", "nan", "inf", "1e9"])
def test_wrong_flush_timeouts_are_refused(api: ApiClient, timeout: str) -> None:
    _refused(api.post(f"/flush_cache?timeout={timeout}"), "timeout")


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": 5}, {"rid": None}, {"abort_all": "x"}])
def test_wrong_aborts_are_refused(api: ApiClient, body: Any) -> None:
    _refused(api.post("/abort_request", body))


@pytest.mark.timeout(300)
def test_refusals_in_a_crowd_do_not_disturb_it(api: ApiClient) -> None:
    def refuse(index: int) -> Any:
        name, value = WRONG_SAMPLING[index % len(WRONG_SAMPLING)]
        return api.post(COMPLETIONS, {"prompt": "x", name: value}).status_code

    def serve(index: int) -> Any:
        return api.complete(f"{index}", 4, ignore_eos=True)["usage"]["completion_tokens"]

    calls = [lambda i=i: refuse(i) for i in range(40)] + [lambda i=i: serve(i) for i in range(8)]

    results = side_by_side(calls)

    assert results == [400] * 40 + [4] * 8
