"""Small tokenizers of both kinds, and GGUF files that hold nothing but a vocabulary."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from runtime.srt.tokenization.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 12 foxes, 345 dogs; it's 6 o'clock.\n",
    "Größe und Maß, façade, naïve, señor. Привет, мир! 日本語のテキスト、漢字。\n",
    "def f(x):\n    return x ** 2  # 😀 🎉 👨‍👩‍👧 stop ### END\n",
]
SPECIALS = ["<|end|>", "<|user|>"]


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE of about 380 tokens; <|end|> is the eos token."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, None)


@cache
def sentencepiece(strips_leading_space: bool = True) -> Tokenizer:
    """Sentencepiece-like BPE with byte fallback; </s> is the eos token."""
    vocabulary = sentencepiece_vocabulary()
    ids = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("o", "x"), ("d", "o")]
    backend = Backend(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    scheme = "first" if strips_leading_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips_leading_space:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"}, None)


@cache
def words() -> Tokenizer:
    """A vocabulary of whole words, decoded by joining them with spaces."""
    names = ["a", "b", "stop", "\u6f22", "[end]"]
    backend = Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[end]"])
    return Tokenizer(backend, {"eos_token": "[end]"}, None)


def sentencepiece_vocabulary() -> dict[str, Any]:
    """Tokens, scores and types as a GGUF file of a Llama 2 style model has them."""
    pieces = [
        "\u2581t",
        "he",
        "\u2581the",
        "ox",
        "do",
        "\u2581do",
        "dog",
        "th",
        "\u2581f",
        "er",
        "re",
    ]
    chars = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,!<>s/0123456789", "\u00e9", "\u6f22"]
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = list(dict.fromkeys(chars))
    tokens = [*special, *bytes_, *pieces, *letters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) + len(letters))]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) + len(letters))]
    return {"tokens": tokens, "scores": scores, "types": types}


def write_vocabulary_gguf(
    file: Path,
    model: str,
    tokens: list[str],
    types: list[int] | None = None,
    scores: list[float] | None = None,
    merges: list[str] | None = None,
    **fields: int | bool | str,
) -> gguf.GGUFReader:
    """Write a GGUF file with tokenizer metadata only; fields are further tokenizer.ggml keys."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    if types is not None:
        writer.add_token_types(types)
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    for name, value in fields.items():
        key = name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.GGUFReader(file)
