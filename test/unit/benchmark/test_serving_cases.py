"""Prompts of the serving benchmark: exact token counts, the same each time, never alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serving.cases import FULL, QUICK, PromptSource, Scale, build_workload
from serving.shipment import SHIPMENT_SCHEMA, is_valid_shipment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = "river window garden paper yellow silver morning travel copper winter bridge".split()

VALID = {
    "customer": "Ada Moreau",
    "parcels": 3,
    "contact": "ada@example.org",
    "city": "Nantes",
    "category": "books",
    "urgency": "low",
    "price_cents": 1200,
    "items": [{"label": "atlas", "count": 1}, {"label": "novel", "count": 10}],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PromptSource:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" " + " ".join(WORDS)] * 3, trainer)
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    backend.save(str(file))
    return PromptSource(file)


@pytest.mark.parametrize("scale", [FULL, QUICK])
@pytest.mark.parametrize("case", ["A", "B", "C", "D"])
def test_every_prompt_has_the_tokens_that_its_case_names(
    source: PromptSource, case: str, scale: Scale
) -> None:
    workload = build_workload(case, 1, source, scale)

    counts = {source.count_tokens(prompt) for prompt in workload.prompts}
    if workload.first_prompt is not None:
        counts.add(source.count_tokens(workload.first_prompt))

    assert counts == {workload.prompt_tokens}


def test_full_scale_is_the_work_that_the_cases_define(source: PromptSource) -> None:
    seen = {
        case: (len(one.prompts), one.prompt_tokens, one.max_tokens)
        for case in "ABCDE"
        for one in [build_workload(case, 1, source, FULL)]
    }

    assert seen == {
        "A": (1, 64, 128),
        "B": (1, 2048, 1),
        "C": (32, 128, 128),
        "D": (32, 1550, 32),
        "E": (16, None, 200),
    }


def test_prompts_repeat_for_a_round_and_differ_between_rounds(source: PromptSource) -> None:
    first = build_workload("C", 1, source, FULL)

    assert build_workload("C", 1, source, FULL) == first
    assert not set(first.prompts) & set(build_workload("C", 2, source, FULL).prompts)
    assert len(set(first.prompts)) == 32


def test_shared_prefix_is_all_that_the_requests_share(source: PromptSource) -> None:
    workload = build_workload("D", 1, source, FULL)
    assert workload.first_prompt is not None
    words = [prompt.split() for prompt in [workload.first_prompt, *workload.prompts]]

    assert len({tuple(each[:1500]) for each in words}) == 1
    assert len({tuple(each[1500:]) for each in words}) == 33


def test_unknown_case_is_named(source: PromptSource) -> None:
    with pytest.raises(ValueError, match="'G'"):
        build_workload("G", 1, source, FULL)


def test_valid_shipment_is_accepted() -> None:
    assert is_valid_shipment(json.dumps(VALID))
    assert set(VALID) == set(SHIPMENT_SCHEMA["required"])


@pytest.mark.parametrize(
    "change",
    [
        {"customer": "x" * 21},
        {"parcels": 121},
        {"parcels": True},
        {"parcels": -1},
        {"price_cents": 1.5},
        {"category": "cars"},
        {"urgency": None},
        {"items": VALID["items"][:1]},  # type: ignore[index]
        {"items": [{"label": "atlas", "count": 11}] * 2},
        {"items": [{"label": "atlas"}] * 2},
        {"note": "one key too many"},
    ],
)
def test_shipment_outside_the_schema_is_refused(change: dict[str, object]) -> None:
    assert not is_valid_shipment(json.dumps({**VALID, **change}))


def test_cut_off_json_is_refused() -> None:
    assert not is_valid_shipment(json.dumps(VALID)[:-5])


def test_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0})).save(str(file))

    with pytest.raises(ValueError, match="no word tokens"):
        PromptSource(file)
