"""Branches: apart from each other and from their parent, and joined again."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.fake_language_backend import FakeBackend

from runtime import Branches, ProgramState, assistant, fork, function, gen, user
from runtime.lang.backends.protocol import Output
from runtime.lang.errors import BackendError, ProgramError
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import Sampling
from runtime.lang.transcript import Message, Prompt


def test_branches_begin_as_the_parent_and_go_on_apart() -> None:
    backend = FakeBackend(lambda prompt: prompt.text[-1].upper())

    @function
    def program(s: ProgramState) -> list[str]:
        s += "start "
        branches = s.fork(3)
        for letter, branch in zip("abc", branches, strict=True):
            branch += letter
            branch += gen("x")
        s += "parent"
        return [branch.text() for branch in branches]

    state = program.run(backend=backend)

    assert state.ret_value == ["start aA", "start bB", "start cC"]
    assert state.text() == "start parent"


def test_the_prefix_is_computed_once_before_the_branches_run() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "a long prefix"
        for branch in s.fork(4):
            branch += gen("x")

    program.run(backend=backend)

    assert backend.log == ["commit", *["generate"] * 4]
    assert backend.commits == [Prompt("a long prefix")]


def test_a_copy_and_an_empty_parent_need_no_commit() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState) -> None:
        for branch in fork(s, 2):
            branch += "x" + gen("x")
        with s.copy() as other:
            other += gen("y")
            assert other["y"] == "<out>"

    program.run(backend=backend)

    assert backend.commits == []


def test_branches_see_what_the_parent_wrote_before() -> None:
    @function
    def program(s: ProgramState) -> str:
        s += gen("a")
        branch = s.copy()
        s += gen("later")
        assert "later" not in branch
        return str(branch["a"])

    assert program.run(backend=FakeBackend()).ret_value == "<out>"


def test_a_join_gathers_new_variables_by_branch() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("old")
        branches = s.fork(3)
        branches += lambda index: f"{index}: "
        branches += ["a", "b", "c"]
        branches += gen("x")
        branches[1] += gen("only")
        branches.join()

    state = program.run(backend=FakeBackend(lambda prompt: prompt.text[-1:]))

    assert state["x"] == ["a", "b", "c"]
    assert state["only"] == [None, "b", None]
    assert state["old"] == ""


def test_branches_of_a_conversation_go_on_in_the_open_message() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState) -> list[ProgramState]:
        s += user("q")
        branches = s.fork(2)
        for branch in branches:
            branch += assistant(gen("a"))
        return list(branches)

    state = program.run(backend=backend)

    assert all(len(branch.messages()) == 2 for branch in state.ret_value)
    assert len(state.messages()) == 1
    assert backend.commits == [Prompt("", (Message("user", "q"),), "assistant")]


def _fails_on_bad(prompt: Prompt) -> str:
    if prompt.text.endswith("bad"):
        raise BackendError("refused")
    return "ok"


def test_an_error_in_a_branch_comes_out_of_the_run_and_of_the_branch() -> None:
    seen: list[ProgramState] = []

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += ["good", "bad"]
        branches += gen("x")
        seen.extend(branches)

    with pytest.raises(BackendError, match="refused"):
        program.run(backend=FakeBackend(_fails_on_bad))
    with pytest.raises(BackendError, match="refused"):
        seen[1]["x"]
    with pytest.raises(BackendError, match="refused"):
        seen[1]["never written"]
    assert isinstance(seen[1].error(), BackendError)


def test_an_error_that_the_program_handled_does_not_end_the_run() -> None:
    @function
    def program(s: ProgramState) -> str:
        branches = s.fork(2)
        branches += ["good", "bad"]
        branches += gen("x")
        with pytest.raises(BackendError):
            branches[1]["x"]
        return str(branches[0]["x"])

    assert program.run(backend=FakeBackend(_fails_on_bad)).ret_value == "ok"


def test_an_error_before_the_fork_reaches_every_branch() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "bad" + gen("a")
        for branch in s.fork(3):
            with pytest.raises(BackendError):
                branch.sync()

    with pytest.raises(BackendError):
        program.run(backend=FakeBackend(_fails_on_bad, delay_seconds=0.02))


def test_an_async_program_joins_without_blocking() -> None:
    @function
    async def program(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += gen("x")
        await branches.ajoin()

    state = asyncio.run(program.arun(backend=FakeBackend(delay_seconds=0.02)))

    assert state["x"] == ["<out>", "<out>"]


def test_a_fork_into_nothing_and_values_that_do_not_match_are_refused() -> None:
    @function
    def program(s: ProgramState, num: int) -> None:
        branches = s.fork(num)
        branches += ["a", "b", "c"]

    with pytest.raises(ProgramError, match="at least 1"):
        program.run(0, backend=FakeBackend())
    with pytest.raises(ProgramError, match="3 values are added to 2"):
        program.run(2, backend=FakeBackend())


def _fails_second(s: ProgramState) -> Branches:
    s += "x"
    branches = s.fork(2)
    branches[0] += gen("slow")
    branches[1] += gen("bad", top_p=7)
    return branches


class _SlowOrBad(FakeBackend):
    """Refuses a top_p, and takes long for all else."""

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        if sampling.top_p is not None:
            raise BackendError("top_p is 7")
        return await super().generate(prompt, sampling, logprobs)


@pytest.mark.parametrize("joins", [True, False])
def test_a_branch_that_fails_ends_the_run_without_waiting_for_the_others(joins: bool) -> None:
    @function
    def program(s: ProgramState) -> None:
        branches = _fails_second(s)
        if joins:
            branches.join()

    backend = _SlowOrBad(delay_seconds=15)

    started = time.monotonic()
    with pytest.raises(BackendError, match="top_p is 7"):
        program.run(backend=backend)
    while backend.num_running and time.monotonic() - started < 1.0:
        time.sleep(0.001)

    assert time.monotonic() - started < 1.0
    assert backend.num_cancelled == 1


def test_an_async_join_raises_at_the_first_failure_and_may_be_handled() -> None:
    @function
    async def program(s: ProgramState) -> str:
        branches = _fails_second(s)
        try:
            await branches.ajoin()
        except BackendError:
            return str(await branches[0].aget("slow"))
        return "no error"

    state = asyncio.run(program.arun(backend=_SlowOrBad(delay_seconds=0.2)))

    assert state.ret_value == "<out>"
