"""Sampling parameters seen from outside: each one changes what it says, and nothing else."""

from __future__ import annotations

import pytest
from support.api_client import ApiClient, side_by_side

PROMPT = "The strangest thing that happened that day was"
SEEDED = {"temperature": 1.0, "sampling_seed": 1234, "ignore_eos": True}


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9])
def test_temperature_zero_is_greedy_whatever_the_seed(
    api_f32: ApiClient, temperature: float
) -> None:
    greedy = api_f32.complete(PROMPT, 12)["choices"][0]["text"]

    texts = {
        api_f32.complete(PROMPT, 12, temperature=temperature, seed=seed)["choices"][0]["text"]
        for seed in (0, 1, 99)
    }

    assert texts == {greedy}


def test_top_k_one_is_greedy_at_any_temperature(api_f32: ApiClient) -> None:
    greedy = api_f32.generate(PROMPT, 10)["output_ids"]

    hot = api_f32.generate(PROMPT, 10, sampling={"temperature": 5.0, "top_k": 1})
    narrow = api_f32.generate(PROMPT, 10, sampling={"temperature": 1.0, "top_p": 1e-6})

    assert hot["output_ids"] == narrow["output_ids"] == greedy


def test_a_seed_gives_the_same_answer_alone_and_in_a_crowd(api_f32: ApiClient) -> None:
    alone = api_f32.generate(PROMPT, 16, sampling=SEEDED)["output_ids"]

    calls = [lambda: api_f32.generate(PROMPT, 16, sampling=SEEDED)] * 2
    calls += [
        lambda i=i: api_f32.generate(f"Noise {i}", 16, sampling={"temperature": 1.0})
        for i in range(6)
    ]
    crowd = side_by_side(calls)

    assert crowd[0]["output_ids"] == crowd[1]["output_ids"] == alone
    again = api_f32.complete(PROMPT, 16, temperature=1.0, seed=1234, ignore_eos=True)
    assert again["choices"][0]["text"] == crowd[0]["text"]


def test_other_seeds_give_other_answers(api_f32: ApiClient) -> None:
    calls = [
        lambda seed=seed: api_f32.generate(PROMPT, 12, sampling={**SEEDED, "sampling_seed": seed})
        for seed in range(6)
    ]

    texts = {one["text"] for one in side_by_side(calls)}

    assert len(texts) == 6


def test_without_a_seed_answers_differ(api: ApiClient) -> None:
    sampling = {"temperature": 1.0, "ignore_eos": True}

    texts = {api.generate(PROMPT, 12, sampling=sampling)["text"] for _ in range(4)}

    assert len(texts) == 4


def test_samples_of_one_seed_differ_from_each_other_and_come_again(api_f32: ApiClient) -> None:
    first = api_f32.generate(PROMPT, 12, sampling={**SEEDED, "n": 4})
    second = api_f32.generate(PROMPT, 12, sampling={**SEEDED, "n": 4})

    texts = [one["text"] for one in first]
    assert len(set(texts)) == 4
    assert [one["text"] for one in second] == texts
    # Sample 0 is the answer of the seed by itself.
    assert texts[0] == api_f32.generate(PROMPT, 12, sampling=SEEDED)["text"]


def test_greedy_samples_are_all_the_same(api_f32: ApiClient) -> None:
    choices = api_f32.complete(PROMPT, 8, n=3)["choices"]

    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 1


def test_frequency_penalty_breaks_a_loop(api_f32: ApiClient) -> None:
    prompt = "la la la la la la la la la la"
    free = api_f32.generate(prompt, 24, sampling={"ignore_eos": True})["output_ids"]

    strict = {"frequency_penalty": 2.0, "presence_penalty": 2.0, "ignore_eos": True}
    penalised = api_f32.generate(prompt, 24, sampling=strict)["output_ids"]

    assert len(set(penalised)) > len(set(free))
    assert max(map(penalised.count, penalised)) < max(map(free.count, free))


def test_repetition_penalty_counts_the_prompt_too(api_f32: ApiClient) -> None:
    prompt = api_f32.tokenize("la la la la la la, la la la, la la la, la la")
    (free,) = api_f32.generate(prompt, 1)["output_ids"]
    assert free in prompt

    penalised = api_f32.generate(prompt, 1, sampling={"repetition_penalty": 2.0})["output_ids"]

    assert penalised[0] not in prompt


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logit_bias_forces_a_token(api_f32: ApiClient, temperature: float) -> None:
    forced = api_f32.tokenize(" banana")
    assert len(forced) == 1
    fields = {"temperature": temperature, "logit_bias": {str(forced[0]): 100}}

    answer = api_f32.complete(PROMPT, 4, **fields)

    assert answer["choices"][0]["text"] == " banana" * 4


def test_logit_bias_forbids_a_token(api_f32: ApiClient) -> None:
    free = api_f32.generate(PROMPT, 1)["output_ids"][0]

    other = api_f32.generate(PROMPT, 8, sampling={"logit_bias": {str(free): -100}})

    assert free not in other["output_ids"]


def test_min_p_one_leaves_the_most_likely(api_f32: ApiClient) -> None:
    greedy = api_f32.generate(PROMPT, 8)["output_ids"]

    answer = api_f32.generate(PROMPT, 8, sampling={"temperature": 1.0, "min_p": 1.0})

    assert answer["output_ids"] == greedy


def test_items_of_a_batch_have_their_own_parameters(api_f32: ApiClient) -> None:
    params = [
        {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
        {"max_new_tokens": 5, "temperature": 1.0, "sampling_seed": 3, "ignore_eos": True},
    ]
    answers = api_f32.ok("/generate", {"text": [PROMPT, PROMPT], "sampling_params": params})

    assert [len(one["output_ids"]) for one in answers] == [2, 5]
    assert answers[0]["output_ids"] == api_f32.generate(PROMPT, 2)["output_ids"]


def test_null_means_the_default(api_f32: ApiClient) -> None:
    names = ["stop", "top_p", "top_k", "min_p", "n", "seed", "stop_token_ids", "logit_bias"]
    names += ["frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos"]

    with_nulls = api_f32.complete(PROMPT, 6, **dict.fromkeys(names))

    expected = api_f32.complete(PROMPT, 6)
    assert with_nulls["choices"][0]["text"] == expected["choices"][0]["text"]


def test_unknown_fields_are_ignored(api_f32: ApiClient) -> None:
    fields = {"user": "me", "metadata": {"a": 1}, "store": True, "no_such_field": [1, {"b": None}]}

    answer = api_f32.complete(PROMPT, 4, **fields)

    assert answer["usage"]["completion_tokens"] == 4
