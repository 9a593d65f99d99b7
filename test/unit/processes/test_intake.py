"""Intake: what reaches the scheduler is in range, and what is not is refused with its numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_engine import byte_tokenizer

from runtime.srt.errors import BadRequest, ContextTooLong
from runtime.srt.messages import GenerateRequest
from runtime.srt.processes.generation_spec import GenerationSpec
from runtime.srt.processes.intake import Intake
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

CONTEXT = 64
VOCAB = 258


def _intake(**changes: Any) -> Intake:
    settings = {"vocab_size": VOCAB, "context_length": CONTEXT, "max_total_tokens": 1000}
    return Intake(byte_tokenizer(), **{**settings, **changes})


def _spec(prompt: str | list[int] = "hello", **changes: Any) -> GenerationSpec:
    sampling = changes.pop("sampling", {})
    return GenerationSpec(
        prompt=prompt, sampling=SamplingParams(**{"max_new_tokens": 8, **sampling}), **changes
    )


def _one(intake: Intake, spec: GenerationSpec) -> GenerateRequest:
    (request,) = intake.prepare(spec)
    return request


def test_a_text_becomes_its_ids() -> None:
    request = _one(_intake(), _spec("hi", namespace="tenant", priority=3))

    assert request.input_ids == [104, 105]
    assert request.sampling.max_new_tokens == 8
    assert (request.namespace, request.priority) == ("tenant", 3)


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40, True, 1.0, "a", None])
def test_an_id_outside_the_vocabulary_or_of_another_type_is_refused(bad: Any) -> None:
    with pytest.raises(BadRequest, match="prompt: id 1 is") as refused:
        _intake().prepare(_spec([5, bad]))

    assert refused.value.param == "prompt"


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_prompt_is_refused(empty: Any) -> None:
    with pytest.raises(BadRequest, match="empty"):
        _intake().prepare(_spec(empty))


@pytest.mark.parametrize(
    ("num_prompt", "max_new", "fits"),
    [(56, 8, True), (57, 8, False), (63, 1, True), (64, 1, False), (64, 0, True), (65, 0, False)],
)
def test_prompt_and_asked_for_output_must_fit_the_context(
    num_prompt: int, max_new: int, fits: bool
) -> None:
    spec = _spec([1] * num_prompt, sampling={"max_new_tokens": max_new})

    if fits:
        assert _one(_intake(), spec).sampling.max_new_tokens == max_new
    else:
        with pytest.raises(ContextTooLong, match=rf"{num_prompt} tokens.* {CONTEXT} "):
            _intake().prepare(spec)


@pytest.mark.parametrize("asked", [None, 50])
def test_a_default_output_length_is_cut_to_what_fits(asked: int | None) -> None:
    spec = _spec([1] * 60, sampling={"max_new_tokens": asked}, clamp_max_new_tokens=True)

    assert _one(_intake(), spec).sampling.max_new_tokens == 4

    with pytest.raises(ContextTooLong):
        _intake().prepare(
            _spec([1] * 64, sampling={"max_new_tokens": asked}, clamp_max_new_tokens=True)
        )


def test_what_the_pool_can_never_hold_is_refused_with_both_numbers() -> None:
    intake = _intake(max_total_tokens=33, page_size=16)

    assert _one(intake, _spec([1] * 24)).sampling.max_new_tokens == 8
    with pytest.raises(ContextTooLong, match="25 tokens and 8 new ones.*KV pool holds 32"):
        intake.prepare(_spec([1] * 25))


def test_auto_truncation_keeps_the_end_of_the_prompt_and_room_for_the_output() -> None:
    intake = _intake(allow_auto_truncate=True)
    ids = list(range(200))

    explicit = _one(intake, _spec(ids))
    default = _one(intake, _spec(ids, sampling={"max_new_tokens": 128}, clamp_max_new_tokens=True))

    assert explicit.input_ids == ids[-(CONTEXT - 8) :]
    assert default.input_ids == ids[-CONTEXT // 2 :]
    assert default.sampling.max_new_tokens == CONTEXT // 2
    with pytest.raises(ContextTooLong):
        intake.prepare(_spec(ids, sampling={"max_new_tokens": CONTEXT}))


def test_lower_max_new_tokens_is_advised_only_if_it_was_set() -> None:
    ids = [1] * (CONTEXT - 2)
    with pytest.raises(ContextTooLong, match="shorten prompt or lower max_new_tokens$"):
        _intake().prepare(_spec(ids, sampling={"max_new_tokens": 8}))

    for unasked in ({"max_new_tokens": None}, {"max_new_tokens": 8}):
        with pytest.raises(ContextTooLong, match="shorten prompt$"):
            _intake().prepare(_spec([1] * CONTEXT, sampling=unasked, clamp_max_new_tokens=True))


def test_min_new_tokens_raises_a_default_and_follows_a_cut() -> None:
    sampling = {"max_new_tokens": 8, "min_new_tokens": 20}

    raised = _one(_intake(), _spec([1], sampling=sampling, clamp_max_new_tokens=True))
    cut = _one(_intake(), _spec([1] * 60, sampling=sampling, clamp_max_new_tokens=True))

    assert (raised.sampling.min_new_tokens, raised.sampling.max_new_tokens) == (20, 20)
    assert (cut.sampling.min_new_tokens, cut.sampling.max_new_tokens) == (4, 4)
    with pytest.raises(BadRequest, match="min_new_tokens"):
        _intake().prepare(_spec([1], sampling=sampling))


def test_a_huge_text_is_refused_before_it_is_tokenised() -> None:
    class Counting:
        vocab_size = VOCAB

        def min_num_tokens(self, text: str) -> int:
            return len(text) // 10

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("tokenised")

    intake = Intake(Counting(), vocab_size=VOCAB, context_length=CONTEXT, max_total_tokens=1000)

    with pytest.raises(ContextTooLong, match="at least 100 tokens"):
        intake.prepare(_spec("x" * 1000))


def test_samples_share_the_prompt_and_differ_in_seed_and_id() -> None:
    samples = _intake().prepare(_spec(rid="me", sampling={"n": 3, "sampling_seed": 7}))
    again = _intake().prepare(_spec(rid="me", sampling={"n": 3, "sampling_seed": 7}))

    assert [one.rid for one in samples] == ["me-0", "me-1", "me-2"]
    assert samples[0].seed == 7
    assert len({one.seed for one in samples}) == 3
    assert [one.seed for one in again] == [one.seed for one in samples]
    assert all(one.input_ids == samples[0].input_ids for one in samples)


def test_drawn_seeds_follow_the_servers_seed() -> None:
    def seeds(random_seed: int | None) -> list[int]:
        intake = _intake(random_seed=random_seed)
        return [_one(intake, _spec()).seed for _ in range(3)]

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert seeds(None) != seeds(None)
    assert len(set(seeds(1))) == 3


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_every_seed_stays_in_64_bits(seed: int) -> None:
    for request in _intake().prepare(_spec(sampling={"n": 128, "sampling_seed": seed})):
        assert -(2**63) <= request.seed < 2**63


def test_an_open_rid_is_refused_also_as_a_sample() -> None:
    intake = _intake(is_open=lambda rid: rid == "me-1")

    with pytest.raises(BadRequest, match="me-1.*open"):
        intake.prepare(_spec(rid="me", sampling={"n": 2}))


@pytest.mark.parametrize(
    "changes",
    [
        {"rid": ""},
        {"rid": "a\nb"},
        {"rid": "x" * 600},
        {"namespace": "\ud800"},
        {"sampling": {"stop": ("\udc00",)}},
        {"priority": 2**40},
        {"program_id": ""},
        {"program_id": "x" * 513},
        {"branch_id": "two\nlines"},
        {"branch_id": "\ud800"},
        {"logprobs": LogprobOptions(num_top=-1)},
        {"logprobs": LogprobOptions(num_top=129)},
        {"logprobs": LogprobOptions(prompt_start=6)},
        {"logprobs": LogprobOptions(prompt_start=-1)},
        {"logprobs": LogprobOptions(token_ids=(VOCAB,))},
        {"logprobs": LogprobOptions(token_ids=(0,) * 1025)},
    ],
)
def test_fields_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        _intake().prepare(_spec("hello", **changes))


def test_logprob_options_at_the_edge_are_taken() -> None:
    options = LogprobOptions(prompt_start=5, num_top=128, token_ids=(0, VOCAB - 1))

    assert _one(_intake(), _spec("hello", logprobs=options)).logprobs == options


def test_half_a_surrogate_pair_in_the_prompt_is_refused() -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        _intake().prepare(_spec("a\ud800b"))


def test_a_long_text_does_not_stall_the_event_loop() -> None:
    release = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    class Slow:
        vocab_size = VOCAB

        def min_num_tokens(self, text: str) -> int:
            return 0

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            asyncio.run_coroutine_threadsafe(_set(release), loops[0]).result(5)
            return [1]

    async def run() -> list[GenerateRequest]:
        loops.append(asyncio.get_running_loop())
        intake = Intake(Slow(), vocab_size=VOCAB, context_length=CONTEXT, max_total_tokens=1000)
        requests = await intake.prepare_async(_spec("x" * 10_000))
        intake.close()
        return requests

    assert asyncio.run(run())[0].input_ids == [1]


async def _set(event: asyncio.Event) -> None:
    event.set()
