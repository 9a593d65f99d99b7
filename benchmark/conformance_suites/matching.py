"""Texts through the matcher that serves: token by token, as the model's tokenizer cuts them."""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary
from runtime.srt.loading.gguf_tokenizer import write_tokenizer
from runtime.srt.loading.resolve import BUNDLED_MODELS
from runtime.srt.tokenization.grammar_vocabulary import grammar_vocabulary
from runtime.srt.tokenization.tokenizer import Tokenizer


def bundled_vocabulary() -> Vocabulary:
    """That of the bundled model; its weights are not read."""
    (package, install), *_ = BUNDLED_MODELS.values()
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the bundled model is not installed; run: {install}")
    (file,) = Path(spec.submodule_search_locations[0]).glob("**/*.gguf")
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(GGUFReader(file), Path(folder))
        tokenizer = Tokenizer.load(Path(folder))
    return grammar_vocabulary(tokenizer, len(tokenizer.backend.get_vocab()))


class SchemaMatching:
    """Compiles schemas as requests do and tells which texts their grammars take."""

    def __init__(self, vocabulary: Vocabulary, whitespace: JsonWhitespace) -> None:
        self.vocabulary = vocabulary
        self.whitespace = whitespace
        self._mask = np.zeros(vocabulary.bitmask_words, np.uint32)
        self.compile({"type": "null"})  # the engine's tables are made with the first grammar

    def compile(self, schema: Any) -> tuple[Grammar, float]:
        """A grammar and the seconds it took, checks included. Raises GrammarError."""
        text = json.dumps(schema, ensure_ascii=False)
        start = time.perf_counter()
        spec = GrammarSpec(GrammarKind.JSON_SCHEMA, text, self.whitespace)
        grammar = compile_grammar(prepare(spec), self.vocabulary)
        return grammar, time.perf_counter() - start

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether every token, the end token last, is in the mask and accepted."""
        matcher = grammar.matcher()
        for token_id in [*self.vocabulary.encode(text), self.vocabulary.end_ids[0]]:
            matcher.fill(self._mask)
            is_shown = bool(self._mask[token_id >> 5] >> (token_id & 31) & 1)
            is_taken = matcher.accept([token_id]) == 1
            assert is_taken or not is_shown, f"{token_id} is in the mask but not accepted: {text}"
            # Where a text is forced, the mask shows only the tokenizer's own next token.
            if not (is_shown and is_taken):
                return False
        return True
