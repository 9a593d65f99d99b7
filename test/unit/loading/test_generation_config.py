"""generation_config.json: a wrong value is named at the start, what is not applied is warned of."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading.generation_config import sampling_defaults
from runtime.srt.loading.model_config import ModelConfig

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
WRONG = [
    ("temperature", "hot", "temperature is 'hot'; it must be a number"),
    ("temperature", -1, "temperature is -1"),
    ("temperature", True, "temperature is True; it must be a number"),
    ("temperature", float("nan"), "temperature is nan"),
    ("temperature", 10**400, "temperature is inf"),
    ("top_p", 7, "top_p is 7.0; it must be in (0, 1]"),
    ("top_p", [], "top_p is []; it must be a number"),
    ("top_k", -5, "top_k is -5"),
    ("top_k", 1.5, "top_k is 1.5; it must be a whole number"),
    ("top_k", "all", "top_k is 'all'"),
    ("min_p", 2, "min_p is 2"),
    ("repetition_penalty", 0, "repetition_penalty is 0"),
    ("repetition_penalty", {"a": 1}, "repetition_penalty is {'a': 1}"),
    ("do_sample", "yes", "do_sample is 'yes'; it must be true or false"),
]


def write(folder: Path, **generation: Any) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(generation))


def start(folder: Path, *, uses_sampling: bool = True) -> ModelConfig:
    config = ModelConfig.load(folder, {})
    config.check_generation_config(folder, uses_sampling=uses_sampling)
    return config


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_sampling_field_is_named_with_the_remedy(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    write(tmp_path, **{name: value})

    with pytest.raises(ModelLoadError) as raised:
        start(tmp_path)

    assert f"{tmp_path / 'generation_config.json'}: field {message}" in raised.value.message
    assert "--sampling-defaults openai" in raised.value.message


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_the_remedy_works(name: str, value: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, **{name: value})

    start(tmp_path, uses_sampling=False)


def test_greedy_decoding_leaves_the_other_fields_out(tmp_path: Path) -> None:
    write(tmp_path, do_sample=False, temperature="hot")

    assert sampling_defaults(start(tmp_path).generation_defaults) == {}


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_may_be_switched_off(top_k: int) -> None:
    assert sampling_defaults({"top_k": top_k, "top_p": 0.5}) == {"top_k": None, "top_p": 0.5}


@pytest.mark.parametrize("value", [-1, "</s>", [2, -7], [2, None, 1.5], True, {"a": 1}])
def test_a_wrong_end_id_is_named_whatever_the_defaults_are(value: Any, tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=value)

    with pytest.raises(ModelLoadError, match=r"generation_config\.json: field eos_token_id: .* is"):
        start(tmp_path, uses_sampling=False)


def test_an_end_id_beyond_the_vocabulary_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, eos_token_id=[2, 1000])

    config = start(tmp_path)

    assert config.eos_token_ids == (2,)
    assert "eos_token_id has [1000], beyond the vocabulary of 1000" in caplog.text


def test_what_is_not_applied_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, no_repeat_ngram_size=3, num_beams=1, typical_p=1.0, suppress_tokens=[7])

    start(tmp_path)

    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert any(one.endswith("no_repeat_ngram_size is 3, which is not applied") for one in told)
    assert any("suppress_tokens is [7]" in one for one in told)


def test_an_ordinary_file_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(
        tmp_path,
        _from_model_config=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=-1,
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=None,
    )

    config = start(tmp_path)

    assert sampling_defaults(config.generation_defaults) == {"temperature": 0.6, "top_k": 20}
    assert caplog.records == []


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '"x"'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)

    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        start(tmp_path)
