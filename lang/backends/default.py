"""Which backend a run uses: the one it names, else the default one."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ProgramError
from .protocol import Backend

_default: Backend | None = None
_of_engines: WeakKeyDictionary[Any, Backend] = WeakKeyDictionary()


def set_default_backend(backend: Any) -> None:  # a Backend, an Engine, or None
    """Let runs that name no backend use this one: a backend or an Engine; None takes it away."""
    global _default
    _default = None if backend is None else _as_backend(backend)


def backend_for(given: Any) -> Backend:
    """given as a Backend, the default one for None; raises ProgramError if there is none."""
    if given is not None:
        return _as_backend(given)
    if _default is None:
        raise ProgramError(
            "there is no backend; give backend=RuntimeEndpoint(url) or backend=Engine(...), or "
            "call set_default_backend"
        )
    return _default


def _as_backend(given: Any) -> Backend:
    # Who has an Engine has imported its module; who has none need not wait for it.
    engine_module = sys.modules.get("runtime.srt.engine")
    if engine_module is not None and isinstance(given, engine_module.Engine):
        from .engine_backend import EngineBackend

        if given not in _of_engines:
            _of_engines[given] = EngineBackend(given)
        return _of_engines[given]
    if not hasattr(given, "abilities"):
        raise ProgramError(
            f"a {type(given).__name__} is no backend; use a RuntimeEndpoint, an Engine or an "
            "OpenAIBackend"
        )
    backend: Backend = given
    return backend
