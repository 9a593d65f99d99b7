"""EngineClient: one iterator per request, an end for each, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import pytest
from support.fake_engine import FakeServer

from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.srt.errors import BadRequest, EngineDied, Overloaded
from runtime.srt.messages import (
    AbortRequest,
    FlushCache,
    GenerateRequest,
    GrammarSource,
    TextDelta,
)
from runtime.srt.processes.engine_client import EngineClient
from runtime.srt.processes.generation_spec import GenerationSpec
from runtime.srt.processes.grammar_service import GrammarService
from runtime.srt.sampling_params import SamplingParams


class Observed:
    """Counts what an observer sees, by request id."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_sent(self, request: GenerateRequest) -> None:
        self.events.append(f"sent {request.rid}")

    def on_delta(self, request: GenerateRequest, delta: TextDelta) -> None:
        finish = delta.progress.finish
        if finish is not None:
            self.events.append(f"{finish.type} {request.rid}")

    def on_lost(self, request: GenerateRequest) -> None:
        self.events.append(f"lost {request.rid}")


def _run(test: Callable[[FakeServer, EngineClient], Awaitable[None]]) -> None:
    async def go() -> None:
        server = FakeServer()
        async with asyncio.timeout(10):
            await test(server, server.client)

    asyncio.run(go())


async def _prepare(client: EngineClient, rid: str, **sampling: Any) -> list[GenerateRequest]:
    params = SamplingParams(**{"max_new_tokens": 4, **sampling})
    return await client.prepare(GenerationSpec(prompt="hello", sampling=params, rid=rid))


def _stream(client: EngineClient, request: GenerateRequest) -> AsyncGenerator[TextDelta, None]:
    return cast("AsyncGenerator[TextDelta, None]", client.stream(request))


async def _text(client: EngineClient, request: GenerateRequest) -> str:
    return "".join([delta.text async for delta in client.stream(request)])


def test_a_stream_yields_up_to_the_finish_and_leaves_nothing_open() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (request,) = await _prepare(client, "a")

        deltas = [delta async for delta in client.stream(request)]

        assert "".join(delta.text for delta in deltas) == "abcd"
        assert [delta.progress.finish is not None for delta in deltas] == [False] * 3 + [True]
        assert client.num_open_requests == 0
        assert not client.is_open("a")
        assert server.engine.aborted == []

    _run(test)


def test_leaving_a_stream_aborts_its_request_at_once_and_holds_its_id_until_the_end() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        observed = Observed()
        client.observers.append(observed)
        (request,) = await _prepare(client, "a")
        async with aclosing(_stream(client, request)) as stream:
            await anext(stream)
        assert server.engine.aborted == ["a"]
        assert client.num_open_requests == 0

        with pytest.raises(BadRequest, match="open"):
            await _prepare(client, "a")
        await asyncio.sleep(0.01)  # the engine answers the abort

        assert await _text(client, (await _prepare(client, "a"))[0]) == "abcd"
        assert observed.events == ["sent a", "abort a", "sent a", "length a"]

    _run(test)


def test_a_cancelled_task_aborts_its_request() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        server.engine.hold = True
        (request,) = await _prepare(client, "a")
        task = asyncio.ensure_future(_text(client, request))
        await asyncio.sleep(0)

        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert server.engine.aborted == ["a"]

    _run(test)


def test_the_same_id_twice_is_refused_while_the_first_is_open() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (first,) = await _prepare(client, "a")
        (second,) = await _prepare(client, "a")  # prepared before the first was sent
        async with aclosing(_stream(client, first)) as stream:
            await anext(stream)

            with pytest.raises(BadRequest, match="'a' is still open"):
                await _text(client, second)

            assert len(server.engine.requests) == 1

    _run(test)


def test_abort_matches_ids_exactly_and_all_samples_of_one() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        server.engine.hold = True
        requests = [
            *await _prepare(client, "a", n=2),
            *await _prepare(client, "a-0b"),
            *await _prepare(client, "ab"),
        ]
        tasks = [asyncio.ensure_future(_text(client, request)) for request in requests]
        await asyncio.sleep(0.01)

        assert not await client.abort("b")
        assert await client.abort("a")
        await asyncio.gather(*tasks[:2])

        assert server.engine.aborted == ["a-0", "a-1"]
        assert client.num_open_requests == 2
        assert await client.abort(None)
        await asyncio.gather(*tasks)
        assert server.engine.received[-1] == AbortRequest(None)
        assert not await client.abort("a")

    _run(test)


class SlowGrammars:
    """Checks that end when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[GrammarSource] = asyncio.get_running_loop().create_future()

    async def check(self, spec: GrammarSpec, param: str | None) -> GrammarSource:
        return await asyncio.shield(self.answer)

    def close(self, reason: str) -> None:
        self.answer.cancel()


async def _in_check(
    client: EngineClient, rid: str, **sampling: Any
) -> asyncio.Task[list[GenerateRequest]]:
    spec = GenerationSpec(
        prompt="hello",
        sampling=SamplingParams(max_new_tokens=4, **sampling),
        rid=rid,
        grammar=GrammarSpec(GrammarKind.REGEX, "a+"),
    )
    task = asyncio.ensure_future(client.prepare(spec))
    while not client.is_open(rid if sampling.get("n", 1) == 1 else f"{rid}-0"):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("num_samples", [1, 2])
def test_a_request_whose_grammar_is_being_checked_can_be_aborted(
    named: bool, num_samples: int
) -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        client.grammars = cast(GrammarService, SlowGrammars())
        task = await _in_check(client, "a", n=num_samples)
        other = await _in_check(client, "b")

        assert await client.abort("a" if named else None)

        with pytest.raises(BadRequest, match="aborted while its grammar") as caught:
            await task
        assert caught.value.code == "aborted"
        assert not client.is_open("a") and not client.is_open("a-0")
        await asyncio.sleep(0)
        assert other.done() is not named
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        assert not client.is_open("b")
        assert not await client.abort("b")

    _run(test)


@pytest.mark.parametrize("num_turns", range(6))
def test_an_abort_that_found_a_request_in_check_ends_it_however_late(num_turns: int) -> None:
    # The check ends, and its result is taken some turns of the event loop later.
    async def test(server: FakeServer, client: EngineClient) -> None:
        grammars = SlowGrammars()
        client.grammars = cast(GrammarService, grammars)
        task = await _in_check(client, "a")
        prepared = PreparedGrammar(
            GrammarEngine.LLGUIDANCE, PreparedForm.REGEX, "a+", JsonWhitespace.COMPACT
        )
        grammars.answer.set_result(GrammarSource("key", prepared))
        for _ in range(num_turns):
            await asyncio.sleep(0)

        was_found = await client.abort("a")

        assert was_found or num_turns > 1
        if was_found:
            with pytest.raises(BadRequest, match="aborted while its grammar"):
                await task
        else:
            assert len(await task) == 1

    _run(test)


def test_the_drain_waits_for_checks_and_then_tells_them_that_the_server_ends() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        client.grammars = cast(GrammarService, SlowGrammars())
        task = await _in_check(client, "a")

        assert not await client.wait_until_idle(0.05)
        await client.abort(None, is_shutdown=True)

        with pytest.raises(Overloaded, match="shutting down"):
            await task
        assert await client.wait_until_idle(0.05)

    _run(test)


def test_the_id_of_a_request_whose_grammar_is_being_checked_is_taken() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        grammars = SlowGrammars()
        client.grammars = cast(GrammarService, grammars)
        task = await _in_check(client, "a")

        with pytest.raises(BadRequest, match="still open"):
            await _prepare(client, "a")
        prepared = PreparedGrammar(
            GrammarEngine.LLGUIDANCE, PreparedForm.REGEX, "a+", JsonWhitespace.COMPACT
        )
        grammars.answer.set_result(GrammarSource("key", prepared))

        (request,) = await task
        assert request.grammar is not None
        assert await _text(client, request) == "abcd"

    _run(test)


def test_death_ends_open_streams_and_calls_and_refuses_new_ones() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        observed = Observed()
        client.observers.append(observed)
        server.engine.hold = True
        (request,) = await _prepare(client, "a")
        stream = asyncio.ensure_future(_text(client, request))
        flush = asyncio.ensure_future(client.flush_cache(60))
        await asyncio.sleep(0)

        client.mark_dead("the scheduler process was killed")

        for waiting in (stream, flush):
            with pytest.raises(EngineDied, match="killed"):
                await waiting
        with pytest.raises(EngineDied, match="killed"):
            await _prepare(client, "b")
        with pytest.raises(EngineDied):
            await client.state()
        assert client.status == "dead"
        assert client.num_open_requests == 0
        assert observed.events == ["sent a", "lost a"]
        server.engine._running["a"].cancel()

    _run(test)


def test_draining_finishes_what_was_prepared_and_refuses_the_rest() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (request,) = await _prepare(client, "a")
        client.status = "draining"

        with pytest.raises(Overloaded):
            await _prepare(client, "b")
        task = asyncio.ensure_future(_text(client, request))
        await asyncio.sleep(0)

        assert await client.wait_until_idle(5)
        assert await task == "abcd"

    _run(test)


def test_waiting_for_idle_gives_up_after_its_time() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        server.engine.hold = True
        (request,) = await _prepare(client, "a")
        task = asyncio.ensure_future(_text(client, request))
        await asyncio.sleep(0)

        assert not await client.wait_until_idle(0.03)
        task.cancel()

    _run(test)


def test_an_answer_that_does_not_come_is_an_error_and_a_late_one_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        sent: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "send", sent.append)
            with pytest.raises(Overloaded, match="did not answer"):
                await client.state(timeout_seconds=0.01)

        client.receive(server.engine._state(sent[0].call_id))

        assert (await client.state()).kv.total == 4096

    _run(test)


def test_flush_passes_the_schedulers_answer_on() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        server.engine.flush_succeeds = False

        done = await client.flush_cache(3)

        assert (done.success, done.message) == (False, "requests are running")
        assert isinstance(server.engine.received[-1], FlushCache)
        assert server.engine.received[-1].timeout_seconds == 3

    _run(test)


def test_deltas_taken_at_once_are_not_yielded_and_the_last_always_is() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (request,) = await _prepare(client, "a")
        taken: list[str] = []

        def take(delta: TextDelta) -> bool:
            if delta.text == "b":
                return False
            taken.append(delta.text)
            return True

        yielded = [delta.text async for delta in client.stream(request, take)]

        assert taken == ["a", "c"]
        assert yielded == ["b", "d"]

    _run(test)


def test_no_delta_passes_one_that_its_reader_still_works_on() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (request,) = await _prepare(client, "a", max_new_tokens=8)
        order: list[str] = []

        def take(delta: TextDelta) -> bool:
            if delta.text == "a":
                return False
            order.append(delta.text)
            return True

        async for delta in client.stream(request, take):
            await asyncio.sleep(0.005)  # the engine goes on meanwhile
            order.append(delta.text)

        assert order == list("abcdefgh")

    _run(test)


def test_what_a_taker_raises_ends_its_own_stream_only() -> None:
    async def test(server: FakeServer, client: EngineClient) -> None:
        (broken,) = await _prepare(client, "a")
        (other,) = await _prepare(client, "b")

        def take(delta: TextDelta) -> bool:
            raise ZeroDivisionError

        async def run_broken() -> None:
            async for _ in client.stream(broken, take):
                raise AssertionError("nothing was to be yielded")

        result, text = await asyncio.gather(
            run_broken(), _text(client, other), return_exceptions=True
        )

        assert isinstance(result, ZeroDivisionError)
        assert text == "abcd"
        assert server.engine.aborted == ["a"]

    _run(test)
