"""Greedy answers over HTTP are those of transformers, whatever is cached or runs beside them.

All in float32. Equality is exact. Where the two best logits lie within TIE of each other, rounding
may choose either, and such a token is accepted: float32 kernels that sum in another order differ by
about 1e-5 on logits of this size.
"""

from __future__ import annotations

import pytest
from support.api_client import ApiClient, side_by_side
from support.reference import Reference

TIE = 1e-4
NUM_TOKENS = 20

PROSE = [
    "The capital of Norway is",
    "Water boils at",
    "Once upon a time, in a village by the sea, there lived",
    "The three most important inventions of the last century are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the middle of the night the phone rang, and",
    "A good recipe for bread needs flour,",
    "My favourite season is autumn because",
    "The opposite of hot is",
    "Q: Why is the sky blue?\nA:",
    "Translate to French: Good morning.\n",
    "She opened the door and saw",
    "HEADLINE: LOCAL TEAM WINS",
    "to be or not to be",
]
LANGUAGES = [
    "Die Hauptstadt von Österreich ist",
    "La capitale de l'Espagne est",
    "El agua hierve a",
    "Il gatto è sul",
    "A capital de Portugal é",
    "Столица России —",
    "今日の天気は",
    "中国的首都是",
    "대한민국의 수도는",
    "عاصمة مصر هي",
    "भारत की राजधानी",
    "Ελλάδα είναι",
]
CODE_AND_NUMBERS = [
    "def factorial(n):\n    ",
    "for (int i = 0; i < 10; i++) {\n",
    "SELECT name, age FROM people WHERE",
    "import numpy as np\n\nx = np.",
    '{"name": "Ada", "born": 1815, "fields": [',
    "<html>\n<head>\n<title>",
    "#!/bin/sh\nset -eu\n",
    "1, 2, 4, 8, 16,",
    "3.14159265",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "0000000000000000",
    "Phone: +47 22 33 44",
]
ODD = [
    "a",
    " ",
    "\n\n\n",
    "   leading and trailing   ",
    "😀 😃 😄",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈",
    "café naïve coöperate",
    "tab\tseparated\tvalues\t",
    "!!!???...",
    "In 1969, " * 30,
    "The river, the mill and the two families. " * 12,
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]
PROMPTS = PROSE + LANGUAGES + CODE_AND_NUMBERS + ODD


@pytest.fixture(scope="module")
def prompt_ids(reference: Reference) -> list[list[int]]:
    return [reference.tokenizer(text).input_ids for text in PROMPTS]


def _differences(reference: Reference, prompt: list[int], output: list[int]) -> list[str]:
    """Walk along output: at each place its token must be the reference's arg-max."""
    logits = reference.logits(prompt + output)[len(prompt) - 1 : -1]
    found = []
    for place, (token_id, row) in enumerate(zip(output, logits, strict=True)):
        gap = float(row.max() - row[token_id])
        if gap > TIE:
            found.append(f"output token {place} is {token_id}, {gap:g} below the best")
    return found


@pytest.mark.timeout(600)
def test_fifty_prompts_give_the_greedy_tokens_of_transformers(
    api_f32: ApiClient, reference: Reference, prompt_ids: list[list[int]]
) -> None:
    assert len(set(PROMPTS)) == 50

    answers = api_f32.generate(PROMPTS, NUM_TOKENS)

    for text, prompt, answer in zip(PROMPTS, prompt_ids, answers, strict=True):
        output = answer["output_ids"]
        assert answer["meta_info"]["prompt_tokens"] == len(prompt), text
        # By induction over the tokens this is the greedy sequence.
        assert _differences(reference, prompt, output) == [], text
        assert len(output) == NUM_TOKENS or output[-1] == reference.tokenizer.eos_token_id, text
        assert answer["text"] == reference.tokenizer.decode(output, skip_special_tokens=True), text


@pytest.mark.timeout(600)
def test_tokens_equal_those_of_generate(
    api_f32: ApiClient, reference: Reference, prompt_ids: list[list[int]]
) -> None:
    for prompt in prompt_ids[::10]:
        expected = reference.greedy(prompt, 12)

        assert api_f32.generate(prompt, 12)["output_ids"] == expected


def test_a_chat_is_the_template_and_then_greedy_text(
    api_f32: ApiClient, reference: Reference
) -> None:
    messages = [
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "Hello, who are you?"},
        {"role": "assistant", "content": "I am a helper."},
        {"role": "user", "content": "Name a colour."},
    ]
    encoded = reference.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    prompt = encoded["input_ids"]
    expected = reference.greedy(prompt, NUM_TOKENS)

    answer = api_f32.chat(messages, NUM_TOKENS)

    assert answer["usage"]["prompt_tokens"] == len(prompt)
    text = reference.tokenizer.decode(expected, skip_special_tokens=True)
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens"] == len(expected)


def test_a_chat_prompt_has_no_second_beginning_of_sequence(
    api_f32: ApiClient, reference: Reference
) -> None:
    for messages in (
        [{"role": "user", "content": "hi"}],
        [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
    ):
        expected = reference.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]

        assert api_f32.chat(messages, 1)["usage"]["prompt_tokens"] == len(expected)


def test_one_prompt_sixteen_times_at_once_equals_it_alone(api_f32: ApiClient) -> None:
    prompt = "The lighthouse keeper wrote in his diary that"
    api_f32.flush()
    alone = api_f32.generate(prompt, 24)
    api_f32.flush()

    together = side_by_side([lambda: api_f32.generate(prompt, 24)] * 16)

    assert [one["output_ids"] for one in together] == [alone["output_ids"]] * 16
    assert [one["text"] for one in together] == [alone["text"]] * 16


def test_eight_prompts_at_once_equal_the_eight_alone(api_f32: ApiClient) -> None:
    prompts = PROMPTS[::7]
    assert len(prompts) == 8
    api_f32.flush()
    alone = [api_f32.generate(prompt, 12)["output_ids"] for prompt in prompts]
    api_f32.flush()

    calls = [lambda prompt=prompt: api_f32.generate(prompt, 12) for prompt in prompts]
    together = side_by_side(calls)

    assert [one["output_ids"] for one in together] == alone


@pytest.mark.timeout(600)
def test_an_answer_does_not_depend_on_how_much_was_cached(
    api_f32: ApiClient, reference: Reference
) -> None:
    text = "The town had a river, a mill and two families who did not speak to each other. " * 8
    prompt = reference.tokenizer(text).input_ids[:100]
    expected = reference.greedy(prompt, 16)
    for num_cached in (0, 1, 7, 50, 98, 99):
        api_f32.flush()
        if num_cached:
            api_f32.generate(prompt[:num_cached], 0)

        answer = api_f32.generate(prompt, 16)

        assert answer["meta_info"]["cached_tokens"] == num_cached
        assert answer["output_ids"] == expected
