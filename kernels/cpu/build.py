"""Compiles the CPU engine into one shared library, once, and keeps it in the user's cache.

The library's name is a hash of the sources, the compiler's version and its flags, so a changed
source or compiler builds anew and two processes that build at once cannot harm each other. Its
last bytes are a digest of the others: a library that was damaged is built again. Every
instruction set is compiled in, whatever this processor has; the choice is made at run time.

Sanitizer build: RUNTIME_CPU_SANITIZE=address,undefined builds a library of its own, which whoever
has that variable set gets; `make kernels-asan` runs the tests with it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).resolve().parent
_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror=return-type", "-Wno-psabi", "-Wno-unused-function"]
# gcc 12 warns about its own AVX-512 headers.
_WARNINGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]
_DIGEST_BYTES = 32  # SHA-256
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mprefer-vector-width=512",
]
_AVX512_BF16 = [*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi"]
_ISA_FLAGS = {
    "isa_avx2": _AVX2,
    "isa_avx512": _AVX512,
    "isa_avx512bf16": _AVX512_BF16,
    "isa_amx": [*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}


class NoCompiler(RuntimeError):
    """There is no C++ compiler on this machine."""


class BuildFailed(RuntimeError):
    """The compiler refused the sources; the text holds its first lines."""


def library_path() -> Path:
    """Return the path of the built library, building it first where it is not cached.

    Raises NoCompiler or BuildFailed.
    """
    compiler = _find_compiler()
    flags = [*_FLAGS, *_sanitize_flags()]
    prefix = "cpu-sanitized" if _sanitize_flags() else "cpu"
    target = _cache_folder() / f"{prefix}-{_build_key(compiler, flags)}.so"
    if not _is_intact(target):
        logger.info("compiling the CPU engine, once for this version; takes about half a minute")
        started = time.monotonic()
        _build(compiler, flags, target)
        logger.info("compiled the CPU engine in %.1f s", time.monotonic() - started)
    return target


def _find_compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise NoCompiler(
        "no C++ compiler found (looked for $CXX, g++, clang++, c++); install g++ 11 or newer, "
        "or choose --attention-backend torch_reference"
    )


def _sanitize_flags() -> list[str]:
    kind = os.environ.get("RUNTIME_CPU_SANITIZE", "")
    if not kind:
        return []
    # A finding ends the process, so that no test passes over it.
    stop = "-fno-sanitize-recover=all"
    return [f"-fsanitize={kind}", stop, "-fno-omit-frame-pointer", "-g1", "-O1"]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"
    folder = root / "radix-runtime"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildFailed(
            f"the cache folder {folder} cannot be made ({error}); set XDG_CACHE_HOME to one "
            "that can"
        ) from None
    return folder


def _is_intact(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    end = len(content) - _DIGEST_BYTES
    return end > 0 and hashlib.sha256(content[:end]).digest() == content[end:]


def _build_key(compiler: str, flags: list[str]) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    digest = hashlib.sha256()
    digest.update(
        "\n".join([version.stdout, platform.machine(), *flags, repr(_ISA_FLAGS)]).encode()
    )
    for source in sorted([*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def _translation_units() -> list[Path]:
    units = sorted(_FOLDER.glob("*.cpp"))
    if platform.machine() in ("x86_64", "AMD64"):
        return units
    return [unit for unit in units if unit.stem not in _ISA_FLAGS]


def _build(compiler: str, flags: list[str], target: Path) -> None:
    try:
        scratch = tempfile.TemporaryDirectory(dir=target.parent)
    except OSError as error:
        raise BuildFailed(
            f"the cache folder {target.parent} is not writable ({error}); set XDG_CACHE_HOME to "
            "one that is"
        ) from None
    with scratch as folder:
        units = _translation_units()
        # The large units first, so that none of them ends alone.
        units.sort(key=lambda unit: unit.stem not in _ISA_FLAGS)
        objects = [Path(folder) / f"{unit.stem}.o" for unit in units]

        def compile_unit(unit: Path, output: Path) -> None:
            isa = _ISA_FLAGS.get(unit.stem, [])
            _run([compiler, *flags, *_WARNINGS, *isa, "-c", str(unit), "-o", str(output)])

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(compile_unit, units, objects))
        linked = Path(folder) / "linked.so"
        _run([compiler, *flags, "-shared", *map(str, objects), "-o", str(linked), "-lpthread"])
        # The loader reads no further than the headers say: what follows does not matter to it.
        with linked.open("ab") as file:
            file.write(hashlib.sha256(linked.read_bytes()).digest())
        os.replace(linked, target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr[:4000]}")


if __name__ == "__main__":
    print(library_path())
