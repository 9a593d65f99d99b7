"""The trees that are timed, behind one interface: ours and SGLang's RadixCache.

Before each timed call its prompt is made anew in the form that tree wants (int32 array, array of
int64), as a prompt that has just come in. A tree keeps a copy of what is inserted: ours makes it
itself, RadixCache is given one by its caller (its own checkpoint() does so), and both are timed.
Slots are the numbers 0, 1, 2, ...; taking them back costs nothing in either.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from runtime.srt.memory.radix_tree import RadixTree

from .workloads import MAX_LENGTH, Tokens

Call = Callable[[], object]


class TimedTree(Protocol):
    """Gives out calls that are ready to be timed."""

    name: str

    def insert_call(self, tokens: Tokens) -> Call: ...
    def match_call(self, tokens: Tokens) -> Call: ...
    def match_and_read_call(self, tokens: Tokens) -> Call: ...
    def evict_call(self, num_tokens: int) -> Call: ...


class OurTree:
    """runtime.srt.memory.radix_tree."""

    name = "ours"

    def __init__(self, policy: str) -> None:
        self.tree = RadixTree(page_size=1, free_slots=lambda slots: None, policy=policy)
        self._slots = np.arange(MAX_LENGTH, dtype=np.int32)

    def insert_call(self, tokens: Tokens) -> Call:
        prompt, slots = tokens.copy(), self._slots[: len(tokens)]
        return lambda: self.tree.insert(prompt, slots)

    def match_call(self, tokens: Tokens) -> Call:
        prompt = tokens.copy()
        return lambda: self.tree.match_prefix(prompt)

    def match_and_read_call(self, tokens: Tokens) -> Call:
        prompt = tokens.copy()
        return lambda: self.tree.match_prefix(prompt).slots()

    def evict_call(self, num_tokens: int) -> Call:
        return lambda: self.tree.evict(num_tokens)


class _NoAllocator:
    device = "cpu"

    def free_segment(self, slots: object, start_pos: int) -> None:
        """Slots are only numbers here."""


class RadixCachePeer:
    """RadixCache on CPU tensors; module is its radix_cache, see radix_cache_module."""

    name = "sglang"

    def __init__(self, module: ModuleType, policy: str) -> None:
        import torch

        # The peer is not typed for us: it may be a copy loaded from a folder.
        self._module: Any = module
        parameters = module.CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=_NoAllocator(),
            page_size=1,
            eviction_policy=policy,
        )
        self._cache: Any = module.RadixCache(parameters)
        self._slots = torch.arange(MAX_LENGTH, dtype=torch.int64)

    def insert_call(self, tokens: Tokens) -> Call:
        prompt, slots = array("q", tokens.tolist()), self._slots[: len(tokens)]
        module, cache = self._module, self._cache

        def copy_and_insert() -> object:
            key = module.RadixKey(prompt[: len(prompt)])
            return cache.insert(module.InsertParams(key=key, value=slots))

        return copy_and_insert

    def match_call(self, tokens: Tokens) -> Call:
        parameters = self._module.MatchPrefixParams(key=self._key(tokens))
        return lambda: self._cache.match_prefix(parameters)

    def match_and_read_call(self, tokens: Tokens) -> Call:
        parameters = self._module.MatchPrefixParams(key=self._key(tokens))
        cache = self._cache

        def match_and_read() -> object:
            return cache.path_device_indices(cache.match_prefix(parameters).last_device_node)

        return match_and_read

    def evict_call(self, num_tokens: int) -> Call:
        parameters = self._module.EvictParams(num_tokens=num_tokens)
        return lambda: self._cache.evict(parameters)

    def _key(self, tokens: Tokens) -> object:
        return self._module.RadixKey(array("q", tokens.tolist()))
