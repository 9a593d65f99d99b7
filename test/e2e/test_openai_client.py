"""The public OpenAI client works against the server, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.keys import API_KEY
from support.server import Server

MODEL = "smollm2-135m-instruct"
USER: list[Any] = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    base_url = server.base_url + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", timeout=120, max_retries=0) as one:
        yield one


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *USER],
        max_completion_tokens=12,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        seed=1,
        user="someone",
    )

    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert choice.logprobs is not None and choice.logprobs.content
    assert answer.usage is not None
    assert len(choice.logprobs.content) == answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=12, temperature=0, seed=1
    )

    stream = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        max_tokens=12,
        temperature=0,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)

    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_can_be_closed_early(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for _, _ in zip(range(3), stream, strict=False):
            pass


def test_completions_take_text_ids_and_batches(client: openai.OpenAI) -> None:
    prompts: list[Any] = ["One", [504, 338, 253], ["One", "Two"], [[504], [338, 253]]]

    for prompt in prompts:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, n=2)

        num_prompts = len(prompt) if isinstance(prompt[0], list) or len(prompt) == 2 else 1
        assert [one.index for one in answer.choices] == list(range(2 * num_prompts))


def test_scoring(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The sky is blue", max_tokens=0, echo=True, logprobs=1
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text == "The sky is blue"


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data

    assert client.models.retrieve(model.id).id == model.id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.timeout(400)
def test_thirty_two_at_once(server: Server) -> None:
    async def ask_all() -> list[str | None]:
        base_url = server.base_url + "/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=300) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": f"Say the number {i}."}],
                        max_tokens=6,
                    )
                    for i in range(32)
                )
            )
        return [one.choices[0].message.content for one in answers]

    answers = asyncio.run(ask_all())

    assert len(answers) == 32
    assert all(answer is not None for answer in answers)


def test_errors_have_their_classes_and_fields(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong_value:
        client.chat.completions.create(model=MODEL, messages=USER, temperature=-1)
    with pytest.raises(openai.NotFoundError) as wrong_model:
        client.chat.completions.create(model="gpt-17", messages=USER)
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="x" * 10_000_000)
    with pytest.raises(openai.BadRequestError) as unavailable:
        client.chat.completions.create(
            model=MODEL,
            messages=USER,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "string", "format": "no-such"}},
            },
        )

    assert wrong_value.value.param == "temperature"
    assert wrong_value.value.type == "invalid_request_error"
    assert wrong_model.value.code == "model_not_found"
    assert too_long.value.code == "context_length_exceeded"
    assert unavailable.value.param == "response_format.json_schema.schema"
    assert "format" in unavailable.value.message


def test_a_wrong_key_is_an_authentication_error(guarded_server: Server) -> None:
    base_url = guarded_server.base_url + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0) as client:
        assert client.models.list().data
