"""Under which ids a server sees the calls of a program."""

from __future__ import annotations

from typing import Any

from support.fake_language_backend import FakeBackend

from runtime import ProgramState, function, gen, select
from runtime.lang.backends.protocol import Output
from runtime.lang.caller import caller_fields
from runtime.lang.choices import ChoiceScore
from runtime.lang.transcript import Prompt


class NotingBackend(FakeBackend):
    """Notes what a native request would say of its caller, with the last word of its prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[tuple[str, dict[str, str]]] = []

    async def generate(self, prompt: Prompt, *rest: Any) -> list[Output]:
        self._note(prompt)
        return await super().generate(prompt, *rest)

    async def score(self, prompt: Prompt, *rest: Any) -> list[ChoiceScore]:
        self._note(prompt)
        return await super().score(prompt, *rest)

    async def commit(self, prompt: Prompt) -> None:
        self._note(prompt)
        await super().commit(prompt)

    def _note(self, prompt: Prompt) -> None:
        self.callers.append((prompt.text.split()[-1], caller_fields()))


@function
def forking(s: ProgramState) -> None:
    s += "root " + gen("first")
    branches = s.fork(2)
    for name, branch in zip(("left", "right"), branches, strict=True):
        branch += f" {name} " + gen("next")
    branches.join()
    s += " end " + select("last", ["a", "b"])


def test_calls_of_one_run_share_a_program_and_each_state_has_a_branch() -> None:
    backend = NotingBackend()

    forking.run(backend=backend)

    by_word = dict(backend.callers)
    programs = {fields["program_id"] for fields in by_word.values()}
    assert len(programs) == 1
    assert {word: by_word[word]["branch_id"] for word in ("root", "left", "right", "end")} == {
        "root": "0",
        "left": "1",
        "right": "2",
        "end": "0",
    }


def test_every_run_is_a_program_of_its_own_also_in_a_batch() -> None:
    backend = NotingBackend()

    @function
    def program(s: ProgramState, word: str) -> None:
        s += word + gen("a")
        s += " again" + gen("b")

    program.run_batch([(f"w{i}",) for i in range(5)], backend=backend)
    program.run("w5", backend=backend)

    programs = [fields["program_id"] for _, fields in backend.callers]
    assert len(programs) == 12
    assert all(programs.count(one) == 2 for one in programs)


def test_branch_ids_stay_short_however_deep_copies_of_copies_go() -> None:
    backend = NotingBackend()

    @function
    def program(s: ProgramState) -> None:
        for _ in range(300):
            s = s.copy()
        s += "deep" + gen("a")

    program.run(backend=backend)

    ((_, fields),) = backend.callers
    assert len(fields["branch_id"]) < 10


def test_outside_a_run_there_is_no_caller() -> None:
    assert caller_fields() == {}
