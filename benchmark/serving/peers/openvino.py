"""OpenVINO GenAI's continuous batching, in process: bf16 arithmetic, and 8-bit weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..answers import Peer
from ..contestants import Contestant, Setup
from ..worker_peer import WorkerPeer

_START_SECONDS = 120.0
_WORKER = Path(__file__).with_name("openvino_worker.py")


def contestants(setup: Setup) -> list[Contestant]:
    """Return one contestant for each exported model; see benchmark/peers.md for the export."""
    python = setup.peers_dir / "openvino/bin/python"
    found = []
    for label, weights, cases, share in (
        ("bf16", "bf16", "ABCDEF", 1.0),
        ("int8", "8-bit", "ABCF", 0.5),
    ):
        folder = setup.peers_dir / "openvino-models" / label
        needed = (python, folder / "openvino_model.xml", folder / "openvino_tokenizer.xml")
        missing = next((f"no file {path}" for path in needed if not path.is_file()), None)
        start = partial(_start, setup, python, folder)
        num_bytes = setup.bf16_bytes * share
        found.append(Contestant(f"OpenVINO {label}", weights, cases, num_bytes, start, missing))
    return found


def _start(setup: Setup, python: Path, folder: Path) -> Peer:
    command = [str(python), "-P", str(_WORKER), str(folder), str(setup.threads)]
    return WorkerPeer(command, {}, _START_SECONDS)
