"""Finds SGLang's radix_cache module: installed, or in a folder that holds a copy of its source.

A copy without its dependencies cannot be imported as a package. From a folder, the modules that
run in the benchmark (the cache, its base, parameters, eviction strategies, event recorder) are
loaded as they are; every other sglang module they name is an empty stand-in that gives a new class
for any name. Nothing of the timed code is replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_CACHE_MODULE = "sglang.srt.mem_cache.radix_cache"
_REAL_MODULES = {
    _CACHE_MODULE,
    "sglang.srt.mem_cache.base_prefix_cache",
    "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.evict_policy",
    "sglang.srt.mem_cache.events",
    "sglang.srt.mem_cache.utils",
}


def load_radix_cache(source: Path | None) -> ModuleType:
    """Return the module; ImportError says what is missing.

    source is a folder that holds sglang/; None means the installed package.
    """
    if source is None:
        return importlib.import_module(_CACHE_MODULE)
    if not (source / "sglang" / "srt" / "mem_cache" / "radix_cache.py").is_file():
        raise ImportError(f"{source} holds no sglang/srt/mem_cache/radix_cache.py")
    finder = _SourceFinder(source)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(_CACHE_MODULE)
    finally:
        sys.meta_path.remove(finder)


class _SourceFinder(MetaPathFinder):
    def __init__(self, source: Path) -> None:
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "sglang" and not fullname.startswith("sglang."):
            return None
        if fullname in _REAL_MODULES:
            file = self._source.joinpath(*fullname.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, _StandInLoader(), is_package=True)


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in has no code."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
