"""Who runs the programs: our server with the tree and without, and peers with OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from constrained_bench.server import running_server
from serving.contestants import Contestant as ServingContestant
from serving.http_peer import HttpPeer

from runtime import OpenAIBackend, RuntimeEndpoint

from .workloads import Workload

TREE, NO_TREE = "tree", "no tree"
POOL_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running server. backends are by what a workload needs; what is missing cannot run."""

    name: str
    backends: dict[str | None, Any]  # Backends of the language

    def backend_for(self, workload: Workload) -> Any:
        """Return a backend, or None if workload needs what this server cannot do."""
        return self.backends.get(workload.needs)


@contextmanager
def our_servers(threads: int) -> Iterator[list[Contestant]]:
    """Our server twice: with the cache, and with --disable-radix-cache."""
    with ExitStack() as stack:
        found = []
        for name, flags in ((TREE, []), (NO_TREE, ["--disable-radix-cache"])):
            pool = ["--max-total-tokens", str(POOL_TOKENS)]
            server = stack.enter_context(running_server(threads, [*pool, *flags]))
            endpoint = stack.enter_context(RuntimeEndpoint(server.url))
            if name == NO_TREE:
                # Computing a prefix beforehand would be work for nothing there.
                endpoint.abilities = replace(endpoint.abilities, keeps_prefixes=False)
            found.append(Contestant(name, dict.fromkeys((None, "select", "messages"), endpoint)))
        yield found


@contextmanager
def peer_server(peer: ServingContestant) -> Iterator[Contestant]:
    """One peer with its own prefix cache; raises RuntimeError, saying why, if it cannot be used."""
    if peer.missing is not None:
        raise RuntimeError(f"not installed ({peer.missing})")
    running = peer.start()
    with ExitStack() as stack:
        stack.callback(running.stop)
        if not isinstance(running, HttpPeer):
            raise RuntimeError("has no server: programs cannot call it while they run")
        settings: dict[str, Any] = {"base_url": running.base_url + "/v1", "api_key": "none"}
        plain = OpenAIBackend(running.model, **settings, api="completions", extra_fields=True)
        messages = OpenAIBackend(running.model, **settings, extra_fields=True)
        stack.callback(messages.close)
        stack.callback(plain.close)
        yield Contestant(peer.name, {None: plain, "messages": messages})


def usable_peers(known: Sequence[ServingContestant]) -> list[ServingContestant]:
    """Those whose weights have our form."""
    return [one for one in known if one.weights == "bf16" and not one.is_ours]
