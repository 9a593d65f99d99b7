"""Who runs the programs: our server with the tree and without, and peers with OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from constrained_bench.server import running_server
from serving.contestants import Contestant as ServingContestant
from serving.http_peer import HttpPeer

from runtime import OpenAIBackend, RuntimeEndpoint
from runtime.lang.errors import LanguageError

from .programs import CODE, choose_ending, write_code
from .workloads import Workload

TREE, NO_TREE = "tree", "no tree"
POOL_TOKENS = 65_536
_OUR_ABILITIES: tuple[str | None, ...] = (None, "select", "messages", "regex")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running server. backends are by what a workload needs; what is missing cannot run."""

    name: str
    backends: dict[str | None, Any]  # Backends of the language

    def backend_for(self, workload: Workload) -> Any:
        """Return a backend, or None if workload needs what this server cannot do."""
        return self.backends.get(workload.needs)


@contextmanager
def our_servers(threads: int, *, with_no_tree: bool = True) -> Iterator[list[Contestant]]:
    """Our server with the cache, and if asked for also with --disable-radix-cache."""
    variants: list[tuple[str, list[str]]] = [(TREE, [])]
    if with_no_tree:
        variants.append((NO_TREE, ["--disable-radix-cache"]))
    with ExitStack() as stack:
        found = []
        for name, flags in variants:
            pool = ["--max-total-tokens", str(POOL_TOKENS)]
            server = stack.enter_context(running_server(threads, [*pool, *flags]))
            endpoint = stack.enter_context(RuntimeEndpoint(server.url))
            if name == NO_TREE:
                # Computing a prefix beforehand would be work for nothing there.
                endpoint.abilities = replace(endpoint.abilities, keeps_prefixes=False)
            found.append(Contestant(name, dict.fromkeys(_OUR_ABILITIES, endpoint)))
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
        scoring = OpenAIBackend(
            running.model, **settings, api="completions", extra_fields=True, echo_logprobs=True
        )
        formed = _FormedOutputs(running.model, **settings, api="completions", extra_fields=True)
        for backend in (plain, messages, scoring, formed):
            stack.callback(backend.close)
        backends: dict[str | None, Any] = {None: plain, "messages": messages}
        if _gives_scores(scoring):
            backends["select"] = scoring
        if _follows_regex(formed):
            backends["regex"] = formed
        yield Contestant(peer.name, backends)


class _FormedOutputs(OpenAIBackend):
    """Asks for a regular expression as vLLM does."""

    async def _create(self, resource: str, **fields: Any) -> Any:  # as there
        extra = dict(fields.pop("extra_body", {}))
        if "regex" in extra:
            extra["structured_outputs"] = {"regex": extra.pop("regex")}
        return await super()._create(resource, **fields, extra_body=extra)


def _follows_regex(backend: OpenAIBackend) -> bool:
    """Whether the server holds to a regular expression; others pass over the field."""
    try:
        state = write_code.run(backend=backend)
        return re.fullmatch(CODE, state["code"]) is not None
    except LanguageError:
        return False


def _gives_scores(backend: OpenAIBackend) -> bool:
    """Whether the server's completions have the log-probabilities of the prompt, with echo."""
    arguments = {"examples": "One, two.", "scene": " Three,", "endings": [" four.", " blue."]}
    try:
        choose_ending.run(**arguments, backend=backend)
    except LanguageError:
        return False
    return True


def usable_peers(known: Sequence[ServingContestant]) -> list[ServingContestant]:
    """Those whose weights have our form."""
    return [one for one in known if one.weights == "bf16" and not one.is_ours]
