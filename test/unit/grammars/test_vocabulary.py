"""Vocabularies as the engines see them, beside the tokenizers they come from."""

from __future__ import annotations

import pytest
from support import tiny_tokenizers
from support.bundled_tokenizer import END_IDS, VOCAB_SIZE, bundled_tokenizer, bundled_vocabulary

from runtime.grammars.vocabulary import Vocabulary
from runtime.srt.errors import BadRequest
from runtime.srt.tokenization.grammar_vocabulary import grammar_vocabulary
from runtime.srt.tokenization.tokenizer import Tokenizer


def test_each_token_has_the_tokenizers_bytes() -> None:
    vocabulary, tokenizer = bundled_vocabulary(), bundled_tokenizer()

    assert list(vocabulary.tokens) == [tokenizer.token_bytes(i) for i in range(VOCAB_SIZE)]
    assert vocabulary.end_ids == END_IDS
    assert set(vocabulary.special) == tokenizer.special_ids


@pytest.mark.parametrize(
    "tokenizer", [tiny_tokenizers.byte_level(), tiny_tokenizers.sentencepiece()]
)
def test_encoded_text_joins_to_itself_control_tokens_spelled_out(tokenizer: Tokenizer) -> None:
    vocabulary = grammar_vocabulary(tokenizer, tokenizer.vocab_size)

    for text in ("the ox", "<|end|></s><s>", ' "\u6f22\u5b57\U0001f600\n'):
        ids = vocabulary.encode(text)

        assert vocabulary.joined(ids) == text.encode()
        assert not set(ids) & tokenizer.special_ids


def test_text_without_control_tokens_is_cut_as_the_tokenizer_does() -> None:
    text = '{"name": "John", "t\u00e4gs": [1, 22, 333]}\n'

    ids = bundled_vocabulary().encode(text)

    assert ids == bundled_tokenizer().encode(text, add_special_tokens=False)


def test_ids_beyond_the_models_logits_are_spelled_with_others() -> None:
    text = "unbelievable circumstances, entrepreneurship"
    small = bundled_vocabulary(2_000)
    assert max(bundled_vocabulary().encode(text)) >= 2_000

    ids = small.encode(text)

    assert max(ids) < 2_000
    assert small.joined(ids) == text.encode()


def test_the_fingerprint_tells_vocabularies_apart() -> None:
    def vocabulary(tokens: list[bytes], ends: list[int]) -> Vocabulary:
        return Vocabulary(tokens, {}, ends, lambda text: [])

    tokens = [b"a", b"bc", b"<end>"]
    same = vocabulary(tokens, [2]).fingerprint

    assert vocabulary(list(tokens), [2]).fingerprint == same
    assert vocabulary([b"ab", b"c", b"<end>"], [2]).fingerprint != same
    assert vocabulary(tokens, [1, 2]).fingerprint != same
    assert vocabulary([*tokens, b""], [2]).fingerprint != same


def test_nothing_to_end_an_answer_with_is_an_error() -> None:
    with pytest.raises(ValueError, match="end token"):
        Vocabulary([b"a"], {}, [5], lambda text: [])


def test_a_tokenizer_without_fixed_bytes_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="fixed bytes"):
        grammar_vocabulary(tiny_tokenizers.words(), 5)
