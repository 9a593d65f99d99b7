"""Programs on the bundled model: over HTTP, in process and by OpenAI's API, with equal results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.api_client import ApiClient
from support.server import Server, start_server

from runtime import (
    Engine,
    OpenAIBackend,
    ProgramState,
    RuntimeEndpoint,
    assistant,
    function,
    gen,
    gen_int,
    gen_string,
    select,
    system,
    user,
)
from runtime.lang.errors import BackendError, Unsupported

if TYPE_CHECKING:
    from support.reference import Reference

METHODS = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)


@dataclass
class Person:
    name: str
    age: int


@function
def everything(s: ProgramState) -> None:
    s += "Here is a list of tips for keeping healthy, one by one:\n"
    branches = s.fork(3)
    for index, branch in enumerate(branches):
        branch += f"{index + 1}." + gen("tip", max_tokens=8, stop="\n")
    branches.join()
    s += "\n".join(s["tip"])
    s += "\nThe capital of France is" + select("city", [" Paris", " Rome", " Oslo"])
    s += ". A random number: " + gen_int("number", max_tokens=5)
    s += "\nA name in quotes: " + gen_string("name", max_tokens=40)
    s += "\nAnn is thirty years old. As JSON: "
    s += gen("person", max_tokens=60, json_schema=Person)


@function
def chat(s: ProgramState, question: str) -> None:
    s += system("You answer briefly.")
    s += user(question)
    s += assistant(gen("first", max_tokens=10))
    s += user("Go on.")
    s += assistant(gen("second", max_tokens=10))


@function
def extract(s: ProgramState) -> None:
    s += user("Ann is thirty years old. Write that as JSON.")
    s += assistant(gen("person", max_tokens=60, json_schema=Person))


@function
def count(s: ProgramState) -> None:
    s += "One, two, " + gen("next", max_tokens=5, regex="[a-z]{3,5}")
    s += " and " + gen("last", max_tokens=4, top_k=5, n=2)


@function
def pick(s: ProgramState, prompt: str, choices: list[str], method: str) -> None:
    s += prompt + select("c", choices, choices_method=method)


@pytest.fixture(scope="module")
def endpoint(server: Server) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.base_url) as backend:
        yield backend


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=8192, threads=1, skip_server_warmup=True) as running:
        yield running


def test_a_program_gives_the_same_over_http_and_in_process(
    endpoint: RuntimeEndpoint, engine: Engine
) -> None:
    over_http = everything.run(backend=endpoint, temperature=0)
    in_process = everything.run(backend=engine, temperature=0)
    streamed = everything.run(backend=engine, temperature=0, stream=True)

    assert over_http.variables() == in_process.variables()
    assert over_http.text() == in_process.text() == "".join(streamed.text_iter())
    assert over_http["city"] == " Paris"
    assert type(over_http["number"]) is int
    assert type(over_http["name"]) is str
    assert isinstance(over_http["person"], Person)


def test_a_conversation_is_what_the_chat_route_answers(
    endpoint: RuntimeEndpoint, engine: Engine, api: ApiClient
) -> None:
    state = chat.run("Name a colour.", backend=endpoint, temperature=0)

    messages = state.messages()
    for place in (2, 4):
        body = {"messages": messages[:place], "temperature": 0, "max_tokens": 10}
        answer = api.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        assert answer["content"] == messages[place]["content"]
    assert chat.run("Name a colour.", backend=engine, temperature=0).messages() == messages


def test_the_same_conversation_runs_by_the_openai_api(
    endpoint: RuntimeEndpoint, server: Server
) -> None:
    backend = OpenAIBackend("default", base_url=server.base_url + "/v1", api_key="none")
    try:
        state = chat.run("Name a colour.", backend=backend, temperature=0)
        streamed = chat.run("Name a colour.", backend=backend, temperature=0, stream=True)

        expected = chat.run("Name a colour.", backend=endpoint, temperature=0)
        assert state.messages() == expected.messages()
        assert "".join(streamed.text_iter("second")) == expected["second"]
        assert isinstance(extract.run(backend=backend, temperature=0)["person"], Person)
        with pytest.raises(Unsupported, match="cannot score choices"):
            function(_choose).run(backend=backend)
    finally:
        backend.close()


def test_plain_text_and_the_extra_fields_run_by_the_openai_api(
    endpoint: RuntimeEndpoint, server: Server
) -> None:
    url = server.base_url + "/v1"
    plain = OpenAIBackend("default", base_url=url, api_key="none", api="completions")
    extended = OpenAIBackend(
        "default", base_url=url, api_key="none", api="completions", extra_fields=True
    )
    try:
        with pytest.raises(Unsupported, match="has no regex"):
            count.run(backend=plain, temperature=0)
        state = count.run(backend=extended, temperature=0)
    finally:
        plain.close()
        extended.close()

    expected = count.run(backend=endpoint, temperature=0)
    assert state.variables() == expected.variables()
    assert len(state["last"]) == 2


def _choose(s: ProgramState) -> None:
    s += user("Yes or no?")
    s += assistant(select("c", ["Yes", "No"]))


def test_a_gen_goes_on_in_a_message_of_any_role(endpoint: RuntimeEndpoint, engine: Engine) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("My question is: What is the capital of" + gen("asked", max_tokens=4))
        s += assistant("The answer is" + select("c", [" Paris", " a frog"]))

    one = program.run(backend=endpoint, temperature=0)
    other = program.run(backend=engine, temperature=0)

    assert one.messages() == other.messages()
    assert one["asked"] and "<|" not in one["asked"]
    assert one["c"] == " Paris"


def test_scores_are_the_log_likelihoods_of_the_model(
    server_f32: Server, reference: Reference
) -> None:
    prompt, choices = "The opposite of hot is", [" cold", " very warm indeed", ", I think, blue"]
    with RuntimeEndpoint(server_f32.base_url) as backend:
        state = pick.run(prompt, choices, METHODS[0], backend=backend)
    meta = state.get_meta_info("c")

    base = reference.tokenizer(prompt).input_ids
    for choice, mean in zip(choices, meta["normalized_prompt_logprobs"], strict=True):
        ids = reference.tokenizer(prompt + choice).input_ids
        assert ids[: len(base)] == base
        logprobs = reference.logprobs(ids)
        own = [logprobs[i - 1, ids[i]].item() for i in range(len(base), len(ids))]
        # float32 sums in another order
        assert mean == pytest.approx(sum(own) / len(own), abs=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_plain_answer(endpoint: RuntimeEndpoint, method: str) -> None:
    choices = [" Rome", " Paris", " Oslo"]

    state = pick.run("The capital of France is", choices, method, backend=endpoint)

    assert state["c"] == " Paris"


def test_a_choice_that_merges_with_the_prompt_is_scored_by_the_merged_token(
    endpoint: RuntimeEndpoint,
) -> None:
    # "The weather is sun" + "ny": the model's own tokens are " sunny", not " sun" and "ny".
    state = pick.run("The weather is sun", ["ny", "flower"], METHODS[0], backend=endpoint)

    tokens = state.get_meta_info("c")["input_token_logprobs"]
    assert state["c"] == "ny"
    assert len(tokens[0]) == 1


def test_a_select_computes_the_prompt_once_for_all_choices(
    endpoint: RuntimeEndpoint, api: ApiClient
) -> None:
    prompt = "A story of a fox and a crane, told at some length. " * 20
    api.flush()
    before = api.counter("prompt_tokens") - api.counter("cached_prompt_tokens")

    pick.run(prompt + "The end", ["!", "?", ".", " of"], METHODS[0], backend=endpoint)

    computed = api.counter("prompt_tokens") - api.counter("cached_prompt_tokens") - before
    num_prompt_tokens = len(api.tokenize(prompt + "The end"))
    assert num_prompt_tokens <= computed < num_prompt_tokens + 4 * 4


def test_a_prefix_may_be_pinned_and_let_go(endpoint: RuntimeEndpoint, api: ApiClient) -> None:
    prefix = "The house rules, in the order in which they were made: " * 4

    pin = endpoint.pin_prefix(prefix, ttl_seconds=60)
    assert api.kv()["pinned"] == pin["num_tokens"] > 0
    endpoint.unpin_prefix(pin["pin_id"])

    assert api.kv()["pinned"] == 0
    with pytest.raises(BackendError) as caught:
        endpoint.unpin_prefix(pin["pin_id"])
    assert caught.value.status_code == 404


def test_a_batch_gives_what_single_runs_give(endpoint: RuntimeEndpoint) -> None:
    questions = [{"question": f"Tell me about the number {i}."} for i in range(6)]

    batch = chat.run_batch(questions, backend=endpoint, temperature=0)
    awaited = asyncio.run(chat.arun_batch(questions, backend=endpoint, temperature=0))

    single = [chat.run(**one, backend=endpoint, temperature=0) for one in questions]
    assert [one.messages() for one in batch] == [one.messages() for one in single]
    assert [one.messages() for one in awaited] == [one.messages() for one in single]


def test_a_refusal_names_the_field(endpoint: RuntimeEndpoint, engine: Engine) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "x" + gen("a", top_p=7.0)

    backends: list[Any] = [endpoint, engine]
    for backend in backends:
        with pytest.raises(BackendError, match="top_p") as caught:
            program.run(backend=backend)
        assert (caught.value.status_code, caught.value.param) == (400, "top_p")


def test_a_server_that_is_killed_ends_its_programs_within_a_second() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "Once" + gen("a", max_tokens=2000, ignore_eos=True)

    with (
        start_server("--skip-server-warmup") as doomed,
        RuntimeEndpoint(doomed.base_url) as backend,
    ):
        state = program.run(backend=backend, stream=True)
        assert next(state.text_iter("a"))
        doomed.process.kill()
        started = time.monotonic()
        with pytest.raises(BackendError, match="broke|ended"):
            state["a"]
        assert time.monotonic() - started < 1.0

        # Refused, or accepted by the system for a process that is about to be gone.
        with pytest.raises(BackendError, match="cannot be reached|broke"):
            program.run(backend=backend)
