"""From specs to deltas: prepares, runs side by side, and collects the requests of one body."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import cast

from ..errors import BadRequest, EngineDied, Overloaded
from ..messages import GenerateRequest, PositionLogprobs, Progress, TextDelta
from ..processes.engine_client import AtOnce, EngineClient
from ..processes.generation_spec import GenerationSpec
from .auth import current_tenant
from .errors import error_from_finish
from .logprob_volume import check_volume

MAX_REQUESTS_PER_BODY = 4096  # prompts x samples


class Completion:
    """All that one request has produced so far."""

    __slots__ = (
        "finished_seconds",
        "output_logprobs",
        "progress",
        "prompt_logprobs",
        "queue_seconds",
        "request",
        "text",
        "token_ids",
    )

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.text = ""
        self.token_ids: list[int] = []
        self.prompt_logprobs: list[PositionLogprobs] | None = None
        self.output_logprobs: list[PositionLogprobs] = []
        self.progress: Progress | None = None
        self.queue_seconds: float | None = None
        self.finished_seconds: float | None = None

    def add(self, delta: TextDelta) -> None:
        """Take in the next delta of this request."""
        progress = delta.progress
        self.text += delta.text
        self.token_ids += progress.token_ids
        if progress.prompt_logprobs is not None:
            self.prompt_logprobs = progress.prompt_logprobs
        if progress.output_logprobs is not None:
            self.output_logprobs += progress.output_logprobs
        if progress.queue_seconds is not None:
            self.queue_seconds = progress.queue_seconds
        if progress.finish is not None:
            self.finished_seconds = time.monotonic()
        self.progress = progress

    @property
    def dropped_keywords(self) -> tuple[str, ...]:
        """JSON pointers of what the schema asks and the output need not keep (strict: false)."""
        grammar = self.request.grammar
        return () if grammar is None else grammar.prepared.dropped

    @property
    def last(self) -> Progress:
        """The counters of the last delta; there is one once the request was collected."""
        assert self.progress is not None, f"request {self.request.rid} has no delta"
        return self.progress


class OpenBodies:
    """Request ids of the bodies being answered: an abort of a body's id reaches all its parts."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}

    def preparing(self, rid: str, specs: Sequence[GenerationSpec]) -> AbstractContextManager[None]:
        """Know the requests to come of specs, which have rids, under the body's rid."""
        return self._known(rid, [spec.rid for spec in specs if spec.rid is not None])

    def register(
        self, rid: str, requests: Sequence[GenerateRequest]
    ) -> AbstractContextManager[None]:
        """Know the requests under the body's rid while the context lasts."""
        return self._known(rid, [request.rid for request in requests])

    @contextmanager
    def _known(self, rid: str, parts: list[str]) -> Iterator[None]:
        if rid in self._parts:
            raise BadRequest(
                f"a request with rid {rid!r} is still open; choose another or leave it out",
                param="rid",
            )
        self._parts[rid] = parts
        try:
            yield
        finally:
            del self._parts[rid]

    def parts(self, rid: str) -> list[str]:
        """Return the ids of the requests that rid stands for, itself if it is no open body's."""
        return self._parts.get(rid, [rid])


async def prepare_all(
    client: EngineClient, specs: Sequence[GenerationSpec]
) -> list[list[GenerateRequest]]:
    """Prepare every spec before any is sent, so that one bad prompt costs the engine nothing.

    Returns one list per spec, of one request per sample. Raises Overloaded unless the engine is up.
    """
    if client.status == "starting":
        raise Overloaded("the server is still starting; try again when /health answers 200")
    if client.status == "draining":
        raise Overloaded("the server is shutting down; try another one")
    if client.status == "dead":
        raise EngineDied("the engine has ended; the server is going down")
    num_requests = sum(max(spec.sampling.n, 1) for spec in specs)
    if num_requests > MAX_REQUESTS_PER_BODY:
        raise BadRequest(
            f"the body asks for {num_requests} completions (prompts times n); "
            f"at most {MAX_REQUESTS_PER_BODY} are taken in one",
            param="n",
        )
    prepared = []
    tenant = current_tenant.get()
    for spec in specs:
        prepared.append(await client.prepare(dataclasses.replace(spec, tenant=tenant)))
        await asyncio.sleep(0)  # preparing a short prompt does not let others in by itself
    requests = [request for samples in prepared for request in samples]
    check_volume(requests, specs[0].top_logprobs_field)
    return prepared


async def follow(client: EngineClient, request: GenerateRequest) -> AsyncGenerator[TextDelta, None]:
    """Run request and yield its deltas; closing the generator aborts it.

    Raises the error of an abort by the engine; an abort by the client is an ordinary finish.
    """
    async with aclosing(_stream(client, request)) as stream:
        async for delta in stream:
            _raise_abort(delta)
            yield delta


async def follow_all(
    client: EngineClient, requests: Sequence[GenerateRequest], at_once: AtOnce | None = None
) -> AsyncGenerator[tuple[int, TextDelta], None]:
    """Run requests side by side; yield (index, delta) as they come.

    The first failure ends all of them, as does closing the generator. at_once is that of
    EngineClient.stream, for a request that is alone; of several it sees nothing.
    """
    if len(requests) == 1:
        # follow() written out: a generator less on the way of each token.
        async with aclosing(_stream(client, requests[0], at_once)) as only:
            async for delta in only:
                _raise_abort(delta)
                yield 0, delta
        return
    arrivals: asyncio.Queue[tuple[int, TextDelta] | Exception | None] = asyncio.Queue()
    pumps = [
        asyncio.ensure_future(_pump(index, follow(client, request), arrivals))
        for index, request in enumerate(requests)
    ]
    try:
        num_open = len(pumps)
        while num_open:
            arrival = await arrivals.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                num_open -= 1
            else:
                yield arrival
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def collect(client: EngineClient, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Run requests side by side to their end; any failure aborts the rest."""
    completions = [Completion(request) for request in requests]
    async with aclosing(follow_all(client, requests)) as deltas:
        async for index, delta in deltas:
            completions[index].add(delta)
    return completions


def _stream(
    client: EngineClient, request: GenerateRequest, at_once: AtOnce | None = None
) -> AsyncGenerator[TextDelta, None]:
    # The seam promises an iterator; closing it is what aborts the request.
    return cast("AsyncGenerator[TextDelta, None]", client.stream(request, at_once))


def _raise_abort(delta: TextDelta) -> None:
    finish = delta.progress.finish
    if finish is not None and (error := error_from_finish(finish)) is not None:
        raise error


async def _pump(
    index: int,
    stream: AsyncGenerator[TextDelta, None],
    arrivals: asyncio.Queue[tuple[int, TextDelta] | Exception | None],
) -> None:
    try:
        async with aclosing(stream):
            async for delta in stream:
                arrivals.put_nowait((index, delta))
    except Exception as error:  # raised again by the reader, which would wait for ever without it
        arrivals.put_nowait(error)
    else:
        arrivals.put_nowait(None)
