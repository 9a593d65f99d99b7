"""Tokenizer: text to ids and back, from a Hugging Face style folder.

Needs the tokenizers library only, so that every process starts fast. Ids equal those of
transformers' AutoTokenizer on the same folder, as long as that uses the folder's tokenizer.json as
it stands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ..errors import BadRequest, ModelLoadError
from .token_bytes import (
    VocabularyKind,
    byte_level_bytes,
    droppable_bytes,
    normalizer_steps,
    sentencepiece_bytes,
    vocabulary_kind,
)

# NFC writes a character in at most three times fewer bytes: U+1FEF (3 bytes) becomes U+0060 (1
# byte).
NFC_SHRINK = 3
_ID_LIMIT = 1 << 32  # the backend's ids are of 32 bits, without sign
# What text added before, or a space replaced, cannot hide: the number of bytes never falls.
_GROWING_NORMALIZERS = frozenset({"Prepend"})


class Tokenizer:
    """A vocabulary with its rules; immutable after loading, safe to share between threads."""

    def __init__(self, backend: Backend, config: dict[str, Any], chat_template: str | None) -> None:
        """Take over backend, without its padding and truncation; config is that of the folder."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.chat_template = chat_template
        self.special_tokens = special_token_texts(config)
        _add_missing_tokens(backend, config, self.special_tokens)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self._added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self.kind, self.strips_leading_space = vocabulary_kind(backend)
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id; ids below it may be missing."""
        base = max(self.backend.get_vocab(with_added_tokens=False).values(), default=-1)
        return max(base, max(self._added, default=-1)) + 1

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json, and the files beside it that say more.

        These are tokenizer_config.json, special_tokens_map.json and chat_template.jinja. Raises
        ModelLoadError naming a file that is missing or unreadable.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(
                f"{path} does not exist; convert the model's tokenizer with transformers "
                "(AutoTokenizer.from_pretrained(...).save_pretrained(...))"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{path} cannot be read: {error}") from None
        config = read_settings(folder)
        return cls(backend, config, _find_chat_template(folder, config))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of text; special tokens written out in it become their ids.

        Raises BadRequest for a lone surrogate, which no UTF-8 text contains.
        """
        return self.encode_all([text], add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text, as by encode; several cost less together than one by one."""
        for text in texts:
            _check_encodable(text)
        # The batch form lets other threads run meanwhile, and keeps no offsets.
        encodings = self.backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [list(encoding.ids) for encoding in encodings]

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of ids; ids outside the vocabulary have none, invalid UTF-8 becomes U+FFFD.

        spaces_between_special_tokens is taken for compatibility: as in transformers, vocabularies
        of the tokenizers library carry their own spaces and none are put in. In a sentencepiece
        vocabulary an invalid run of byte tokens gives one U+FFFD per broken sequence, not one per
        token.
        """
        if self.kind is VocabularyKind.OTHER:
            known = [i for i in ids if 0 <= i < self.vocab_size]
            return self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        data = self.joined_bytes(ids, skip_special_tokens)
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def joined_bytes(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        """The bytes of ids one after the other, special tokens left out if asked."""
        if skip_special_tokens:
            special = self.special_ids
            return b"".join([self.token_bytes(i) for i in ids if i not in special])
        return b"".join([self.token_bytes(i) for i in ids])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of token_id, which may be part of a character; b"" for an unknown id."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._compute_bytes(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """token_bytes as text, with U+FFFD for parts of characters."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def min_num_tokens(self, text: str) -> int:
        """A lower bound of len(encode(text)), at next to no cost: to refuse what cannot fit."""
        data = text.encode("utf-8", errors="surrogatepass")
        longest, droppable = self._token_bound
        return len(data.translate(None, droppable)) // longest

    @property
    def max_token_bytes(self) -> int:
        """A text of N UTF-8 bytes has at least N / max_token_bytes tokens.

        Bytes that the vocabulary has no token for do not count (min_num_tokens leaves them out).
        Where a token may swallow any amount of text (fused unknown tokens, added tokens that eat
        the white space around them, normalizers that drop text) it is sys.maxsize: empty, but true.
        """
        return self._token_bound[0]

    @cached_property
    def _token_bound(self) -> tuple[int, bytes]:
        """max_token_bytes, and the bytes that vocabularies like SmolLM's have no token for."""
        swallows = any(token.lstrip or token.rstrip for token in self._added.values())
        factor = _shrink_factor(normalizer_steps(self.backend))
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        droppable = droppable_bytes(self.backend, self.kind, vocabulary)
        if swallows or factor is None or droppable is None or (droppable and factor > 1):
            return sys.maxsize, b""
        if self.kind is VocabularyKind.SENTENCEPIECE:
            # A written-out U+2581 (3 bytes) and a space (1 byte) give the same token.
            longest = max(len(text.encode("utf-8")) for text in vocabulary)
        else:
            added = max((len(t.content.encode("utf-8")) for t in self._added.values()), default=1)
            longest = max(added, max(len(text) for text in vocabulary))
        return max(1, longest) * factor, bytes(sorted(droppable))

    def _compute_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < _ID_LIMIT:
            return b""
        text = self.backend.id_to_token(token_id)
        if text is None:
            return b""
        if self.kind is VocabularyKind.SENTENCEPIECE:
            return sentencepiece_bytes(text)
        if self.kind is VocabularyKind.BYTE_LEVEL and token_id not in self._added:
            return byte_level_bytes(text)
        if self.kind is VocabularyKind.OTHER and token_id not in self._added:
            return sentencepiece_bytes(text)
        return text.encode("utf-8")

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)


def _check_encodable(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text contains a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}; send valid Unicode"
        ) from None


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings beside tokenizer.json. Raises ModelLoadError for an unreadable file."""
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read_json(folder / "special_tokens_map.json")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(parsed).__name__}")
    return parsed


def _find_chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def special_token_texts(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, ... as strings: those the config sets."""
    names = (
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    )
    found = {name: _content(config.get(name)) for name in names}
    return {name: text for name, text in found.items() if text is not None}


def _content(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_missing_tokens(backend: Backend, config: dict[str, Any], named: dict[str, str]) -> None:
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    for _, fields in sorted(listed.items(), key=lambda entry: int(entry[0])):
        if fields["content"] not in known:
            known.add(fields["content"])
            backend.add_tokens([_added_token(fields, fields["content"] in named.values())])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    for entry in [*named.values(), *extra]:
        content = _content(entry)
        if content is not None and content not in known:
            known.add(content)
            fields = entry if isinstance(entry, dict) else {"content": content}
            backend.add_tokens([_added_token(fields, True)])


def _added_token(fields: dict[str, Any], special: bool) -> AddedToken:
    special = special or bool(fields.get("special", False))
    return AddedToken(
        fields["content"],
        single_word=bool(fields.get("single_word", False)),
        lstrip=bool(fields.get("lstrip", False)),
        rstrip=bool(fields.get("rstrip", False)),
        normalized=bool(fields.get("normalized", not special)),
        special=special,
    )


def _shrink_factor(steps: list[dict[str, Any]]) -> int | None:
    """How many times fewer bytes normalized text may have; None: no bound."""
    factor = 1
    for step in steps:
        if step["type"] == "NFC":
            factor *= NFC_SHRINK
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None or len(pattern.encode()) > len(step["content"].encode()):
                return None
        elif step["type"] not in _GROWING_NORMALIZERS:
            return None
    return factor
