"""Our server, in bfloat16 and with each kind of quantised weights."""

from __future__ import annotations

import re
import sys
from functools import partial

from ..answers import Peer
from ..child import Child
from ..contestants import OURS, Contestant, Setup
from ..http_peer import HttpPeer
from .gguf_size import tensor_bytes

_READY = re.compile(r"ready: (http://\S+)")
_MODEL = "smollm2-135m-instruct"
_START_SECONDS = 300.0  # the first start may compile the kernels


def contestants(setup: Setup) -> list[Contestant]:
    """Return our variants; quantised ones leave out the cases that do not depend on weights."""
    q4_bytes = tensor_bytes(setup.gguf_file) if setup.gguf_file else setup.bf16_bytes
    w8a8, gguf = ("--quantization", "w8a8"), ("--quantization", "gguf")
    return [
        Contestant(f"{OURS} bf16", "bf16", "ABCDEF", setup.bf16_bytes, partial(_start, setup, ())),
        Contestant(
            f"{OURS} w8a8", "8-bit", "ABCDF", setup.bf16_bytes / 2, partial(_start, setup, w8a8)
        ),
        Contestant(f"{OURS} gguf", "Q4_1", "ABCF", q4_bytes, partial(_start, setup, gguf)),
    ]


def _start(setup: Setup, flags: tuple[str, ...]) -> Peer:
    command = [sys.executable, "-m", "runtime.launch_server", "--model-path", _MODEL]
    command += ["--host", "127.0.0.1", "--port", "0", "--threads", str(setup.threads)]
    command += ["--max-total-tokens", str(setup.pool_tokens), *flags, *setup.server_flags]
    child = Child(command)
    try:
        ready = child.wait_for_line(_READY, _START_SECONDS)
    except BaseException:
        child.stop()
        raise
    return HttpPeer(child, ready[1], _MODEL)
