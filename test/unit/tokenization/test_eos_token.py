"""The end token read from the files is the one of the loaded tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import tiny_tokenizers

from runtime.srt.errors import ModelLoadError
from runtime.srt.tokenization.eos_token import read_eos_token_id
from runtime.srt.tokenization.tokenizer import Tokenizer


def save(folder: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"eos_token": "<|end|>"},
        {"eos_token": {"__type": "AddedToken", "content": "</s>"}},
        {"eos_token": "the"},  # an ordinary token, or none: the whole tokenizer must tell
        {"eos_token": "<|absent|>"},
    ],
)
def test_it_equals_the_loaded_tokenizers(make: Any, config: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, make(), config)

    assert read_eos_token_id(tmp_path) == Tokenizer.load(tmp_path).eos_token_id


def test_a_special_tokens_map_counts_where_it_does_for_the_tokenizer(tmp_path: Path) -> None:
    save(tmp_path, tiny_tokenizers.byte_level(), {})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end|>"}))

    token_id = read_eos_token_id(tmp_path)

    assert token_id is not None
    assert token_id == Tokenizer.load(tmp_path).eos_token_id


@pytest.mark.parametrize("content", [None, "{", '{"added_tokens": 3}'])
def test_a_missing_or_damaged_file_is_named(content: str | None, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(ModelLoadError, match="tokenizer.json"):
        read_eos_token_id(tmp_path)
