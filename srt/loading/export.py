"""Write any model that --model-path takes as a Hugging Face style folder, for tools that need one.

python -m runtime.srt.loading.export MODEL_PATH OUT_FOLDER [--dtype float32]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ..errors import ModelLoadError
from .resolve import resolve_model


def export(model_path: str, out_folder: Path, dtype: str) -> None:
    """Copy the resolved folder's files to out_folder, which must be absent or empty."""
    if out_folder.exists() and any(out_folder.iterdir()):
        raise ModelLoadError(f"{out_folder} is not empty; name a new folder")
    source = resolve_model(model_path, dtype)
    out_folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.is_file():
            shutil.copyfile(file, out_folder / file.name)


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime.srt.loading.export", description=export.__doc__
    )
    parser.add_argument("model_path", help="folder, GGUF file, hub id or bundled model")
    parser.add_argument("out_folder", type=Path, help="folder to write; absent or empty")
    parser.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        default="auto",
        help="type of weights converted from GGUF (default: auto, which is bfloat16)",
    )
    args = parser.parse_args(argv)
    try:
        export(args.model_path, args.out_folder, args.dtype)
    except ModelLoadError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
