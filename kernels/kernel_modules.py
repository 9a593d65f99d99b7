"""kernel_module: the Triton kernels by name, loaded when somebody is about to use them.

triton is an optional package, and importing it costs a second: nothing else imports
runtime.kernels.triton.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class KernelsMissing(Exception):
    """triton, or the family of kernels named in the text, is not installed."""


def kernel_module(name: str) -> ModuleType:
    """runtime.kernels.triton.<name>. Raises KernelsMissing."""
    try:
        return importlib.import_module(f"runtime.kernels.triton.{name}")
    except ModuleNotFoundError as error:
        raise KernelsMissing(f"the kernels in {name} cannot be loaded: {error}") from error
