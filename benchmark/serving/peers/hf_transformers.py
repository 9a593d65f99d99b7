"""transformers' generate in process: bf16, one static batch for each case."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

from ..answers import Peer
from ..contestants import Contestant, Setup
from ..worker_peer import WorkerPeer

_START_SECONDS = 180.0
_WORKER = Path(__file__).with_name("transformers_worker.py")


def contestants(setup: Setup) -> list[Contestant]:
    """Return the one contestant; without a venv of its own it runs in ours."""
    own = setup.peers_dir / "transformers/bin/python"
    python = own if own.is_file() else Path(sys.executable)
    installed = own.is_file() or importlib.util.find_spec("transformers") is not None
    missing = None if installed else "the package transformers is not installed"
    start = partial(_start, setup, python)
    # A static batch shares no prefix: case D would recompute 50,000 tokens.
    name = "transformers bf16"
    return [Contestant(name, "bf16", "ABCEF", setup.bf16_bytes, start, missing)]


def _start(setup: Setup, python: Path) -> Peer:
    command = [str(python), "-P", str(_WORKER), str(setup.model_folder), str(setup.threads)]
    return WorkerPeer(command, {"HF_HUB_OFFLINE": "1"}, _START_SECONDS)
