"""Tokenizer files from a GGUF file's metadata.

Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json as transformers would have
them, so that the folder serves both. Two kinds of vocabulary: "gpt2", byte-level BPE whose
pre-tokenizer is named by tokenizer.ggml.pre, and "llama", sentencepiece BPE whose merges follow
from the scores. Field meanings: the GGUF specification and llama.cpp's vocabulary types.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ..errors import ModelLoadError
from .gguf_pre_tokenizers import byte_level_rules
from .sentencepiece_merges import merges_from_scores

_NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer.ggml.* metadata of one file."""

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    named: dict[str, str]  # bos_token, eos_token, ...: their text
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


def write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """Write reader's tokenizer into folder, which must exist.

    Raises ModelLoadError naming the metadata field that is missing or not supported.
    """
    vocabulary = read_vocabulary(reader)
    if vocabulary.model == "gpt2":
        tokenizer = _byte_level(vocabulary)
    elif vocabulary.model == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise ModelLoadError(
            f"tokenizer.ggml.model is {vocabulary.model!r}; supported are 'gpt2' and 'llama'"
        )
    _add_marked_tokens(tokenizer, vocabulary)
    _add_bos_and_eos(tokenizer, vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **vocabulary.named,
    }
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "special_tokens_map.json", vocabulary.named)


def read_vocabulary(reader: GGUFReader) -> GgufVocabulary:
    """The tokenizer.ggml.* fields of reader; raises ModelLoadError for what is missing or torn."""
    model = _required(reader, "tokenizer.ggml.model")
    tokens = _required(reader, "tokenizer.ggml.tokens")
    types = _field(reader, "tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    scores = _field(reader, "tokenizer.ggml.scores") or []
    for name, values in (("token_type", types), ("scores", scores)):
        if values and len(values) != len(tokens):
            raise ModelLoadError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(tokens)} tokens"
            )
    named = {}
    for name, field in _NAMED_IDS.items():
        token_id = _field(reader, f"tokenizer.ggml.{field}")
        if token_id is not None and 0 <= token_id < len(tokens):
            named[name] = tokens[token_id]
    is_llama = model == "llama"
    if is_llama and "unk_token" not in named and TokenType.UNKNOWN in types:
        named["unk_token"] = tokens[types.index(TokenType.UNKNOWN)]
    pre = _field(reader, "tokenizer.ggml.pre") or "default"
    adds_bos = is_llama or (model == "gpt2" and byte_level_rules(pre).adds_bos)
    return GgufVocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=_field(reader, "tokenizer.ggml.merges") or [],
        named=named,
        # Older files carry no flags: what is meant then depends on the kind of vocabulary.
        add_bos=bool(_field(reader, "tokenizer.ggml.add_bos_token", adds_bos)),
        add_eos=bool(_field(reader, "tokenizer.ggml.add_eos_token", False)),
        add_space_prefix=bool(_field(reader, "tokenizer.ggml.add_space_prefix", is_llama)),
        chat_template=_field(reader, "tokenizer.chat_template"),
    )


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    if not vocabulary.merges:
        raise ModelLoadError("tokenizer.ggml.merges is missing; a 'gpt2' vocabulary needs it")
    rules = byte_level_rules(vocabulary.pre)
    tokenizer = _bpe(
        vocabulary,
        [_split_merge(merge) for merge in vocabulary.merges],
        ignore_merges=rules.ignore_merges,
    )
    if rules.normalizes_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rules.pre_tokenizer(vocabulary.add_space_prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: GgufVocabulary) -> Tokenizer:
    if not vocabulary.scores and not vocabulary.merges:
        raise ModelLoadError("tokenizer.ggml.scores is missing; a 'llama' vocabulary needs it")
    if vocabulary.merges:
        merges = [_split_merge(merge) for merge in vocabulary.merges]
    else:
        ordinary = (TokenType.NORMAL, TokenType.USER_DEFINED)
        usable = [kind in ordinary for kind in vocabulary.types]
        merges = merges_from_scores(vocabulary.tokens, vocabulary.scores, usable)
    unknown = vocabulary.named.get("unk_token")
    tokenizer = _bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    # The space goes before the text only, not after each special token: as transformers reads GGUF.
    scheme = "first" if vocabulary.add_space_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _bpe(
    vocabulary: GgufVocabulary, merges: list[tuple[str, str]], **options: bool | str | None
) -> Tokenizer:
    try:
        return Tokenizer(BPE(vocab=_ids_of(vocabulary.tokens), merges=merges, **options))
    except Exception as error:  # the library raises bare Exception, for a merge of unknown tokens
        raise ModelLoadError(f"tokenizer.ggml.merges does not fit the tokens: {error}") from None


def _add_marked_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Control tokens become special, user-defined ones plain added tokens: both are never cut."""
    special = set(vocabulary.named.values())
    marked = [
        AddedToken(text, normalized=False, special=kind == TokenType.CONTROL or text in special)
        for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED) or text in special
    ]
    tokenizer.add_tokens(marked)


def _add_bos_and_eos(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    parts, specials = ["$A:0"], []
    bos, eos = vocabulary.named.get("bos_token"), vocabulary.named.get("eos_token")
    if vocabulary.add_bos and bos is not None:
        parts.insert(0, f"{bos}:0")
        specials.append((bos, tokenizer.token_to_id(bos)))
    if vocabulary.add_eos and eos is not None:
        parts.append(f"{eos}:0")
        specials.append((eos, tokenizer.token_to_id(eos)))
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(parts), pair=None, special_tokens=specials
        )


def _ids_of(tokens: list[str]) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise ModelLoadError(f"tokenizer.ggml.tokens contains {twice!r} more than once")
    return ids


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelLoadError(f"tokenizer.ggml.merges contains {merge!r}, which is not a pair")
    return left, right


def _required(reader: GGUFReader, name: str) -> Any:
    value = _field(reader, name)
    if value is None:
        raise ModelLoadError(
            f"the GGUF file has no {name}; it cannot be served without a tokenizer"
        )
    return value


def _field(reader: GGUFReader, name: str, default: Any = None) -> Any:
    # Any: the value's type is whatever the file says.
    field = reader.get_field(name)
    return default if field is None else field.contents()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
