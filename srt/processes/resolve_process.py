"""Where the model's files lie; a short-lived child finds and, if due, converts them.

In a process of its own because a conversion imports torch and takes memory that the serving
processes should not keep.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ..errors import ServingError
from ..loading.gguf_blocks import holds_blocks
from ..loading.resolve import find_resolved, resolve_model
from ..server_args import ServerArgs
from .child import ChildSpec


class ResolvedFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Where model and tokenizer lie, or why they cannot be had."""

    folder: str = ""
    tokenizer_folder: str = ""
    error: str | None = None


def folders_at_hand(args: ServerArgs) -> ResolvedFolders | None:
    """Return the folders if they are there already, so that no child is needed to make them."""
    keep_blocks = args.quantization == "gguf"
    folder = find_resolved(args.model_path, args.dtype, keep_blocks)
    if folder is None:
        folder = Path(args.model_path).expanduser()
        if keep_blocks and not holds_blocks(folder):
            return None
    tokenizer_folder = folder if args.tokenizer_path is None else Path(args.tokenizer_path)
    if (folder / "config.json").is_file() and (tokenizer_folder / "tokenizer.json").is_file():
        return ResolvedFolders(folder=str(folder), tokenizer_folder=str(tokenizer_folder))
    return None


def run(spec: ChildSpec) -> None:
    """Write ResolvedFolders as JSON to stdout."""
    args = spec.args
    try:
        folder = resolve_model(args.model_path, args.dtype, args.quantization == "gguf")
        tokenizer_folder = folder
        if args.tokenizer_path is not None:
            tokenizer_folder = _tokenizer_folder(args.tokenizer_path)
        result = ResolvedFolders(folder=str(folder), tokenizer_folder=str(tokenizer_folder))
    except ServingError as error:
        result = ResolvedFolders(error=error.message)
    sys.stdout.buffer.write(msgspec.json.encode(result))
    sys.stdout.buffer.flush()


def _tokenizer_folder(tokenizer_path: str) -> Path:
    path = Path(tokenizer_path).expanduser()
    if (path / "tokenizer.json").is_file() or (path / "tokenizer_config.json").is_file():
        return path
    return resolve_model(tokenizer_path, flag="--tokenizer-path")
