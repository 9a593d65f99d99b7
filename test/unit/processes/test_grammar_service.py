"""GrammarService with a worker that is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.srt.errors import EngineDied, GrammarInvalid, Overloaded
from runtime.srt.messages import CheckGrammar, GrammarChecked
from runtime.srt.processes import grammar_service
from runtime.srt.processes.grammar_service import OLDEST_EVERY, GrammarService, WorkerEnd


class PlayedWorker:
    def __init__(self) -> None:
        self.sent: list[CheckGrammar] = []
        self.is_killed = False
        self.is_ready = False

    def send(self, message: CheckGrammar) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.is_killed = True


class Stage:
    def __init__(self, cpu_seconds: float = 30.0) -> None:
        self.workers: list[PlayedWorker] = []
        self.service = GrammarService(self._start, cpu_seconds)

    def _start(self) -> PlayedWorker:
        self.workers.append(PlayedWorker())
        return self.workers[-1]

    def ask(self, text: str) -> asyncio.Task[object]:
        spec = GrammarSpec(GrammarKind.REGEX, text)
        return asyncio.ensure_future(self.service.check(spec, "regex"))

    def ready(self) -> None:
        self.workers[-1].is_ready = True
        self.service.worker_is_ready()

    def answer(self, error: str | None = None) -> None:
        message = self.workers[-1].sent[-1]
        prepared = PreparedGrammar(
            GrammarEngine.LLGUIDANCE,
            PreparedForm.REGEX,
            message.spec.text,
            JsonWhitespace.COMPACT,
        )
        self.service.receive(
            GrammarChecked(message.call_id, None if error else prepared, error=error)
        )


def run(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_awaited(play), 10))


async def _awaited(play: Callable[[], Awaitable[None]]) -> None:
    await play()


def test_no_worker_is_started_before_the_first_grammar() -> None:
    assert Stage().workers == []


def test_equal_grammars_asked_for_together_and_later_are_checked_once() -> None:
    async def play() -> None:
        stage = Stage()
        tasks = [stage.ask("a+") for _ in range(3)]
        await asyncio.sleep(0)
        stage.answer()

        results = [await task for task in tasks]
        later = await stage.ask("a+")

        assert len({id(one) for one in (*results, later)}) == 1
        assert len(stage.workers[0].sent) == 1

    run(play)


def test_short_grammars_go_first_and_long_ones_have_their_turn() -> None:
    async def play() -> None:
        stage = Stage()
        long = [stage.ask(f"{i}" + "a" * 1000) for i in range(3)]
        await asyncio.sleep(0)
        short = [stage.ask(f"b{i}") for i in range(20)]
        await asyncio.sleep(0)
        for _ in range(23):
            stage.answer()
        await asyncio.gather(*long, *short)

        texts = [one.spec.text for one in stage.workers[0].sent]
        turns = [index for index, text in enumerate(texts) if len(text) > 1000]
        assert turns[0] == 0, "nothing else waited yet"
        assert 1 < turns[1] <= OLDEST_EVERY and turns[2] <= 2 * OLDEST_EVERY
        assert [one for one in texts if len(one) < 1000] == [f"b{i}" for i in range(20)]

    run(play)


def test_failure_is_remembered_and_names_the_field() -> None:
    async def play() -> None:
        stage = Stage()
        task = stage.ask("(")
        await asyncio.sleep(0)
        stage.answer(error="unbalanced")
        for one in (task, stage.ask("(")):
            with pytest.raises(GrammarInvalid, match="unbalanced") as caught:
                await one
            assert caught.value.param == "regex"
        assert len(stage.workers[0].sent) == 1

    run(play)


def test_grammar_that_takes_too_long_costs_its_own_request_only() -> None:
    async def play() -> None:
        stage = Stage(cpu_seconds=0.005)
        hostile, harmless = stage.ask("bomb"), stage.ask("fine")
        await asyncio.sleep(0)
        stage.ready()

        with pytest.raises(GrammarInvalid, match=r"longer than 0\.005 s"):
            await hostile
        assert stage.workers[0].is_killed and len(stage.workers) == 2
        assert [one.spec.text for one in stage.workers[1].sent] == ["fine"]
        stage.answer()
        await harmless

    run(play)


def test_time_runs_from_when_the_worker_is_ready() -> None:
    async def play() -> None:
        stage = Stage(cpu_seconds=0.005)
        task = stage.ask("slow start")
        await asyncio.sleep(0.15)
        assert not task.done()
        stage.ready()
        stage.answer()
        await task

    run(play)


def test_worker_that_dies_fails_the_grammar_it_was_at_and_the_next_has_a_new_one() -> None:
    async def play() -> None:
        stage = Stage()
        first, second = stage.ask("too big"), stage.ask("fine")
        await asyncio.sleep(0)
        stage.service.worker_ended(stage.workers[0], WorkerEnd.FAILED)
        assert [one.spec.text for one in stage.workers[1].sent] == ["too big"]
        stage.service.worker_ended(stage.workers[1], WorkerEnd.FAILED)
        with pytest.raises(GrammarInvalid, match="memory"):
            await first
        stage.answer()
        await second
        assert len(stage.workers) == 3

    run(play)


@pytest.mark.parametrize("end", [WorkerEnd.FAILED, WorkerEnd.KILLED])
def test_worker_that_ends_for_another_reason_costs_no_request_anything(end: WorkerEnd) -> None:
    async def play() -> None:
        stage = Stage()
        task = stage.ask("fine")
        await asyncio.sleep(0)
        stage.service.worker_ended(stage.workers[0], end)
        stage.answer()
        await task

    run(play)


@pytest.mark.parametrize("first_end", [WorkerEnd.FAILED, WorkerEnd.KILLED])
def test_workers_that_are_killed_again_and_again_are_not_the_grammars_fault(
    first_end: WorkerEnd,
) -> None:
    async def play() -> None:
        stage = Stage()
        task = stage.ask("fine")
        await asyncio.sleep(0)
        stage.service.worker_ended(stage.workers[0], first_end)
        stage.service.worker_ended(stage.workers[1], WorkerEnd.KILLED)
        with pytest.raises(Overloaded, match="killed"):
            await task

        again = stage.ask("fine")
        await asyncio.sleep(0)
        stage.answer()
        await again

    run(play)


def test_worker_that_took_too_long_is_not_tried_again() -> None:
    async def play() -> None:
        stage = Stage()
        task = stage.ask("bomb")
        await asyncio.sleep(0)
        stage.service.worker_ended(stage.workers[0], WorkerEnd.OUT_OF_TIME)
        with pytest.raises(GrammarInvalid, match="longer than"):
            await task

    run(play)


def test_answer_after_the_deadline_is_not_taken_for_the_next_grammars() -> None:
    async def play() -> None:
        stage = Stage()
        first, second = stage.ask("a"), stage.ask("b")
        await asyncio.sleep(0)
        late = GrammarChecked(stage.workers[0].sent[0].call_id, error="too late")
        stage.answer()
        await first
        stage.service.receive(late)
        await asyncio.sleep(0)
        assert not second.done()
        stage.answer()
        await second

    run(play)


def test_client_that_leaves_does_not_end_the_check_of_another() -> None:
    async def play() -> None:
        stage = Stage()
        leaving, staying = stage.ask("a"), stage.ask("a")
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        stage.answer()
        await staying

    run(play)


def test_too_many_waiting_grammars_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        monkeypatch.setattr(grammar_service, "MAX_QUEUED_CHECKS", 2)
        stage = Stage()
        tasks = [stage.ask(f"a{i}") for i in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await tasks[3]
        for _ in range(3):
            stage.answer()
        await asyncio.gather(*tasks[:3])

    run(play)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        monkeypatch.setattr(grammar_service, "MAX_CACHE_BYTES", 3000)
        stage = Stage()
        for text in ("a" * 200, "b" * 200, "c" * 200, "a" * 200):
            task = stage.ask(text)
            await asyncio.sleep(0)
            stage.answer()
            await task
        assert len(stage.workers[0].sent) == 4

    run(play)


def test_worker_that_does_not_start_is_the_servers_fault_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        monkeypatch.setattr(grammar_service, "_START_SECONDS", 0.02)
        stage = Stage()
        with pytest.raises(Overloaded, match="did not start"):
            await stage.ask("a")
        again = stage.ask("a")
        await asyncio.sleep(0)
        stage.answer()
        await again

    run(play)


def test_nothing_is_started_after_the_end() -> None:
    async def play() -> None:
        stage = Stage()
        stage.service.close("gone")
        with pytest.raises(EngineDied):
            await stage.ask("a")
        assert stage.workers == []

    run(play)


def test_end_of_the_engine_ends_every_check() -> None:
    async def play() -> None:
        stage = Stage()
        tasks = [stage.ask("a"), stage.ask("b")]
        await asyncio.sleep(0)
        stage.service.close("gone")
        for task in tasks:
            with pytest.raises(EngineDied):
                await task
        assert stage.workers[0].is_killed

    run(play)
