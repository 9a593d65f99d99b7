"""llama.cpp's server, over the bundled Q4_1 file and bf16 and Q8_0 files made from it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ..answers import Peer
from ..child import Child, free_port
from ..contestants import Contestant, Setup
from ..http_peer import HttpPeer, wait_until_healthy
from .gguf_size import tensor_bytes

_START_SECONDS = 60.0
_NUM_SLOTS = 32


def contestants(setup: Setup) -> list[Contestant]:
    """Return one contestant for each form of the weights.

    The quantised ones run only the single stream: batches are no faster with them.
    """
    binary = Path(os.environ.get("LLAMA_SERVER") or setup.peers_dir / "llama.cpp/bin/llama-server")
    files = {
        "bf16": (setup.peers_dir / "gguf/bf16.gguf", "ABCDEF"),
        "8-bit": (setup.peers_dir / "gguf/q8_0.gguf", "AF"),
        "Q4_1": (setup.gguf_file or setup.peers_dir / "gguf/q4_1.gguf", "AF"),
    }
    found = []
    for weights, (file, cases) in files.items():
        missing = next((f"no file {path}" for path in (binary, file) if not path.is_file()), None)
        num_bytes = 0 if missing else tensor_bytes(file)
        start = partial(_start, setup, binary, file)
        label = {"8-bit": "Q8_0"}.get(weights, weights)
        found.append(Contestant(f"llama.cpp {label}", weights, cases, num_bytes, start, missing))
    return found


def _start(setup: Setup, binary: Path, file: Path) -> Peer:
    port, threads = free_port(), str(setup.threads)
    command = [str(binary), "-m", str(file), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", threads, "-tb", threads]
    command += ["-np", str(_NUM_SLOTS), "-c", str(_NUM_SLOTS * setup.slot_tokens)]
    command += ["-b", "2048", "-ub", "512", "-cb", "--jinja"]
    child = Child(command)
    base_url = f"http://127.0.0.1:{port}"
    wait_until_healthy(child, base_url, _START_SECONDS)
    return HttpPeer(child, base_url, "model", {"cache_prompt": True})
