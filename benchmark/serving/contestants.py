"""Who takes part: our server in its variants, and the peers that are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .answers import Peer

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all contestants share.

    pool_tokens is the size of our KV pool; slot_tokens is the longest context of one request on a
    peer that gives each of its slots an equal part.
    """

    model_folder: Path
    gguf_file: Path | None
    peers_dir: Path
    threads: int
    pool_tokens: int
    server_flags: tuple[str, ...] = ()
    slot_tokens: int = 2_560

    @property
    def bf16_bytes(self) -> int:
        """Bytes of the model's weights in bfloat16."""
        return (self.model_folder / "model.safetensors").stat().st_size


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of the table.

    weights names the form of its weights: only rows of one form are compared. weight_bytes is what
    one pass must read of them. missing says why it cannot start, None if it can. start returns the
    running peer or raises RuntimeError.
    """

    name: str
    weights: str
    cases: str
    weight_bytes: float
    start: Callable[[], Peer]
    missing: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this is our own server."""
        return self.name.split()[0] == OURS


def all_contestants(setup: Setup, *, with_peers: bool) -> list[Contestant]:
    """Return our variants, then those of every known peer, installed or not."""
    from .peers import hf_transformers, llama_cpp, openvino, ours, vllm_cpu

    found = ours.contestants(setup)
    if with_peers:
        for module in (openvino, llama_cpp, vllm_cpu, hf_transformers):
            found += module.contestants(setup)
    return found
