"""The cache of converted GGUF files: one folder per file, state and form, complete or absent.

A conversion happens in a folder of its own that is renamed into place when it is whole, so that
servers starting at once never see half a model: the first to finish wins, the others use that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

from ..errors import ModelLoadError

logger = logging.getLogger(__name__)

# Part of the cache key: raise it whenever a conversion's result changes.
CONVERTER_VERSION = 2
# A conversion that was killed leaves its folder; after a day nobody can still be writing to it.
_STALE_SECONDS = 24 * 3600.0


def cache_folder() -> Path:
    """Where converted models are kept: XDG_CACHE_HOME or ~/.cache, then radix-runtime/models."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    return root / "radix-runtime" / "models"


def find_converted(file: Path, dtype: str, keep_blocks: bool = False) -> Path | None:
    """Return what converted_folder would return, if that folder is there already."""
    folder = cache_folder() / _cache_key(file, _form(dtype, keep_blocks))
    return folder if (folder / "config.json").is_file() else None


def converted_folder(file: Path, dtype: str, keep_blocks: bool = False) -> Path:
    """Return the folder converted from this GGUF file, converting it on first use.

    keep_blocks: quantised matrices stay as they are, and dtype is that of the others.
    """
    if (found := find_converted(file, dtype, keep_blocks)) is not None:
        return found
    final = cache_folder() / _cache_key(file, _form(dtype, keep_blocks))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(final.parent)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=final.parent))
    except OSError as error:
        raise ModelLoadError(
            f"cannot convert {file}: the cache folder {final.parent} is not writable ({error}); "
            "set XDG_CACHE_HOME to one that is"
        ) from None
    try:
        _convert(file, partial, _weight_dtype(dtype), keep_blocks)
        _publish(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _weight_dtype(dtype: str) -> str:
    return "bfloat16" if dtype == "auto" else dtype


def _form(dtype: str, keep_blocks: bool) -> str:
    weight_dtype = _weight_dtype(dtype)
    return f"blocks-{weight_dtype}" if keep_blocks else weight_dtype


def _cache_key(file: Path, form: str) -> str:
    absolute = file.resolve()
    state = absolute.stat()
    identity = f"{absolute}\n{state.st_size}\n{state.st_mtime_ns}\n{CONVERTER_VERSION}\n{form}"
    return f"{absolute.stem[:80]}-{form}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _convert(file: Path, folder: Path, dtype: str, keep_blocks: bool) -> None:
    # Imported here: a start that finds the cache filled should not pay for gguf and torch.
    from .gguf_folder import write_folder

    started = time.monotonic()
    form = "a folder that keeps its blocks" if keep_blocks else dtype
    logger.info("converting %s to %s; later starts use the cached copy", file.name, form)
    try:
        write_folder(file, folder, dtype, keep_blocks)
    except OSError as error:
        raise ModelLoadError(
            f"cannot convert {file} in {folder.parent}: {error}; free some space or set "
            "XDG_CACHE_HOME to another disk"
        ) from error
    logger.info("converted %s in %.1f s", file.name, time.monotonic() - started)


def _publish(partial: Path, final: Path) -> None:
    try:
        partial.rename(final)
    except OSError:
        # Another process finished the same conversion first; its result equals ours.
        if not (final / "config.json").is_file():
            raise


def _remove_stale(parent: Path) -> None:
    for folder in parent.glob(".partial-*"):
        try:
            is_stale = time.time() - folder.stat().st_mtime > _STALE_SECONDS
        except FileNotFoundError:
            continue
        if is_stale:
            shutil.rmtree(folder, ignore_errors=True)
