"""Scoring choices on the bundled model: one request, the model's log-likelihoods, clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.api_client import ApiClient, side_by_side, wait_until
from support.server import Server

from runtime import Engine, ProgramState, RuntimeEndpoint, assistant, function, select, user

if TYPE_CHECKING:
    from support.reference import Reference

PROMPT = "The opposite of hot is"
CHOICES = [" cold", " cold and wet", " cold and", " very warm indeed", ", I think, blue"]
UNCONDITIONAL = "unconditional_likelihood_normalized"
METHODS = ("token_length_normalized", "greedy_token_selection", UNCONDITIONAL)
TOLERANCE = 2e-3  # float32 sums in another order


@function
def pick(
    s: ProgramState, prompt: str, choices: list[str], method: str, early_exit: bool = False
) -> None:
    s += prompt + select("c", choices, choices_method=method, early_exit=early_exit)


@function
def answer(s: ProgramState, begun: str) -> None:
    s += user("What is the capital of France?")
    s += assistant(begun + select("c", [" Paris", " Rome", " Par"], choices_method=UNCONDITIONAL))


@pytest.fixture(scope="module")
def endpoint(server: Server) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.base_url) as backend:
        yield backend


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=8192, threads=1, skip_server_warmup=True) as running:
        yield running


def test_scores_are_the_log_likelihoods_of_transformers(
    api_f32: ApiClient, reference: Reference
) -> None:
    body = {"text": PROMPT, "choices": CHOICES, "choices_method": UNCONDITIONAL}

    found = api_f32.ok("/score_choices", body)["choices"]

    base = reference.tokenizer(PROMPT).input_ids
    for choice, one in zip(CHOICES, found, strict=True):
        ids = reference.tokenizer(PROMPT + choice).input_ids
        own = ids[len(base) :]
        assert one["token_ids"] == own
        logprobs = reference.logprobs(ids)
        expected = [logprobs[i - 1, ids[i]].item() for i in range(len(base), len(ids))]
        assert one["logprobs"] == pytest.approx(expected, abs=TOLERANCE)
        alone = reference.logprobs(own)
        expected = [0.0, *(alone[i - 1, own[i]].item() for i in range(1, len(own)))]
        assert one["unconditional_logprobs"] == pytest.approx(expected, abs=TOLERANCE)


def test_a_merged_token_is_scored_after_what_the_text_then_is(
    api_f32: ApiClient, reference: Reference
) -> None:
    text, choices = "The weather is sun", ["ny", "flower", " and warm"]

    found = api_f32.ok("/score_choices", {"text": text, "choices": choices})["choices"]

    base = reference.tokenizer(text).input_ids
    for choice, one in zip(choices, found, strict=True):
        ids = reference.tokenizer(text + choice).input_ids
        start = next(i for i in range(len(ids)) if ids[i : i + 1] != base[i : i + 1])
        logprobs = reference.logprobs(ids)
        expected = [logprobs[i - 1, ids[i]].item() for i in range(start, len(ids))]
        assert one["token_ids"] == ids[start:]
        assert one["logprobs"] == pytest.approx(expected, abs=TOLERANCE)
    assert len(found[0]["token_ids"]) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_select_gives_the_same_over_http_and_in_process(
    endpoint: RuntimeEndpoint, engine: Engine, method: str
) -> None:
    states = [
        pick.run(PROMPT, CHOICES, method, early_exit, backend=backend)
        for backend in (endpoint, engine)
        for early_exit in (False, True)
    ]

    # bfloat16 in steps of other sizes, on other numbers of threads, gives the same bits.
    assert len({state["c"] for state in states}) == 1
    metas = [state.get_meta_info("c") for state in states]
    assert metas[0] == metas[2]
    assert metas[1] == metas[3]


def test_a_select_in_a_message_goes_on_from_what_it_says(
    endpoint: RuntimeEndpoint, engine: Engine
) -> None:
    states = [answer.run("The capital is", backend=backend) for backend in (endpoint, engine)]

    assert states[0]["c"] == " Paris"
    assert states[0].get_meta_info("c") == states[1].get_meta_info("c")


def test_a_select_is_one_request_and_computes_shared_tokens_once(
    endpoint: RuntimeEndpoint, api: ApiClient
) -> None:
    prompt = "A story of a fox and a crane, told at some length. " * 20 + "The end"
    choices = [f" of the long story about {what}" for what in ("us", "you", "him", "them")]
    pick.run(prompt, choices, METHODS[0], backend=endpoint)
    before = {name: api.counter(name) for name in ("requests", "prompt_tokens", "steps")}
    cached = api.counter("cached_prompt_tokens")

    pick.run(prompt, choices, METHODS[0], backend=endpoint)

    assert api.counter("requests") == before["requests"] + 1
    num_computed = api.counter("prompt_tokens") - before["prompt_tokens"]
    num_computed -= api.counter("cached_prompt_tokens") - cached
    # The prompt's last token and the common stem; what differs is only predicted.
    assert num_computed == 1 + len(api.tokenize(" of the long story about"))


def test_scores_in_a_tiny_pool_beside_running_requests(tiny_pool_api: ApiClient) -> None:
    body = {"text": PROMPT, "choices": CHOICES, "choices_method": UNCONDITIONAL}
    alone = tiny_pool_api.ok("/score_choices", body)["choices"]

    def score() -> Any:
        return tiny_pool_api.ok("/score_choices", body)["choices"]

    def write() -> Any:
        return tiny_pool_api.generate("Once upon a time", max_new_tokens=120, ignore_eos=True)

    answers = side_by_side([write, score, write, score, write, write, score, write])

    for found in [one for one in answers if isinstance(one, list)]:
        for one, other in zip(found, alone, strict=True):
            assert one["logprobs"] == pytest.approx(other["logprobs"], abs=TOLERANCE)


def test_a_client_that_goes_away_ends_its_scoring(api: ApiClient) -> None:
    body = {"text": "word " * 3000, "choices": CHOICES}

    with api.unanswered("/score_choices", body):
        wait_until(lambda: api.num_open() > 0, "the scoring has begun")

    api.wait_until_idle()


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"choices": ["a"]}, "text", "the prompt is missing"),
        ({"text": "x"}, "choices", "choices is missing"),
        ({"text": "x", "choices": []}, "choices", "at least 1"),
        ({"text": "x", "choices": ["a", ""]}, "choices.1", "is empty"),
        ({"text": "x", "choices": ["a", "b", "a"]}, "choices.2", "as one before it"),
        ({"text": "x", "choices": "ab"}, "choices", "array"),
        ({"text": "x", "choices": ["a"], "choices_method": "best"}, "choices_method", "one of"),
        ({"text": "x", "choices": ["a"], "early_exit": "yes"}, "early_exit", "boolean"),
        ({"text": "", "choices": ["a"]}, "choices.0", "no token of its own"),
        ({"input_ids": [10**6], "choices": ["a"]}, "input_ids", "ids go from 0"),
        ({"input_ids": [[1], [2]], "choices": ["a"]}, "input_ids", "a list of token ids"),
        ({"text": "x", "choices": ["a" * 50_000]}, "choices", "choices take"),
        (
            {"text": "x", "choices": ["1" * (900 + i) for i in range(20)]},
            "choices",
            "at most 16384",
        ),
        ({"text": "x " * 9000, "choices": ["a"]}, "text", "shorten text"),
        ({"text": "x", "choices": [" a"], "timeout_seconds": -1}, "timeout_seconds", "above 0"),
    ],
)
def test_a_bad_body_is_refused_with_the_field(
    api: ApiClient, body: Any, param: str, message: str
) -> None:
    response = api.post("/score_choices", body)

    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == param, error
    assert message in error["message"]
