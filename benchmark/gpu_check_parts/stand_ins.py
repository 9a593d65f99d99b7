"""Packages that a bare machine may lack, and the little of them that the check needs.

The engine's messages are msgspec structs and its stop patterns are compiled by regex. Nothing here
is sent anywhere or stopped by a pattern, so plain classes and the standard library's re do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import types
from typing import Any


class Struct:
    """A subclass becomes a dataclass; msgspec's other options concern encoding alone."""

    def __init_subclass__(cls, frozen: bool = False, kw_only: bool = False, **_: Any) -> None:
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


def install_stand_ins() -> list[str]:
    """Put stand-ins where a package is absent; return a line about each."""
    lines = []
    if not is_installed("msgspec"):
        module: Any = types.ModuleType("msgspec")
        module.Struct = Struct
        sys.modules["msgspec"] = module
        lines.append("msgspec is not installed: plain classes stand in for its structs")
    if not is_installed("regex"):
        sys.modules["regex"] = re
        lines.append("regex is not installed: the module re stands in for it")
    return lines


def is_installed(package: str) -> bool:
    """Whether package could be imported."""
    return package in sys.modules or importlib.util.find_spec(package) is not None
