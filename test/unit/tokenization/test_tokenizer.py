"""Text to ids and back, beside transformers on the same folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import tiny_tokenizers
from transformers import AutoTokenizer

from runtime.srt.errors import BadRequest, ModelLoadError
from runtime.srt.tokenization.tokenizer import Tokenizer

HARD_TEXTS = [
    "",
    "the quick fox",
    "  two  spaces\t\tand tabs\n\n\r\n x",
    "1234567890 3.14 0x1F \u0663\u0664 \u00bd \u2167",
    "\u65e5\u672c\u8a9e \u6f22\u5b57 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 \u212b \ufb01 \u00a0\u3000\u200b\ufeff",
    "<|user|>hi<|end|> <s>the</s> <think>x <|new|>",
    "\x00\x01\x7f",
    "a" * 300,
]


def folder_of(tokenizer: Tokenizer, folder: Path, config: dict[str, Any]) -> Path:
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (tiny_tokenizers.byte_level, {"eos_token": "<|end|>"}),
        (tiny_tokenizers.byte_level, {"eos_token": "<|end|>", "bos_token": "<|user|>"}),
        (tiny_tokenizers.byte_level, {"eos_token": "<|end|>", "add_eos_token": True}),
        (tiny_tokenizers.byte_level, {"bos_token": {"__type": "AddedToken", "content": "<|new|>"}}),
        (tiny_tokenizers.byte_level, {"extra_special_tokens": ["<|new|>", "fox"]}),
        (
            tiny_tokenizers.byte_level,
            {"added_tokens_decoder": {"900": {"content": "<|new|>", "special": True}}},
        ),
        (tiny_tokenizers.sentencepiece, {"bos_token": "<s>", "add_bos_token": True}),
        (tiny_tokenizers.sentencepiece, {"bos_token": "<s>", "eos_token": "</s>"}),
    ],
)
def test_ids_and_text_equal_those_of_transformers(
    tmp_path: Path, make: Any, config: dict[str, Any]
) -> None:
    folder = folder_of(make(), tmp_path, config)
    theirs = AutoTokenizer.from_pretrained(str(folder))

    ours = Tokenizer.load(folder)

    for text in HARD_TEXTS:
        for special in (True, False):
            expected = theirs(text, add_special_tokens=special)["input_ids"]
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == expected, text
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece])
def test_token_bytes_joined_are_the_text(make: Any) -> None:
    tokenizer = make()
    text = "the dog, 日本語 漢 😀 é\n"

    ids = tokenizer.encode(text, add_special_tokens=False)

    joined = b"".join(tokenizer.token_bytes(i) for i in ids)
    assert joined.removeprefix(b" ").decode() == text


def test_token_text_shows_a_part_of_a_character_as_replacement() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    token_id = tokenizer.encode("\u2603")[0]

    assert tokenizer.token_bytes(token_id) == b"\xe2"
    assert tokenizer.token_text(token_id) == "\ufffd"
    assert tokenizer.token_text(tokenizer.encode("<|end|>")[0]) == "<|end|>"


def test_an_added_token_of_latin_letters_is_text_not_raw_bytes(tmp_path: Path) -> None:
    config = {"extra_special_tokens": ["\u00e9t\u00e9"]}
    tokenizer = Tokenizer.load(folder_of(tiny_tokenizers.byte_level(), tmp_path, config))

    ids = tokenizer.encode("\u00e9t\u00e9")

    assert len(ids) == 1
    assert tokenizer.token_bytes(ids[0]) == "\u00e9t\u00e9".encode()
    assert tokenizer.decode(ids, skip_special_tokens=False) == "\u00e9t\u00e9"


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    tokenizer = tiny_tokenizers.byte_level()

    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([-1, *tokenizer.encode("ox"), 10**9]) == "ox"


def test_a_lone_surrogate_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match=r"U\+D83D.*character 1"):
        tiny_tokenizers.byte_level().encode("a\ud83d")


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece])
def test_no_text_has_fewer_tokens_than_the_bound_says(make: Any) -> None:
    tokenizer = make()

    for text in [*HARD_TEXTS, " the" * 200, "\u2581the" * 50, "<|user|>" * 40, "</s>" * 40]:
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))

        assert num_tokens >= len(text.encode()) / tokenizer.max_token_bytes, text
        assert num_tokens >= tokenizer.min_num_tokens(text), text


def test_a_long_text_is_known_to_be_long_without_encoding_it() -> None:
    assert tiny_tokenizers.byte_level().min_num_tokens("x" * 1_000_000) > 50_000


def test_a_vocabulary_with_unknown_tokens_has_no_bound() -> None:
    assert tiny_tokenizers.words().max_token_bytes == sys.maxsize


def test_chat_template_comes_from_the_file_before_the_config(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    listed = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = folder_of(tokenizer, tmp_path, {"chat_template": listed})

    assert Tokenizer.load(folder).chat_template == "D"

    (folder / "chat_template.jinja").write_text("F")
    assert Tokenizer.load(folder).chat_template == "F"


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)

    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
