"""The bundled model's tokenizer, without its weights."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import cache
from pathlib import Path

from gguf import GGUFReader

from runtime.grammars.vocabulary import Vocabulary
from runtime.srt.loading.gguf_tokenizer import write_tokenizer
from runtime.srt.loading.resolve import BUNDLED_MODELS
from runtime.srt.tokenization.grammar_vocabulary import grammar_vocabulary
from runtime.srt.tokenization.tokenizer import Tokenizer

VOCAB_SIZE = 49_152
END_IDS = (0, 2)  # <|endoftext|>, which its files do not name as an end, and <|im_end|>


@cache
def bundled_tokenizer() -> Tokenizer:
    """Read from the metadata of the GGUF file."""
    (package, _), *_ = BUNDLED_MODELS.values()
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None, package
    (file,) = Path(spec.submodule_search_locations[0]).glob("**/*.gguf")
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(GGUFReader(file), Path(folder))
        return Tokenizer.load(Path(folder))


@cache
def bundled_vocabulary(vocab_size: int = VOCAB_SIZE) -> Vocabulary:
    """With two end tokens."""
    return grammar_vocabulary(bundled_tokenizer(), vocab_size, END_IDS)
