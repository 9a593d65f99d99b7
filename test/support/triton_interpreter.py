"""Runs Triton kernels on CPU tensors in an ordinary process, by Triton's own interpreter.

The environment variable TRITON_INTERPRET works only if set before the first import of triton, and
then nothing can be compiled. Here the kernels stay what they are, and a launch or a call of a
helper inside one is sent to the interpreter while the context is open.

What the interpreter does not show: bf16 dots are wrong in it (test in f32 and f16), casts from f32
to bf16 truncate, reads outside a tensor pass silently (see guarded_tensors.py), and programs run
one after another, so races do not exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

# Its globals hold triton.language.core, so that patching for it covers the standard library.
_STANDARD_LIBRARY_FUNCTION: Any = tl.standard.sum
_PATCH_TENSOR: Any = interpreter._patch_lang_tensor


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    """Kernel launches on CPU tensors are interpreted until the context closes."""
    if triton.knobs.runtime.interpret:
        yield
        return
    with (
        mock.patch.object(JITFunction, "run", _launch),
        mock.patch.object(JITFunction, "__call__", _call_inside_a_kernel),
        mock.patch.object(interpreter, "_patch_lang_tensor", _patch_tensor),
    ):
        yield


@functools.cache
def _interpreted(function: Callable[..., Any]) -> Any:
    return interpreter.InterpretedFunction(function)


def _launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    # The scope puts triton.language back as it was, so that kernels can be compiled afterwards.
    scope = interpreter._patch_lang(_STANDARD_LIBRARY_FUNCTION.fn)
    try:
        _interpreted(self.fn).run(*args, grid=grid, warmup=warmup, **kwargs)
    finally:
        scope.restore()


def _call_inside_a_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
    # Not InterpretedFunction.__call__: it patches triton.language once more and leaves it so.
    function: Callable[..., Any] = _interpreted(self.fn).rewrite()
    return function(*args, **kwargs)


def _patch_tensor(tensor: Any, scope: Any) -> None:
    _PATCH_TENSOR(tensor, scope)
    # Triton 3.6 makes an int of an array of one element, which NumPy 2.4 refuses.
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
