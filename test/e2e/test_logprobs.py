"""Log-probabilities are those of the raw distribution, as transformers computes it in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.api_client import ApiClient, side_by_side
from support.reference import Reference

# float32 kernels that sum in another order differ by about 1e-5 on these logits.
TOLERANCE = 1e-3
TEXT = "The capital of France is Paris and the capital of Italy is Rome."


@pytest.fixture(scope="module")
def text_ids(reference: Reference) -> list[int]:
    ids: list[int] = reference.tokenizer(TEXT).input_ids
    return ids


@pytest.fixture(scope="module")
def text_logprobs(reference: Reference, text_ids: list[int]) -> torch.Tensor:
    """Row i: the distribution of the token after text_ids[: i + 1]."""
    return reference.logprobs(text_ids)


def _input_logprobs(api: ApiClient, prompt: Any, start: int = 0, **fields: Any) -> Any:
    answer = api.generate(prompt, 0, return_logprob=True, logprob_start_len=start, **fields)
    return answer["meta_info"]["input_token_logprobs"]


def _assert_output_logprobs(reference: Reference, prompt: list[int], answer: Any) -> None:
    triples = answer["meta_info"]["output_token_logprobs"]
    output = answer["output_ids"]
    expected = reference.logprobs(prompt + output)[len(prompt) - 1 : -1]

    assert [token_id for _, token_id, _ in triples] == output
    assert answer["meta_info"]["output_token_logprobs_length"] == len(output)
    assert [value for value, _, _ in triples] == pytest.approx(
        [float(row[token_id]) for row, token_id in zip(expected, output, strict=True)],
        abs=TOLERANCE,
    )


def test_prompt_logprobs_are_those_of_transformers(
    api_f32: ApiClient, text_ids: list[int], text_logprobs: torch.Tensor
) -> None:
    api_f32.flush()

    triples = _input_logprobs(api_f32, TEXT)

    assert [token_id for _, token_id, _ in triples] == text_ids
    assert triples[0][0] is None
    expected = [float(text_logprobs[i - 1, text_ids[i]]) for i in range(1, len(text_ids))]
    assert [value for value, _, _ in triples[1:]] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_later_start_only_leaves_positions_out(
    api_f32: ApiClient, text_ids: list[int], cache: str
) -> None:
    api_f32.flush()
    everything = _input_logprobs(api_f32, TEXT)

    for start in (1, 4, len(text_ids) - 1, len(text_ids)):
        if cache == "cold":
            api_f32.flush()
        part = _input_logprobs(api_f32, TEXT, start)

        assert [one[1] for one in part] == text_ids[start:]
        values = [one[0] for one in part]
        assert None not in values
        assert values == pytest.approx([one[0] for one in everything[start:]], abs=TOLERANCE)


def test_prompt_logprobs_are_complete_when_the_prompt_is_cached(
    api_f32: ApiClient, text_ids: list[int]
) -> None:
    api_f32.flush()
    cold = _input_logprobs(api_f32, TEXT)
    api_f32.generate(TEXT, 4)

    warm = _input_logprobs(api_f32, TEXT)

    assert [one[1] for one in warm] == text_ids
    assert [one[0] for one in warm[1:]] == pytest.approx(
        [one[0] for one in cold[1:]], abs=TOLERANCE
    )


def test_without_a_start_there_are_no_prompt_logprobs(api_f32: ApiClient) -> None:
    for fields in ({}, {"logprob_start_len": -1}):
        info = api_f32.generate(TEXT, 2, return_logprob=True, **fields)["meta_info"]

        assert info["input_token_logprobs"] == []
        assert len(info["output_token_logprobs"]) == 2


def test_top_logprobs_are_the_most_likely_in_order(
    api_f32: ApiClient, text_ids: list[int], text_logprobs: torch.Tensor
) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5}

    info = api_f32.generate(TEXT, 3, **fields)["meta_info"]

    assert info["input_top_logprobs"][0] is None
    for row, pairs in zip(text_logprobs[:-1], info["input_top_logprobs"][1:], strict=True):
        values, _ = row.topk(5)
        assert [pair[0] for pair in pairs] == pytest.approx(values.tolist(), abs=TOLERANCE)
        by_id = [float(row[pair[1]]) for pair in pairs]
        assert [pair[0] for pair in pairs] == pytest.approx(by_id, abs=TOLERANCE)
    for best, triple in zip(
        info["output_top_logprobs"], info["output_token_logprobs"], strict=True
    ):
        assert len(best) == 5
        assert best[0] == triple  # greedy: the token is the most likely one


def test_logprobs_of_named_tokens_come_at_every_position(
    api_f32: ApiClient, text_ids: list[int], text_logprobs: torch.Tensor
) -> None:
    named = [0, 42, 49151]
    fields = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": named}

    info = api_f32.generate(TEXT, 2, **fields)["meta_info"]

    assert len(info["output_token_ids_logprobs"]) == 2
    assert info["input_token_ids_logprobs"][0] is None
    for row, pairs in zip(text_logprobs[:-1], info["input_token_ids_logprobs"][1:], strict=True):
        assert [pair[1] for pair in pairs] == named
        assert [pair[0] for pair in pairs] == pytest.approx(row[named].tolist(), abs=TOLERANCE)


def test_texts_of_tokens_come_when_asked_for(api_f32: ApiClient) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True}

    with_text = api_f32.generate(TEXT, 1, **fields)["meta_info"]["input_token_logprobs"]
    without = _input_logprobs(api_f32, TEXT)

    assert "".join(one[2] for one in with_text) == TEXT
    assert all(one[2] is None for one in without)


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "hot": {"temperature": 1.5, "sampling_seed": 1},
    "cold": {"temperature": 0.2, "sampling_seed": 2},
    "nucleus": {"temperature": 1.0, "top_p": 0.5, "top_k": 20, "sampling_seed": 3},
    "penalties": {"frequency_penalty": 1.5, "presence_penalty": 1.0, "repetition_penalty": 1.4},
    "bias": {"logit_bias": {"42": 100}},
    "minimum": {"min_new_tokens": 6},
}


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING.keys())
def test_output_logprobs_do_not_depend_on_how_tokens_are_drawn(
    api_f32: ApiClient, reference: Reference, text_ids: list[int], sampling: dict[str, Any]
) -> None:
    sampling = {"ignore_eos": True, **sampling}

    answer = api_f32.generate(text_ids, 6, sampling=sampling, return_logprob=True)

    _assert_output_logprobs(reference, text_ids, answer)


def test_output_logprobs_do_not_depend_on_neighbours(
    api_f32: ApiClient, reference: Reference, text_ids: list[int]
) -> None:
    neighbours = [{**one, "ignore_eos": True} for one in SAMPLING.values()]
    calls = [lambda: api_f32.generate(text_ids, 8, return_logprob=True)]
    calls += [
        lambda s=sampling: api_f32.generate("Neighbour", 12, sampling=s, return_logprob=True)
        for sampling in neighbours
    ]

    answer, *_ = side_by_side(calls)

    _assert_output_logprobs(reference, text_ids, answer)


def test_every_sample_has_its_own_logprobs(
    api_f32: ApiClient, reference: Reference, text_ids: list[int]
) -> None:
    sampling = {"n": 3, "temperature": 1.0, "sampling_seed": 8}

    for answer in api_f32.generate(text_ids, 4, sampling=sampling, return_logprob=True):
        _assert_output_logprobs(reference, text_ids, answer)


def test_scoring_needs_no_new_token(api_f32: ApiClient, text_ids: list[int]) -> None:
    scored = api_f32.generate(text_ids, 0, return_logprob=True, logprob_start_len=0)
    echoed = api_f32.complete(text_ids, 0, echo=True, logprobs=1)
    with_one = api_f32.complete(text_ids, 1, echo=True, logprobs=1)

    assert (scored["text"], scored["output_ids"]) == ("", [])
    values = [one[0] for one in scored["meta_info"]["input_token_logprobs"]]
    assert len(values) == len(text_ids)
    for answer, num_new in ((echoed, 0), (with_one, 1)):
        logprobs = answer["choices"][0]["logprobs"]
        assert answer["usage"]["completion_tokens"] == num_new
        assert len(logprobs["tokens"]) == len(text_ids) + num_new
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        found = logprobs["token_logprobs"][1 : len(text_ids)]
        assert found == pytest.approx(values[1:], abs=TOLERANCE)
        assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    assert echoed["choices"][0]["text"] == TEXT
    assert "".join(echoed["choices"][0]["logprobs"]["tokens"]) == TEXT


def test_text_offsets_point_into_the_text(api_f32: ApiClient) -> None:
    choice = api_f32.complete(TEXT, 5, echo=True, logprobs=2)["choices"][0]

    for token, offset in zip(
        choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True
    ):
        assert choice["text"][offset : offset + len(token)] == token


def test_a_batch_is_scored_item_by_item(api_f32: ApiClient, text_ids: list[int]) -> None:
    items = [text_ids, text_ids[:5], text_ids[3:9]]
    fields = {"return_logprob": True, "logprob_start_len": [0, 2, 1]}

    answers = api_f32.generate(items, 0, **fields)

    for item, start, answer in zip(items, (0, 2, 1), answers, strict=True):
        alone = _input_logprobs(api_f32, item, start)
        together = answer["meta_info"]["input_token_logprobs"]
        assert [one[1] for one in together] == item[start:]
        first = 1 if start == 0 else 0
        assert [one[0] for one in together[first:]] == pytest.approx(
            [one[0] for one in alone[first:]], abs=TOLERANCE
        )


def test_chat_logprobs_spell_the_answer(api_f32: ApiClient) -> None:
    choice = api_f32.chat("Say hi in Japanese.", 10, logprobs=True, top_logprobs=2)["choices"][0]

    content = choice["logprobs"]["content"]
    # The end of the turn is counted and has a log-probability, but no place in the text.
    spelt = b"".join(bytes(entry["bytes"]) for entry in content if entry["token"] != "<|im_end|>")
    assert spelt.decode("utf-8", "replace") == choice["message"]["content"]
    for entry in content:
        best = entry["top_logprobs"][0]
        assert len(entry["top_logprobs"]) == 2
        assert best["logprob"] == pytest.approx(entry["logprob"], abs=TOLERANCE)
        assert best["token"] == entry["token"]
